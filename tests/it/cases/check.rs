//! The expectations of a call, one by one.

use std::collections::HashSet;

use super::{
    call::Trial,
    case::{AttemptExpect, CallCase, CallExpect, HistoryExpect, KeySpec},
    client::{body_of, callers_key},
    outcome::{AttemptTold, Outcome, cause_word, error_fits, reason_fits},
};
use crate::support::{
    clock,
    record::{Kind, Seen},
    script::Fault,
};

/// What is added to maxima and totals.
pub(crate) const SLACK_MS: f64 = 250.0;

/// A client's timer starts before the request arrives.
const STALL_MS: f64 = 100.0;

/// The header of idempotency keys.
const KEY: &str = "idempotency-key";

/// One wait between two attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) ms: f64,
    /// It began when the client gave up.
    pub(crate) after_stall: bool,
}

/// The waits from the end of each entry to the next attempt.
pub(crate) fn waits(seen: &[Seen], attempt_timeout_ms: Option<u64>) -> Vec<Wait> {
    let wait = |pair: &[Seen]| {
        let gave_up = attempt_timeout_ms.map(|timeout| pair[0].arrived + clock::ms(timeout));
        let ended = pair[0].ended.unwrap_or(pair[1].arrived);
        let after_stall = pair[0].entry.stalls() || gave_up.is_some_and(|gave_up| gave_up < ended);
        let from = if after_stall { gave_up.unwrap_or(ended) } else { ended };
        let ms = if pair[1].arrived >= from {
            clock::as_ms(pair[1].arrived - from)
        } else {
            -clock::as_ms(from - pair[1].arrived)
        };
        Wait { ms, after_stall }
    };
    seen.windows(2).map(wait).collect()
}

/// What is wrong with one trial.
pub(crate) fn trial(case: &CallCase, trial: &Trial) -> Vec<String> {
    let mut failures = trial.problems.clone();
    let expect = &case.expect;
    if trial.seen.len() != expect.attempts {
        failures.push(format!("{} attempts, expected {}", trial.seen.len(), expect.attempts));
    }
    failures.extend(outcome(expect, &trial.outcome));
    failures.extend(gaps(expect, &waits(&trial.seen, case.config.attempt_timeout_ms)));
    if expect.min_total_ms.is_some_and(|min| trial.total_ms < min) {
        failures.push(format!("over after {:.1} ms, before {:?}", trial.total_ms, expect.min_total_ms));
    }
    if expect.max_total_ms.is_some_and(|max| trial.total_ms > max + SLACK_MS) {
        failures.push(format!("over after {:.1} ms, not by {:?}", trial.total_ms, expect.max_total_ms));
    }
    failures.extend(requests(case, &trial.seen));
    failures.extend(keys(case, &trial.seen));
    failures.extend(answer(expect, trial));
    failures
}

fn outcome(expect: &CallExpect, outcome: &Outcome) -> Vec<String> {
    let mut failures = Vec::new();
    let Outcome { what, stop, causes, story, .. } = outcome;
    if *what != expect.outcome {
        failures.push(format!("{what} (stop {stop}), expected {}: {story}", expect.outcome));
    }
    if let Some(reason) = &expect.reason {
        match reason_fits(reason, stop) {
            None => failures.push(format!("no reason {reason:?} is known")),
            Some(false) => failures.push(format!("stop {stop}, expected {reason}")),
            Some(true) => {}
        }
    }
    if let Some(cause) = &expect.cause {
        match cause_word(cause) {
            None => failures.push(format!("no cause {cause:?} is known")),
            Some(word) if !causes.contains(&word) => {
                failures.push(format!("causes {causes:?}, expected {cause}: {story}"));
            }
            Some(_) => {}
        }
    }
    failures
}

fn gaps(expect: &CallExpect, waits: &[Wait]) -> Vec<String> {
    let mut failures = Vec::new();
    for (name, bounds) in [("min_wait_ms", &expect.min_wait_ms), ("max_wait_ms", &expect.max_wait_ms)] {
        let Some(bounds) = bounds else { continue };
        if bounds.len() != waits.len() {
            failures.push(format!("{} waits, {name} has {}", waits.len(), bounds.len()));
        }
        for (number, (bound, wait)) in bounds.iter().zip(waits).enumerate() {
            let min = bound - if wait.after_stall { STALL_MS } else { 0.0 };
            let broken = if name == "min_wait_ms" { wait.ms < min } else { wait.ms > bound + SLACK_MS };
            if broken {
                failures.push(format!("wait {number} is {:.3} ms, {name} {bound}", wait.ms));
            }
        }
    }
    failures
}

fn requests(case: &CallCase, seen: &[Seen]) -> Vec<String> {
    let expect = &case.expect;
    let mut failures = Vec::new();
    let requests: Vec<&Seen> = seen.iter().filter(|seen| seen.kind == Kind::Request).collect();
    if let Some(methods) = &expect.methods {
        let sent: Vec<&str> = requests.iter().map(|seen| seen.request.method.as_str()).collect();
        if sent != *methods {
            failures.push(format!("methods {sent:?}, expected {methods:?}"));
        }
    }
    match expect.bodies.as_deref() {
        None => {}
        Some("same") => {
            let body = body_of(&case.request);
            // A stream that was refused at its head had no body yet.
            let whole = |seen: &&&Seen| seen.entry.fault != Some(Fault::H2RefusedStream) || seen.entry.after_body;
            for seen in requests.iter().filter(whole).filter(|seen| seen.request.body != body) {
                let sent = seen.request.body.len();
                failures.push(format!("a body of {sent} bytes that is not the caller's of {}", body.len()));
            }
        }
        Some(other) => failures.push(format!("bodies {other:?} has no meaning")),
    }
    let at = |index: &str| index.parse::<usize>().ok().and_then(|index| seen.get(index));
    for (index, fields) in &expect.headers_seen {
        for (name, value) in fields {
            let sent = at(index).and_then(|seen| seen.request.header(name));
            if sent != Some(value.as_str()) {
                failures.push(format!("request {index}: {name} is {sent:?}, expected {value:?}"));
            }
        }
    }
    for (index, names) in &expect.headers_absent {
        match at(index) {
            None => failures.push(format!("no request {index}")),
            Some(seen) => failures.extend(
                names
                    .iter()
                    .filter(|name| seen.request.header(name).is_some())
                    .map(|name| format!("request {index} carries {name}")),
            ),
        }
    }
    let connections: HashSet<u64> = requests.iter().map(|seen| seen.connection).collect();
    if expect.connections_max.is_some_and(|max| connections.len() > max) {
        failures.push(format!("{} connections", connections.len()));
    }
    failures
}

fn keys(case: &CallCase, seen: &[Seen]) -> Vec<String> {
    let mut failures = Vec::new();
    let sent: HashSet<&str> = seen.iter().filter_map(|seen| seen.request.header(KEY)).collect();
    if case.expect.distinct_keys.is_some_and(|wanted| sent.len() != wanted) {
        failures.push(format!("keys {sent:?}, expected {:?}", case.expect.distinct_keys));
    }
    if let Some(wanted) = case.expect.key_from_caller {
        let callers = !sent.is_empty() && sent.iter().all(|key| *key == callers_key(0));
        if callers != wanted {
            failures.push(format!("keys {sent:?}, from the caller: {wanted}"));
        }
    }
    // Every attempt on the first origin carries the key.
    if !matches!(case.request.idempotency_key, KeySpec::Caller(false)) {
        let own = seen.iter().take_while(|seen| seen.host == "a").filter(|seen| seen.kind == Kind::Request);
        let mut own = own.filter(|seen| seen.request.method == case.request.method);
        if own.any(|seen| seen.request.header(KEY).is_none()) {
            failures.push("an attempt without its key".into());
        }
    }
    failures
}

fn answer(expect: &CallExpect, trial: &Trial) -> Vec<String> {
    let Trial { outcome, seen, .. } = trial;
    let mut failures = Vec::new();
    if let Some(body) = &expect.final_body {
        if outcome.body != body.as_bytes() {
            failures.push(format!("body {:?}, expected {body:?}", String::from_utf8_lossy(&outcome.body)));
        }
    } else if expect.outcome.starts_with("status:") && outcome.what == expect.outcome {
        // The response with its body reaches the caller.
        let last = seen.iter().rev().find(|seen| seen.kind == Kind::Request);
        let length = last.filter(|seen| seen.request.method != "HEAD").map_or(0, |seen| seen.entry.full_body().len());
        if outcome.body.len() != length {
            failures.push(format!("{} bytes of the body, {length} were sent", outcome.body.len()));
        }
    }
    for (name, value) in expect.final_headers.list() {
        let held = outcome.headers.get(&name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        if held.as_deref() != Some(value.as_str()) {
            failures.push(format!("final header {name} is {held:?}, expected {value:?}"));
        }
    }
    if let Some(wanted) = expect.reported_wait_ms {
        let dated = seen.last().is_some_and(|seen| seen.entry.headers.iter().any(|(_, value)| value.contains("{{")));
        let early = if dated { 1000.0 } else { 1.0 };
        let fits = |asked: f64| wanted - early <= asked && asked <= wanted + 1.0;
        if !outcome.asked_ms.is_some_and(fits) {
            failures.push(format!("asked wait {:?} ms, expected {wanted}", outcome.asked_ms));
        }
    }
    if let Some(history) = &expect.history {
        failures.extend(told(history, &outcome.attempts));
    }
    failures
}

fn told(expect: &HistoryExpect, attempts: &[AttemptTold]) -> Option<String> {
    let wrong = || Some(format!("history {attempts:?}, expected {expect:?}"));
    let each = match expect {
        HistoryExpect::Length(length) => return if *length == attempts.len() { None } else { wrong() },
        HistoryExpect::Each(each) => each,
    };
    let fits = |(wanted, told): (&AttemptExpect, &AttemptTold)| {
        let (status, error) = match wanted {
            AttemptExpect::Status(status) => (Some(*status), None),
            AttemptExpect::Text(text) => match text.strip_prefix("status:").unwrap_or(text).parse() {
                Ok(status) => (Some(status), None),
                Err(_) => (None, Some(text.as_str())),
            },
            AttemptExpect::Object(fields) => (fields.status, fields.error.as_deref()),
        };
        let error_told = |error: &str| told.error.as_deref().is_some_and(|told| error_fits(error, told));
        status.is_none_or(|status| told.status == Some(status)) && error.is_none_or(error_told)
    };
    if each.len() == attempts.len() && each.iter().zip(attempts).all(fits) { None } else { wrong() }
}

/// What only all trials together show.
pub(crate) fn over_trials(expect: &CallExpect, trials: &[Vec<Wait>]) -> Vec<String> {
    let mut failures = Vec::new();
    let of = |gap: usize| trials.iter().filter_map(move |waits| waits.get(gap)).map(|wait| wait.ms);
    for (gap, min) in expect.spread_min_ms.iter().flatten().enumerate() {
        let (low, high) = of(gap).fold((f64::MAX, f64::MIN), |(low, high), ms| (low.min(ms), high.max(ms)));
        if high - low < *min {
            failures.push(format!("waits {gap} are {low:.1} to {high:.1} ms, a spread below {min}"));
        }
    }
    for (gap, below) in expect.some_wait_below_ms.iter().flatten().enumerate() {
        if !of(gap).any(|ms| ms < *below) {
            failures.push(format!("no wait {gap} is below {below} ms"));
        }
    }
    failures
}
