//! Cases of the command line: a file of rows, signals, resumed runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    sync::watch,
    time::Instant,
};

use crate::support::{
    clock,
    job::{self, Folder},
    rows::Rows,
    script::Entry,
};

/// One case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BulkCase {
    server: ServerSpec,
    input: InputSpec,
    #[serde(default)]
    actions: Vec<Action>,
    config: BulkConfig,
    expect: BulkExpect,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerSpec {
    default: Entry,
    #[serde(default)]
    rows: BTreeMap<u64, OneOrMany>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(Box<Entry>),
    Many(Vec<Entry>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InputSpec {
    rows: u64,
    row_bytes: Option<usize>,
    via: Option<Via>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Via {
    File,
    Stdin,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Action {
    at_results: Option<usize>,
    after_ms: Option<u64>,
    signal: Option<String>,
    then: Option<Then>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Then {
    Resume,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BulkConfig {
    max_attempts: Option<u32>,
    base_ms: Option<u64>,
    cap_ms: Option<u64>,
    deadline_ms: Option<u64>,
    attempt_timeout_ms: Option<u64>,
    max_server_wait_ms: Option<u64>,
    concurrency: Option<u32>,
    #[serde(default)]
    checkpoint: bool,
    idempotency_key: Option<String>,
    stdout: Option<Piped>,
    stderr: Option<Piped>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Piped {
    Pipe,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BulkExpect {
    exit_code: Option<i32>,
    exit_nonzero: Option<bool>,
    results_equal_answered: Option<bool>,
    requests_after_signal_max: Option<usize>,
    stops_within_ms: Option<f64>,
    unique_rows: Option<usize>,
    requests_max: Option<usize>,
    repeat_rows_same_key: Option<bool>,
    result_rows_unique: Option<bool>,
    rss_growth_mib_max: Option<u64>,
    rows_read_minus_results_max: Option<u64>,
    stdout_lines: Option<usize>,
    stdout_all_json: Option<bool>,
    stderr_has_cr: Option<bool>,
    #[serde(default)]
    summary: BTreeMap<String, Value>,
}

/// All that is wrong with a case.
pub(crate) async fn run(case: BulkCase) -> Vec<String> {
    match Box::pin(play(&case)).await {
        Ok(played) => played.failures(&case),
        Err(problem) => vec![problem],
    }
}

/// What happened.
struct Played {
    server: Rows,
    results: String,
    stdout: String,
    stderr: String,
    status: ExitStatus,
    signalled: Option<Instant>,
    ended: Instant,
    summary: Value,
    watched: Watched,
}

/// What was measured on the way.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    first_rss: u64,
    most_rss: u64,
    most_ahead: u64,
}

const OUT: &str = "out.jsonl";

async fn play(case: &BulkCase) -> Result<Played, String> {
    let entries = |rows: &OneOrMany| match rows {
        OneOrMany::One(entry) => vec![(**entry).clone()],
        OneOrMany::Many(entries) => entries.clone(),
    };
    let rows: BTreeMap<u64, Vec<Entry>> = case.server.rows.iter().map(|(row, it)| (*row, entries(it))).collect();
    for entry in rows.values().flatten().chain([&case.server.default]) {
        is_plain(entry)?;
    }
    let server = Rows::start(case.server.default.clone(), rows).await;
    let folder = Folder::new();
    // stderr is a pipe always.
    let piped = case.config.stdout.or(case.config.stderr).is_some();
    let stdin = case.input.via == Some(Via::Stdin);
    if !stdin {
        let text: String = (0..case.input.rows).map(|row| line(&server, &case.input, row)).collect();
        folder.write("jobs.jsonl", text);
    }
    let mut resumed = false;
    let mut actions = case.actions.iter().peekable();
    let (mut watched, mut signalled) = (Watched::default(), None);
    loop {
        let mut command = command(case, &folder, resumed, piped);
        if stdin {
            command.stdin(Stdio::piped());
        }
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let written = feed(&mut child, &server, &case.input);
        let (out, err) = (read(child.stdout.take()), read(child.stderr.take()));
        while let Some(action) = actions.next_if(|action| action.then.is_none()) {
            let watching = Watching { child: &child, folder: &folder, written: &written };
            wait_for(action, &watching, &mut watched).await?;
            signalled = Some(clock::now());
            job::signal(&child, action.signal.as_deref().ok_or("an action without a signal")?).await;
        }
        let ended = tokio::time::timeout(Duration::from_secs(120), child.wait()).await;
        let status = ended.map_err(|_late| "it does not end")?.map_err(|error| error.to_string())?;
        let ended = clock::now();
        if actions.next_if(|action| action.then == Some(Then::Resume)).is_some() {
            resumed = true;
            continue;
        }
        let summary = serde_json::from_str(&folder.read("summary.json")).unwrap_or(Value::Null);
        let (stdout, stderr) = (out.await.unwrap_or_default(), err.await.unwrap_or_default());
        let results = if piped { stdout.clone() } else { folder.read(OUT) };
        return Ok(Played { server, results, stdout, stderr, status, signalled, ended, summary, watched });
    }
}

fn is_plain(entry: &Entry) -> Result<(), String> {
    let odd = entry.fault.is_some() || entry.stall_body_after.is_some() || entry.body_rate_bps.is_some();
    let placed = entry.host.is_some() || entry.repeat.is_some() || entry.after_body || entry.window_ms.is_some();
    if odd || placed { Err(format!("{entry:?} is not played for rows")) } else { Ok(()) }
}

/// One row of the input: POST, as long as it is asked to be.
fn line(server: &Rows, input: &InputSpec, row: u64) -> String {
    let bare = format!(r#"{{"method":"POST","url":"{}","body":""}}"#, server.url(row));
    let filler = input.row_bytes.unwrap_or(0).saturating_sub(bare.len() + 1);
    format!("{}{}\"}}\n", &bare[..bare.len() - 2], "x".repeat(filler))
}

fn command(case: &BulkCase, folder: &Folder, resumed: bool, piped: bool) -> Command {
    let config = &case.config;
    let mut options = format!("--idempotency-key {}", config.idempotency_key.as_deref().unwrap_or("auto"));
    let mut give = |name: &str, value: Option<String>| {
        options.extend(value.map(|value| format!(" --{name} {value}")));
    };
    let ms = |time: Option<u64>| time.map(|time| format!("{time}ms"));
    give("max-attempts", config.max_attempts.map(|attempts| attempts.to_string()));
    give("base", ms(config.base_ms));
    give("cap", ms(config.cap_ms));
    give("deadline", ms(config.deadline_ms));
    give("attempt-timeout", ms(config.attempt_timeout_ms));
    give("max-server-wait", ms(config.max_server_wait_ms));
    give("concurrency", config.concurrency.map(|concurrency| concurrency.to_string()));
    if resumed {
        options.push_str(" --resume");
    }
    let stdin = case.input.via == Some(Via::Stdin);
    let jobs = if stdin { Path::new("-").to_owned() } else { folder.file("jobs.jsonl") };
    let (summary, out) = (folder.file("summary.json"), folder.file(OUT));
    let mut paths = vec![jobs.as_path(), Path::new("--summary"), summary.as_path()];
    if !piped || config.checkpoint {
        paths.extend([Path::new("-o"), out.as_path()]);
    }
    job::command(&options, &paths)
}

/// Writes the rows to stdin; how many it took so far.
fn feed(child: &mut Child, server: &Rows, input: &InputSpec) -> watch::Receiver<u64> {
    let (written, so_far) = watch::channel(0);
    if let Some(mut stdin) = child.stdin.take() {
        let (first, input) = (server.url(0), input.clone());
        let base = first.trim_end_matches('0').to_owned();
        tokio::spawn(async move {
            for row in 0..input.rows {
                let bare = format!(r#"{{"method":"POST","url":"{base}{row}","body":""}}"#);
                let filler = "x".repeat(input.row_bytes.unwrap_or(0).saturating_sub(bare.len() + 1));
                let line = format!("{}{filler}\"}}\n", &bare[..bare.len() - 2]);
                if stdin.write_all(line.as_bytes()).await.is_err() {
                    break;
                }
                written.send_replace(row + 1);
            }
        });
    }
    so_far
}

fn read(from: Option<impl AsyncReadExt + Unpin + Send + 'static>) -> tokio::task::JoinHandle<String> {
    tokio::spawn(async move {
        let mut text = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut text).await;
        }
        String::from_utf8_lossy(&text).into_owned()
    })
}

struct Watching<'a> {
    child: &'a Child,
    folder: &'a Folder,
    written: &'a watch::Receiver<u64>,
}

/// Until it is time for the action; measures on the way.
async fn wait_for(action: &Action, watching: &Watching<'_>, watched: &mut Watched) -> Result<(), String> {
    let started = clock::now();
    let Action { at_results, after_ms, .. } = *action;
    if at_results.is_none() && after_ms.is_none() {
        return Err("an action without a time".into());
    }
    loop {
        let (results, passed) = (watching.folder.lines(OUT), clock::now() - started);
        let ahead = watching.written.borrow().saturating_sub(results as u64);
        watched.most_ahead = watched.most_ahead.max(ahead);
        // What it takes to start is no growth.
        if passed > clock::ms(500) {
            let now = rss_kib(watching.child);
            watched.most_rss = watched.most_rss.max(now);
            watched.first_rss = if watched.first_rss == 0 { now } else { watched.first_rss };
        }
        let due = at_results.is_none_or(|wanted| results >= wanted);
        if due && after_ms.is_none_or(|after| passed >= clock::ms(after)) {
            return Ok(());
        }
        if passed > clock::ms(60_000) {
            return Err(format!("{results} results after a minute"));
        }
        clock::sleep(clock::ms(if at_results.is_some() { 2 } else { 50 })).await;
    }
}

fn rss_kib(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id().unwrap_or(0))).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

impl Played {
    fn failures(&self, case: &BulkCase) -> Vec<String> {
        let mut failures = self.ending(&case.expect);
        failures.extend(self.rows(&case.expect));
        failures.extend(self.output(&case.expect));
        if !failures.is_empty() {
            failures.push(format!("it said: {}", self.stderr));
        }
        failures
    }

    fn ending(&self, expect: &BulkExpect) -> Vec<String> {
        let mut failures = Vec::new();
        let code = self.status.code();
        if expect.exit_code.is_some() && expect.exit_code != code {
            failures.push(format!("exit code {code:?}, expected {:?}", expect.exit_code));
        }
        if expect.exit_nonzero.is_some_and(|nonzero| nonzero != (code != Some(0))) {
            failures.push(format!("exit code {code:?}"));
        }
        if let Some(signalled) = self.signalled {
            let took = clock::as_ms(self.ended - signalled);
            if expect.stops_within_ms.is_some_and(|within| took > within) {
                failures.push(format!("it stopped after {took:.0} ms"));
            }
            let after = self.server.book().arrivals.iter().filter(|at| **at > signalled).count();
            if expect.requests_after_signal_max.is_some_and(|max| after > max) {
                failures.push(format!("{after} requests after the signal"));
            }
        }
        let growth = self.watched.most_rss.saturating_sub(self.watched.first_rss) / 1024;
        if expect.rss_growth_mib_max.is_some_and(|max| growth >= max) {
            failures.push(format!("it grew by {growth} MiB"));
        }
        if expect.rows_read_minus_results_max.is_some_and(|max| self.watched.most_ahead > max) {
            failures.push(format!("it read {} rows ahead", self.watched.most_ahead));
        }
        failures
    }

    /// Rows in the results, requests and keys at the server.
    fn rows(&self, expect: &BulkExpect) -> Vec<String> {
        let mut failures = Vec::new();
        let results: Vec<u64> =
            self.results.lines().filter_map(|line| Some(json(line)?["line"].as_u64()? - 1)).collect();
        let unique: BTreeSet<u64> = results.iter().copied().collect();
        let book = self.server.book();
        if expect.results_equal_answered.is_some_and(|equal| equal != (unique == book.answered)) {
            let lost: Vec<&u64> = book.answered.symmetric_difference(&unique).collect();
            failures.push(format!("rows {lost:?} are answered or have a result, not both"));
        }
        if expect.unique_rows.is_some_and(|wanted| unique.len() != wanted) {
            failures.push(format!("{} rows have a result", unique.len()));
        }
        if expect.result_rows_unique.is_some_and(|wanted| wanted != (unique.len() == results.len())) {
            failures.push(format!("{} results of {} rows", results.len(), unique.len()));
        }
        if expect.requests_max.is_some_and(|max| book.arrivals.len() > max) {
            failures.push(format!("{} requests", book.arrivals.len()));
        }
        let same = |keys: &Vec<Option<String>>| keys[0].is_some() && keys.iter().all(|key| *key == keys[0]);
        if expect.repeat_rows_same_key.is_some_and(|wanted| wanted != book.keys.values().all(same)) {
            failures.push("a row came with several keys, or without one".into());
        }
        let keys: BTreeSet<&Option<String>> = book.keys.values().map(|keys| &keys[0]).collect();
        if keys.len() != book.keys.len() {
            failures.push("rows share a key".into());
        }
        failures
    }

    fn output(&self, expect: &BulkExpect) -> Vec<String> {
        let mut failures = Vec::new();
        let lines = self.stdout.lines().count();
        if expect.stdout_lines.is_some_and(|wanted| lines != wanted) {
            failures.push(format!("{lines} lines on stdout"));
        }
        let all_json = self.stdout.lines().all(|line| json(line).is_some());
        if expect.stdout_all_json.is_some_and(|wanted| wanted != all_json) {
            failures.push(format!("stdout is not all JSON: {}", self.stdout));
        }
        if expect.stderr_has_cr.is_some_and(|wanted| wanted != self.stderr.contains('\r')) {
            failures.push("stderr has a carriage return, or none".into());
        }
        for (name, wanted) in &expect.summary {
            if self.summary[name].as_f64().is_none() || self.summary[name].as_f64() != wanted.as_f64() {
                failures.push(format!("summary {name} is {}, expected {wanted}", self.summary[name]));
            }
        }
        failures
    }
}

fn json(line: &str) -> Option<Value> {
    serde_json::from_str(line).ok()
}
