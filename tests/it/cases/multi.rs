//! Cases of several calls on one client.

use std::collections::{BTreeMap, HashSet, VecDeque};

use tokio::{task::JoinSet, time::Instant};

use super::{
    call::{ended, speaks_http2},
    case::{CallsSpec, MultiCase, MultiExpect, PerCall, Range, Server, Window, Windows},
    check::SLACK_MS,
    client,
    outcome::{self, Outcome},
};
use crate::support::{
    clock,
    net::{Network, Setup},
    record::{Kind, Scripts, Seen, TAG},
    script::{Entry, unrolled},
};

/// A call that is over.
struct Done {
    call: usize,
    outcome: Outcome,
}

/// All that is wrong with a case of mode `multi`.
pub(crate) async fn run(case: MultiCase) -> Vec<String> {
    match play(&case).await {
        Ok(failures) => failures,
        Err(problem) => vec![problem],
    }
}

async fn play(case: &MultiCase) -> Result<Vec<String>, String> {
    if case.clock.real {
        return Err("clock.real has no meaning in calls".into());
    }
    let (scripts, entries) = scripts(case)?;
    entries.iter().try_for_each(Entry::check)?;
    let setup = Setup { http2: speaks_http2(&case.config)?, skew_ms: case.clock.server_skew_ms };
    let network = Network::start(scripts, &entries, setup).await;
    let client = client::client(&network, &case.config)?;
    for _ in 0..case.warmup {
        client.get(network.warm_up_url()).send().await.map_err(|error| format!("warm-up: {error}"))?;
    }
    let read_body = case.config.read_body.unwrap_or_default();
    let started = clock::now();
    let mut calls = JoinSet::new();
    for (call, spec) in each_call(&case.calls).enumerate() {
        let url = network.url_on(spec.host.as_deref().unwrap_or("a"));
        let request = client::request(&client, &url, &spec.request, read_body, call)?;
        let (at, cancel) = (started + clock::ms(spec.at_ms), spec.cancel_at_ms);
        calls.spawn(async move {
            clock::sleep_until(at).await;
            Done { call, outcome: Box::pin(outcome::outcome(request.send(), cancel)).await }
        });
    }
    let done = calls.join_all().await;
    clock::sleep(clock::ms(case.expect.observe_ms.unwrap_or(20))).await;
    let played = Played { case, done, seen: network.seen(), started };
    let mut failures = network.problems();
    failures.extend(played.counts());
    failures.extend(played.times());
    Ok(failures)
}

fn each_call(specs: &[CallsSpec]) -> impl Iterator<Item = &CallsSpec> {
    specs.iter().flat_map(|spec| std::iter::repeat_n(spec, spec.count))
}

/// The scripts and all entries in them.
fn scripts(case: &MultiCase) -> Result<(Scripts, Vec<Entry>), String> {
    let calls = each_call(&case.calls).count();
    let queue = |entries: &[Entry]| VecDeque::from(unrolled(entries));
    let (shared, own) = match &case.server {
        Server::Shared(entries) => (entries.clone(), case.per_call.clone()),
        Server::Own(_) if case.per_call.is_some() => return Err("two scripts for each call".into()),
        Server::Own(own) => (Vec::new(), Some(own.per_call.clone())),
    };
    let (scripts, entries) = match own {
        None | Some(PerCall::ServerIs(false)) => return Ok((Scripts::InOrderByHost(queue(&shared)), shared)),
        Some(PerCall::ServerIs(true)) => (vec![queue(&shared); calls], shared),
        Some(_) if !shared.is_empty() => return Err("a shared script and one for each call".into()),
        Some(PerCall::Same(entries)) => (vec![queue(&entries); calls], entries),
        Some(PerCall::Each(each)) => (each.iter().map(|entries| queue(entries)).collect(), each.concat()),
    };
    Ok((Scripts::PerCall(scripts), entries))
}

struct Played<'a> {
    case: &'a MultiCase,
    done: Vec<Done>,
    seen: Vec<Seen>,
    started: Instant,
}

impl Played<'_> {
    fn expect(&self) -> &MultiExpect {
        &self.case.expect
    }

    /// Attempts, outcomes, keys, connections.
    fn counts(&self) -> Vec<String> {
        let expect = self.expect();
        let mut failures = Vec::new();
        let mut count = |what: &str, wanted: Option<Range>, got: usize| {
            if wanted.is_some_and(|wanted| !wanted.holds(got)) {
                failures.push(format!("{got} {what}, expected {wanted:?}"));
            }
        };
        count("attempts", expect.attempts, self.seen.len());
        let keys = self.seen.iter().filter_map(|seen| seen.request.header("idempotency-key"));
        count("keys", expect.distinct_keys, keys.collect::<HashSet<_>>().len());
        let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
        for done in &self.done {
            *outcomes.entry(&done.outcome.what).or_default() += 1;
        }
        for (what, wanted) in &expect.outcomes {
            count(what, Some(*wanted), outcomes.get(what.as_str()).copied().unwrap_or(0));
        }
        for done in &self.done {
            let Outcome { what, stop, story, .. } = &done.outcome;
            if !expect.outcomes.is_empty() && !expect.outcomes.contains_key(what) {
                failures.push(format!("call {} ended with {what} (stop {stop}): {story}", done.call));
            }
        }
        let requests = self.seen.iter().filter(|seen| seen.kind == Kind::Request);
        let connections: HashSet<u64> = requests.map(|seen| seen.connection).collect();
        if expect.connections_max.is_some_and(|max| connections.len() > max) {
            failures.push(format!("{} connections", connections.len()));
        }
        failures
    }

    /// Spans, windows, requests in flight.
    fn times(&self) -> Vec<String> {
        let expect = self.expect();
        let first = self.seen.iter().map(|seen| seen.arrived).min().unwrap_or(self.started);
        let arrivals: Vec<f64> = self.seen.iter().map(|seen| clock::as_ms(seen.arrived - first)).collect();
        let mut failures = Vec::new();
        let mut between = |what: &str, min: Option<f64>, got: f64, max: Option<f64>| {
            if min.is_some_and(|min| got < min) || max.is_some_and(|max| got > max + SLACK_MS) {
                failures.push(format!("{what} is {got:.1} ms, expected {min:?} to {max:?}"));
            }
        };
        let span = arrivals.iter().copied().fold(0.0, f64::max);
        between("the span of requests", expect.min_span_ms, span, expect.max_span_ms);
        let last = self.done.iter().map(|done| ended(&done.outcome)).max().unwrap_or(first);
        between("the total", expect.min_total_ms, clock::as_ms(last - first), expect.max_total_ms);
        for (from, to) in &expect.no_request_between_ms {
            for at in arrivals.iter().filter(|at| (*from..*to).contains(*at)) {
                failures.push(format!("a request at {at:.1} ms, none was to come from {from} to {to}"));
            }
        }
        let windows = match &expect.max_per_window {
            None => &[],
            Some(Windows::One(window)) => std::slice::from_ref(window),
            Some(Windows::Many(windows)) => windows.as_slice(),
        };
        failures.extend(windows.iter().filter_map(|window| most_in_window(&arrivals, *window)));
        let most = self.most_in_flight();
        if expect.max_in_flight.is_some_and(|max| most > max) {
            failures.push(format!("{most} requests in flight"));
        }
        failures
    }

    /// From arrival to the end of the answer, or until the client gave up.
    fn most_in_flight(&self) -> usize {
        let mut changes = Vec::new();
        for seen in self.seen.iter().filter(|seen| seen.kind == Kind::Request) {
            let timeout = self.case.config.attempt_timeout_ms.map(|timeout| seen.arrived + clock::ms(timeout));
            let call: Option<usize> = seen.request.header(TAG).and_then(|tag| tag.parse().ok());
            let over = self.done.iter().find(|done| Some(done.call) == call).map(|done| ended(&done.outcome));
            let end = [timeout, over, seen.ended].into_iter().flatten().min();
            changes.push((seen.arrived, 1));
            changes.extend(end.map(|end| (end.max(seen.arrived), -1)));
        }
        // An end comes before an arrival of the same instant.
        changes.sort_unstable();
        let mut now = 0_i64;
        let levels = changes.into_iter().map(|(_, change)| {
            now += change;
            now
        });
        usize::try_from(levels.max().unwrap_or(0)).unwrap_or(0)
    }
}

/// What is wrong with the fullest window, sliding over the arrivals.
pub(crate) fn most_in_window(arrivals: &[f64], window: Window) -> Option<String> {
    let mut sorted = arrivals.to_vec();
    sorted.sort_by(f64::total_cmp);
    let from = |start: f64| sorted.iter().filter(|at| (start..start + window.window_ms).contains(*at)).count();
    let most = sorted.iter().map(|start| from(*start)).max().unwrap_or(0);
    let (min, max) = window.n.bounds();
    (most < min || most > max).then(|| format!("{most} requests in {} ms, expected {:?}", window.window_ms, window.n))
}
