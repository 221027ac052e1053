//! The behaviour cases of `tests/data/cases`: small scenarios from public bug reports, played on real sockets or a
//! virtual clock. `ABIDE_CASES` names another file of the same form, `ABIDE_CASE` picks those whose id contains it.

#[cfg(feature = "cli")]
mod bulk;
mod call;
mod case;
mod check;
mod client;
mod door;
#[cfg(test)]
mod form;
mod limiter;
#[cfg(feature = "cli")]
mod members;
mod multi;
mod outcome;
#[cfg(feature = "cli")]
mod redis;
mod stage;

use std::{collections::BTreeMap, sync::Arc};

use tokio::{sync::Semaphore, task::JoinSet};

use case::{CallCase, Case};
use door::Door;

/// The cases that come with the project: from bug reports, and for what those leave out.
const FILES: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cases/behaviours.jsonl"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cases/own.jsonl"),
];

/// How many cases, or trials of one, run at once.
const AT_ONCE: usize = 8;

/// How many stores, each with all its processes, run at once.
const STORES_AT_ONCE: usize = 3;

/// What a case may require: features that abide has.
const FEATURES: [&str; 9] = [
    "poll_202",
    "header_provider",
    "http2",
    "classify_body",
    "rate_limit_403",
    "sensitive_headers",
    "limiter",
    "concurrency",
    "redirects",
];

/// What became of one case.
enum Result {
    Passed,
    Failed(Vec<String>),
    /// It requires what abide does not have.
    Skipped(Vec<String>),
    /// Its mode is played elsewhere.
    Elsewhere(String),
}

#[test]
fn behaviour_cases_pass() {
    let file = std::env::var("ABIDE_CASES");
    let files = file.as_ref().map_or_else(|_| FILES.to_vec(), |file| vec![file.as_str()]);
    let picked = std::env::var("ABIDE_CASE").unwrap_or_default();
    let cases: Vec<Case> = files.into_iter().flat_map(read).filter(|case| case.id.contains(&picked)).collect();
    assert!(!cases.is_empty(), "no such case");
    // Limiter cases measure time and CPU: they have the machine to themselves.
    let (limits, calls): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|case| case.mode == "limiter");
    let mut results: Vec<(String, Result)> = limits.iter().map(|case| (case.id.clone(), limiter_case(case))).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (stores, calls): (Vec<Case>, Vec<Case>) = calls.into_iter().partition(|case| case.mode == "redis");
    results.extend(runtime.block_on(all(stores, Door::Client, STORES_AT_ONCE)));
    results.extend(runtime.block_on(all(calls, Door::Client, AT_ONCE)));
    judge(results);
}

#[test]
fn behaviour_cases_pass_through_every_adapter() {
    let picked = std::env::var("ABIDE_CASE").unwrap_or_default();
    let cases = FILES.into_iter().flat_map(read).filter(|case| case.id.contains(&picked) && case.mode == "call");
    let cases: Vec<Case> = cases.collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for door in Door::ADAPTERS {
        let expressed = |case: &&Case| case.body::<CallCase>().is_ok_and(|case| door.expresses(&case));
        let cases: Vec<Case> = cases.iter().filter(expressed).cloned().collect();
        println!("{door:?}: {} cases", cases.len());
        judge(runtime.block_on(all(cases, door, AT_ONCE)));
    }
}

fn judge(results: Vec<(String, Result)>) {
    let failed = report(&results);
    assert_eq!(failed, 0, "cases failed");
}

fn read(file: &str) -> Vec<Case> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().filter(|line| !line.trim().is_empty()).map(|line| Case::parse(line).unwrap()).collect()
}

fn limiter_case(case: &Case) -> Result {
    if let Some(missing) = missing(case) {
        return missing;
    }
    judged(case.body().map(|body| limiter::run(&body)))
}

async fn all(cases: Vec<Case>, door: Door, at_once: usize) -> Vec<(String, Result)> {
    let slots = Arc::new(Semaphore::new(at_once));
    let mut running = JoinSet::new();
    for case in cases {
        let slots = Arc::clone(&slots);
        running.spawn(async move {
            let result = Box::pin(one(&case, door, slots)).await;
            (case.id, result)
        });
    }
    running.join_all().await
}

async fn one(case: &Case, door: Door, slots: Arc<Semaphore>) -> Result {
    if let Some(missing) = missing(case) {
        return missing;
    }
    match case.mode.as_str() {
        "call" => match case.body() {
            Ok(body) => judged(Ok(call::run(body, door, slots).await)),
            Err(problem) => judged(Err(problem)),
        },
        "multi" => match case.body() {
            Ok(body) => {
                let _slot = slots.acquire_owned().await;
                judged(Ok(multi::run(body).await))
            }
            Err(problem) => judged(Err(problem)),
        },
        #[cfg(feature = "cli")]
        "bulk" => match case.body() {
            Ok(body) => {
                let _slot = slots.acquire_owned().await;
                judged(Ok(Box::pin(bulk::run(body)).await))
            }
            Err(problem) => judged(Err(problem)),
        },
        #[cfg(feature = "cli")]
        "redis" if crate::support::redis::skip() => Result::Elsewhere(case.mode.clone()),
        #[cfg(feature = "cli")]
        "redis" => match case.body() {
            Ok(body) => {
                let _slot = slots.acquire_owned().await;
                judged(Ok(Box::pin(redis::run(body)).await))
            }
            Err(problem) => judged(Err(problem)),
        },
        // They need the command line, and the fleet.
        #[cfg(not(feature = "cli"))]
        "bulk" | "redis" => Result::Elsewhere(case.mode.clone()),
        other => Result::Failed(vec![format!("no mode {other:?}")]),
    }
}

fn missing(case: &Case) -> Option<Result> {
    let missing: Vec<String> =
        case.requires.iter().filter(|feature| !FEATURES.contains(&feature.as_str())).cloned().collect();
    (!missing.is_empty()).then_some(Result::Skipped(missing))
}

fn judged(failures: std::result::Result<Vec<String>, String>) -> Result {
    match failures {
        Ok(failures) if failures.is_empty() => Result::Passed,
        Ok(failures) => Result::Failed(failures),
        Err(problem) => Result::Failed(vec![format!("its form is not known: {problem}")]),
    }
}

/// Prints what failed and the sums; how many failed.
fn report(results: &[(String, Result)]) -> usize {
    let (mut passed, mut failed) = (0, 0);
    let mut elsewhere: BTreeMap<&str, usize> = BTreeMap::new();
    for (id, result) in results {
        match result {
            Result::Passed => passed += 1,
            Result::Skipped(missing) => println!("{id} skipped: it requires {missing:?}"),
            Result::Elsewhere(mode) => *elsewhere.entry(mode).or_default() += 1,
            Result::Failed(why) => {
                failed += 1;
                println!("{id} failed:");
                why.iter().for_each(|why| println!("    {why}"));
            }
        }
    }
    println!("{passed} of {} cases pass", passed + failed);
    for (mode, count) in elsewhere {
        println!("{count} of mode {mode} not run here");
    }
    failed
}
