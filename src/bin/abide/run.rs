//! `abide run`: a file or a stream of requests in, a file of results out.

use std::{
    fs::OpenOptions,
    future::poll_fn,
    io::{self, stdin, stdout},
    path::Path,
    pin::Pin,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use abide::{
    bulk::{Bulk, End, Input, Job, Outcome, Run, Source},
    fleet::Fleet,
};
use futures_core::Stream;

use crate::{
    fleet::Losses,
    options::{self, Args},
    out,
    progress::{Meter, span},
    signals::{INTERRUPTED, Signals},
};

/// Usage, unreadable input, or a disk that takes no more.
const USAGE: u8 = 2;

/// Runs the jobs; exit codes as in `--help`.
pub(crate) fn run(mut args: Args) -> ExitCode {
    args.follow_link();
    to_end(async { start(&args).await })
}

/// Drives `work` on a runtime of its own, and tells what hindered it.
pub(crate) fn to_end(work: impl Future<Output = Result<u8, String>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let code = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        let code = runtime.block_on(work);
        // A reader of stdin may be blocked for ever.
        runtime.shutdown_background();
        code
    });
    ExitCode::from(code.unwrap_or_else(|why| {
        out::say(&why);
        USAGE
    }))
}

/// The rows of a file, or of stdin.
pub(crate) fn open(path: &str) -> Result<Input, String> {
    match path {
        "-" => Ok(Input::from_reader(stdin())),
        path if is_store(path) => {
            Err("a stream is no file: rows are read from one with --from, and pushed with --to".into())
        }
        path => Input::open(path).map_err(|error| error.to_string()),
    }
}

/// A URL may hold a password: it is in no message.
fn is_store(path: &str) -> bool {
    ["redis", "valkey"].iter().any(|scheme| path.starts_with(scheme)) && path.contains("://")
}

async fn start(args: &Args) -> Result<u8, String> {
    let signals = Signals::obey()?;
    args.check_files()?;
    match &args.from {
        Some(url) => from_stream(args, url, &signals).await,
        None => from_file(args, &signals).await,
    }
}

async fn from_file(args: &Args, signals: &Signals) -> Result<u8, String> {
    let input = open(args.input())?;
    let input = match args.sample {
        Some(share) => input.sample(share),
        None => input,
    };
    let fleet = if args.dry_run { None } else { args.fleet.connect().await? };
    let (bulk, to_stdout) = bulk(args, fleet.clone())?;
    if args.dry_run {
        return dry_run(args, &bulk, input);
    }
    let trouble = input.trouble();
    let run = bulk.run(input);
    tell_start(&run, to_stdout)?;
    drive(args, run, (&trouble, fleet), (meter(args), signals)).await
}

async fn from_stream(args: &Args, url: &str, signals: &Signals) -> Result<u8, String> {
    let fleet = args.fleet.connect().await?;
    let (bulk, to_stdout) = bulk(args, fleet.clone())?;
    let meter = meter(args);
    let news = Arc::clone(&meter);
    let source =
        Source::redis(options::url(url)?, args.group.as_deref().unwrap_or_default()).claim_after(args.claim_after);
    let source = source.on_news(move |text| lock(&news).say(text));
    let source = if args.follow { source.follow() } else { source };
    let source = match args.results() {
        Some(path) => source.resume(path),
        None => source,
    };
    let mut rows = source.connect().await.map_err(|error| error.to_string())?;
    let (trouble, ending) = (rows.trouble(), rows.ending());
    let run = bulk.note("jobs", rows.place()).run(rows);
    tell_start(&run, to_stdout)?;
    let code = drive(args, run, (&trouble, fleet), (meter, signals)).await;
    let unsettled = ending.await;
    if unsettled > 0 && trouble.get().is_none() {
        out::say(&format!("{unsettled} rows could not be settled at the store: they will be taken over"));
    }
    code
}

/// Whether it can start, and what is to be known first.
fn tell_start<S>(run: &Run<S>, to_stdout: bool) -> Result<(), String> {
    if let Some(error) = run.error() {
        return Err(error.to_string());
    }
    run.warnings().iter().for_each(|warning| out::say(warning));
    if to_stdout {
        out::say(&format!("run {}", run.id()));
    }
    Ok(())
}

fn meter(args: &Args) -> Arc<Mutex<Meter>> {
    Arc::new(Mutex::new(Meter::new(args.progress, args.jobs.as_deref().unwrap_or_default())))
}

fn lock(meter: &Mutex<Meter>) -> MutexGuard<'_, Meter> {
    meter.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The run that the options describe, and whether its results go to stdout.
fn bulk(args: &Args, fleet: Option<Fleet>) -> Result<(Bulk, bool), String> {
    let mut bulk = Bulk::new(args.client(fleet)?).concurrency(args.concurrency).stop_on_refused_credentials();
    for (name, value) in args.told() {
        bulk = bulk.note(name, value);
    }
    if let Some(failed) = args.stop_after {
        bulk = bulk.stop_after(failed);
    }
    if let Some(share) = args.stop_rate {
        bulk = bulk.stop_rate(share);
    }
    if args.idempotency_key.is_some() {
        bulk = bulk.auto_idempotency_keys();
    }
    if args.fsync {
        bulk = bulk.fsync();
    }
    let resumes = args.resume || args.retry_failed;
    match args.out.as_deref() {
        None | Some("-") if resumes => Err("--resume needs a file of results: -o OUT".into()),
        None | Some("-") => Ok((bulk.results_to(stdout()), true)),
        Some(path) if is_store(path) => Err("-o: results go to a file, not to a store".into()),
        // A device or a pipe: there is nothing to come back to.
        Some(path) if Path::new(path).metadata().is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) => {
            if resumes {
                return Err(format!("--resume needs a file of results, {path} is none"));
            }
            let device = OpenOptions::new().write(true).open(path).map_err(|error| format!("{path}: {error}"))?;
            Ok((bulk.results_to(device), false))
        }
        Some(path) => {
            let bulk = bulk.results(path).journal(format!("{path}.journal"));
            let bulk = if args.retry_failed {
                bulk.retry_failed()
            // A worker is started again by whatever watches it, with the command that it had.
            } else if resumes || args.from.is_some() {
                bulk.resume()
            } else {
                bulk
            };
            Ok((bulk, false))
        }
    }
}

fn dry_run(args: &Args, bulk: &Bulk, input: Input) -> Result<u8, String> {
    let (mut shown, mut printed) = (0, Ok(()));
    let trouble = input.trouble();
    let plan = bulk.plan(input.into_rows(), |row| {
        if (args.verbose || shown < 10) && printed.is_ok() {
            shown += 1;
            printed = serde_json::to_string(&row).map_err(io::Error::from).and_then(|line| out::put(&out::json(&line)));
        }
    });
    let plan = plan.map_err(|error| error.to_string())?;
    printed.map_err(|error| error.to_string())?;
    let time = match plan.estimate {
        Some(estimate) => format!("at least {} under the known limits", span(estimate)),
        None => "no limit is known: as fast as the server answers".into(),
    };
    out::say(&format!(
        "would send {} rows; {} have a result, {} make no sense; {time}; nothing was sent",
        plan.rows, plan.done, plan.invalid
    ));
    if plan.repeats > 0 {
        let maybe = "may have been executed, have no key, and are not safe to repeat";
        out::say(&format!("{} rows that failed {maybe}: they would be sent again", plan.repeats));
    }
    match trouble.get() {
        Some(error) => Err(error.to_string()),
        None => Ok(u8::from(plan.invalid > 0)),
    }
}

async fn drive<S: Stream<Item = Job>>(
    args: &Args,
    mut run: Run<S>,
    (trouble, fleet): (&OnceLock<io::Error>, Option<Fleet>),
    (meter, signals): (Arc<Mutex<Meter>>, &Signals),
) -> Result<u8, String> {
    let (mut losses, stopper, teller) = (Losses::default(), run.stopper(), Arc::clone(&meter));
    // What a resumed run needs is left, also by the second one.
    signals.drain(move || {
        stopper.drain();
        lock(&teller).say("stopping: what is on the wire may come back; once more to end at once");
    });
    let mut ticks = tokio::time::interval(Duration::from_millis(200));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        let outcome = poll_fn(|cx| {
            while ticks.poll_tick(cx).is_ready() {
                if let Some(news) = fleet.as_ref().and_then(|fleet| losses.news(fleet.why_lost())) {
                    lock(&meter).say(&news);
                }
                lock(&meter).show(&run.progress());
            }
            Pin::new(&mut run).poll_next(cx)
        });
        let Some(outcome) = outcome.await else { break };
        if outcome.is_unknown() || args.verbose && !outcome.is_ok() {
            lock(&meter).say(&named(&outcome));
        }
    }
    lock(&meter).clear();
    finish(args, &run, trouble)
}

fn named(outcome: &Outcome) -> String {
    let Outcome { line, id, .. } = outcome;
    let place = match &outcome.entry {
        Some(entry) => format!("entry {entry} ({id})"),
        None => format!("line {line} ({id})"),
    };
    match (&outcome.error, outcome.status) {
        (Some(error), _) => format!("{place}: {}: {}", error.kind, error.message),
        (None, Some(status)) => format!("{place}: {status}"),
        (None, None) => place,
    }
}

/// The same command would meet it again.
fn lasts(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, InvalidData, InvalidInput, NotFound, UnexpectedEof};
    matches!(error.kind(), AlreadyExists | InvalidData | InvalidInput | NotFound | UnexpectedEof)
}

fn finish<S>(args: &Args, run: &Run<S>, trouble: &OnceLock<io::Error>) -> Result<u8, String> {
    let summary = run.summary();
    if let Some(path) = &args.summary {
        let json = serde_json::to_string(&summary).map_err(|error| error.to_string())?;
        out::file(path, &(json + "\n"))?;
    }
    if let Some(path) = &args.report {
        out::file(path, &run.report())?;
    }
    out::say(&summary.to_string());
    let hint = match (&args.from, args.results()) {
        (Some(_), _) => "; the same command goes on",
        (None, Some(_)) => "; --resume goes on",
        (None, None) => "",
    };
    let code = match (run.end(), trouble.get()) {
        (Some(End::Failed), _) => {
            let why = run.error().map_or_else(String::new, ToString::to_string);
            let hint = if run.error().is_some_and(lasts) { "" } else { hint };
            return Err(format!("stopped: {why}{hint}"));
        }
        (_, Some(error)) => {
            let hint = if lasts(error) { "" } else { hint };
            return Err(format!("{}: {error}{hint}", args.input()));
        }
        (Some(End::Interrupted), _) => {
            out::say(&format!("interrupted{hint}"));
            INTERRUPTED
        }
        (Some(End::RefusedCredentials), _) => {
            out::say(&format!("stopped: the credentials are refused{hint}"));
            4
        }
        (Some(End::Rule), _) => {
            out::say(&format!("stopped: too many rows failed{hint}"));
            3
        }
        _ => u8::from(summary.failed + summary.unknown > 0),
    };
    Ok(code)
}
