//! `abide explain`: what a response says about limits, header by header, and what abide would do about it.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime},
};

use abide::{
    headers::{self, Explanation, Hints, QuotaHint, QuotaScope},
    http::{HeaderMap, StatusCode},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{head::Head, out};

/// Most input that is taken in: a head and a small body.
const MAX_INPUT: u64 = 1024 * 1024;

/// Explains what abide reads from a response, printed as `curl -i` does.
#[derive(Debug, clap::Args)]
pub(crate) struct Explain {
    /// A file with the response; `-` or nothing: standard input.
    file: Option<PathBuf>,
    /// The instant of receipt; default: the response's `Date`, else the clock.
    #[arg(long, value_name = "RFC3339")]
    now: Option<Timestamp>,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

impl Explain {
    pub(crate) fn run(self) -> ExitCode {
        let printed = self.answer().and_then(|text| io::stdout().write_all(text.as_bytes()).map_err(|e| e.to_string()));
        match printed {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                // Nothing is left to do when stderr is gone too.
                let _ = writeln!(io::stderr(), "abide explain: {}", out::shown(&message));
                ExitCode::from(2)
            }
        }
    }

    fn answer(&self) -> Result<String, String> {
        let input = input(self.file.as_deref())?;
        let head = Head::parse(&input).map_err(|error| error.to_string())?;
        let received = self.now.or_else(|| date(&head.headers)).unwrap_or_else(Timestamp::now);
        let body = Some(head.body).filter(|body| !body.is_empty());
        let explanation = headers::explain(head.status, &head.headers, body, SystemTime::from(received));
        if self.json {
            return Ok(out::json(&to_json(&explanation.hints).to_string()) + "\n");
        }
        Ok(Page { head: &head, explanation: &explanation, received }.print())
    }
}

fn input(file: Option<&Path>) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = match file.filter(|path| *path != Path::new("-")) {
        Some(path) => File::open(path).and_then(|file| file.take(MAX_INPUT + 1).read_to_end(&mut bytes)),
        None => io::stdin().lock().take(MAX_INPUT + 1).read_to_end(&mut bytes),
    };
    match read {
        Err(error) => Err(format!("cannot read {}: {error}", file.unwrap_or_else(|| Path::new("-")).display())),
        Ok(length) if length as u64 > MAX_INPUT => Err("the input is larger than 1 MiB".to_owned()),
        Ok(0) => Err("the input is empty; expected a response as `curl -i` prints it".to_owned()),
        Ok(_) => Ok(bytes),
    }
}

fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let date = headers.get("date")?.to_str().ok()?;
    Timestamp::try_from(httpdate::parse_http_date(date.trim()).ok()?).ok()
}

/// As the documentation of the command line has it.
fn to_json(hints: &Hints) -> Value {
    let quotas: Vec<Value> = hints.quotas.iter().map(quota_json).collect();
    json!({
        "retry_after_ms": hints.retry_after.map(millis),
        "should_retry": hints.should_retry,
        "quotas": quotas,
    })
}

fn quota_json(quota: &QuotaHint) -> Value {
    json!({
        "name": quota.name,
        "limit": quota.limit.map(number),
        "remaining": quota.remaining.map(number),
        "reset_ms": quota.reset_after.map(millis),
        "window_ms": quota.window.map(millis),
        "unit": quota.unit.as_str(),
        "partition": quota.partition,
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A whole number without a fraction, so that `600` prints as it was sent.
fn number(number: f64) -> Value {
    let text = number.to_string();
    text.parse::<u64>().map_or_else(|_fraction| json!(number), |whole| json!(whole))
}

/// The page for a person.
struct Page<'p> {
    head: &'p Head<'p>,
    explanation: &'p Explanation,
    received: Timestamp,
}

impl Page<'_> {
    fn print(&self) -> String {
        let mut page = format!("status {}, received {}\n", self.head.status, self.received);
        self.readings(&mut page);
        self.quotas(&mut page);
        self.actions(&mut page);
        for name in &self.explanation.not_understood {
            let values = self.values(name.as_str());
            let _ = writeln!(page, "not understood: {name}: {values}");
        }
        page
    }

    fn readings(&self, page: &mut String) {
        let mut rows = Vec::new();
        for reading in &self.explanation.readings {
            let name = reading.header.as_str();
            let how = reading.how.map(|how| format!(" ({how})")).unwrap_or_default();
            rows.push([name.to_owned(), self.values(name), format!("{}{how}", says(&reading.hints))]);
        }
        if self.explanation.wait_in_body {
            let wait = self.explanation.hints.retry_after.map(span).unwrap_or_default();
            rows.push(["(body)".to_owned(), "JSON".to_owned(), format!("wait {wait}")]);
        }
        if rows.is_empty() {
            page.push_str("\nnothing about limits or waits\n");
        } else {
            table(page, ["header", "value", "read as"], &rows);
        }
    }

    fn quotas(&self, page: &mut String) {
        let told = |number: Option<f64>| number.map_or_else(dash, |number| number.to_string());
        let time = |time: Option<Duration>| time.map_or_else(dash, span);
        let rows: Vec<[String; 7]> = self
            .explanation
            .hints
            .quotas
            .iter()
            .map(|quota| {
                [
                    quota.name.as_deref().map_or_else(dash, clean),
                    told(quota.limit),
                    told(quota.remaining),
                    time(quota.reset_after),
                    time(quota.window),
                    clean(quota.unit.as_str()),
                    quota.partition.as_deref().map_or_else(dash, clean),
                ]
            })
            .collect();
        if !rows.is_empty() {
            table(page, ["quota", "limit", "remaining", "reset in", "window", "unit", "partition"], &rows);
        }
    }

    /// What abide would do.
    fn actions(&self, page: &mut String) {
        let hints = &self.explanation.hints;
        page.push('\n');
        match (hints.should_retry, self.wait()) {
            (Some(false), _) => page.push_str("abide would not retry: the server says so\n"),
            (_, Some(wait)) if wait.is_zero() => page.push_str("abide would back off by its own rule: the wait is 0\n"),
            (_, Some(wait)) => {
                let until =
                    self.received.checked_add(wait).map_or_else(|_| "the end of time".to_owned(), |at| at.to_string());
                let _ =
                    writeln!(page, "abide would send nothing to this key until {until}, {} from receipt", span(wait));
            }
            (_, None) if hints.refused => page.push_str("abide would back off by its own rule: no wait is named\n"),
            _ => page.push_str("abide would go on\n"),
        }
        for quota in &hints.quotas {
            if let Some(limit) = rate(quota) {
                let _ = writeln!(page, "abide would limit {limit}");
            }
        }
    }

    /// A wait counts for an answer that is no success; a reset only for one that was refused.
    fn wait(&self) -> Option<Duration> {
        let Explanation { hints, asked_wait, .. } = self.explanation;
        let exhausted = hints.quotas.iter().any(|quota| quota.remaining == Some(0.0));
        match self.head.status {
            _ if hints.refused => *asked_wait,
            StatusCode::CREATED | StatusCode::ACCEPTED => None,
            status if status.is_success() && !exhausted => None,
            _ => hints.retry_after,
        }
    }

    /// All values of a header, made safe for a terminal and cut to a line.
    fn values(&self, name: &str) -> String {
        let values = self.head.headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
        let joined = values.collect::<Vec<_>>().join(" | ");
        let mut text: String = clean(&joined).chars().take(60).collect();
        if joined.chars().count() > 60 {
            text.push('…');
        }
        text
    }
}

/// What stands for what is not told.
fn dash() -> String {
    "-".to_owned()
}

/// What one header says on its own.
fn says(hints: &Hints) -> String {
    let mut said = Vec::new();
    said.extend(hints.retry_after.map(|wait| format!("wait {}", span(wait))));
    said.extend(hints.should_retry.map(|retry| format!("retry: {}", if retry { "yes" } else { "no" })));
    for quota in hints.quotas.iter().take(3) {
        said.extend(quota.limit.map(|limit| format!("limit {limit}")));
        said.extend(quota.remaining.map(|remaining| format!("remaining {remaining}")));
        said.extend(quota.reset_after.map(|reset| format!("reset in {}", span(reset))));
        said.extend(quota.window.map(|window| format!("window {}", span(window))));
    }
    if hints.quotas.len() > 3 {
        said.push(format!("and {} more quotas", hints.quotas.len() - 3));
    }
    if said.is_empty() { "part of a quota".to_owned() } else { said.join(", ") }
}

/// At what a quota would be limited.
fn rate(quota: &QuotaHint) -> Option<String> {
    let name = quota.name.as_deref().map(|name| format!("{}: ", clean(name))).unwrap_or_default();
    let scope = if quota.scope == QuotaScope::Route { " on the routes that carry it" } else { "" };
    let unit = clean(quota.unit.as_str());
    match (quota.limit, quota.window, quota.remaining, quota.reset_after) {
        (Some(limit), Some(window), ..) => Some(format!("{name}{limit} {unit} in any {}{scope}", span(window))),
        (_, None, Some(left), Some(reset)) => {
            Some(format!("{name}{left} {unit} until {} from receipt{scope}", span(reset)))
        }
        _ => None,
    }
}

/// `36s`, `2m 5s`, `1h 0m`, `350ms`.
fn span(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    match seconds {
        0 => format!("{millis}ms"),
        1..60 if millis > 0 => format!("{seconds}.{millis:03}s"),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Text of a server without anything a terminal would act on.
fn clean(text: &str) -> String {
    text.chars().map(|c| if out::is_obeyed(c) { '\u{fffd}' } else { c }).collect()
}

fn table<const N: usize>(page: &mut String, titles: [&str; N], rows: &[[String; N]]) {
    let titles = titles.map(str::to_owned);
    let all = || std::iter::once(&titles).chain(rows);
    page.push('\n');
    for row in all() {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
            format!("{cell:width$}")
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        page.push_str(line.trim_end());
        page.push('\n');
    }
}
