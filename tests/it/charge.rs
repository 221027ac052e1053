//! Charges under faults of all kinds: none is made twice, and what the history says of each is true.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use abide::{
    Backoff, Client, Error, History, Limiter, NonIdempotent, Policy, Quota, ResponseExt, SentState,
    reqwest::Response,
    testing::{Dialect, Faults, Server},
};

use crate::support::{clock::ms, is_long};

const TASKS: u64 = 64;

/// 10,000 when there is time, enough for every fault to strike otherwise.
fn calls() -> u64 {
    if is_long() { 10_000 } else { 1_500 }
}

/// Faults of all kinds on a fifth of the requests, and refusals when it is busy.
async fn server() -> Server {
    Server::builder().faults(Faults::rate(0.2)).concurrency(16).dialect(Dialect::Silent).start().await.unwrap()
}

/// Refuses all but the first request.
async fn full() -> Server {
    let day = Quota::window(1, Duration::from_secs(86_400));
    Server::builder().limit(day).dialect(Dialect::Silent).start().await.unwrap()
}

fn client() -> Client {
    let policy = Policy::default()
        .no_budget()
        .backoff(Backoff::full_jitter(ms(1), ms(20)))
        .max_attempts(3)
        .attempt_timeout(ms(250));
    // A rate learned from the refusals would only make it slow.
    Client::builder().policy(policy).limiter(Limiter::builder().learn(false).build().unwrap()).build().unwrap()
}

/// Makes `calls()` calls from 64 tasks.
async fn from_all_tasks<F: Future<Output = ()> + Send>(call: impl Fn(u64) -> F + Clone + Send + 'static) {
    let next = Arc::new(AtomicU64::new(0));
    let tasks = (0..TASKS).map(|_| {
        let (next, call) = (Arc::clone(&next), call.clone());
        tokio::spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= calls() {
                    return;
                }
                call(number).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

#[derive(Default)]
struct Ended {
    keys: HashSet<String>,
    good: bool,
    untouched: bool,
    attempts: usize,
}

fn history(result: &Result<Response, Error>) -> &History {
    match result {
        Ok(response) => response.history(),
        Err(error) => error.history(),
    }
}

/// By its history no attempt can have been executed.
fn is_untouched(history: &History) -> bool {
    history.attempts().iter().all(|attempt| {
        attempt.sent() == SentState::NotSent || attempt.status().is_some_and(|status| status.as_u16() == 429)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keyed_charge_is_made_at_most_once() {
    let (server, full) = (server().await, full().await);
    let (client, ended) = (client(), Arc::new(Mutex::new(HashMap::<u64, Ended>::new())));
    let (urls, log) = ([server.url(), full.url()].map(|url| format!("{url}/charge")), Arc::clone(&ended));
    from_all_tasks(move |number| {
        let (client, url, log, seen) =
            (client.clone(), urls[usize::from(number % 8 == 3)].clone(), Arc::clone(&log), Arc::clone(&log));
        async move {
            let request = client.post(url).body(format!("charge {number}")).on_attempt(move |request, _| {
                let key = request.headers()["idempotency-key"].to_str().unwrap().to_owned();
                seen.lock().unwrap().entry(number).or_default().keys.insert(key);
            });
            let request = match number % 4 {
                0 => request.auto_idempotency_key(),
                // Its body is part of the attempt, so that a broken one is sent again.
                1 => request.auto_idempotency_key().buffered(1024),
                2 => request.idempotency_key(format!("own-{number}")).deadline(ms(number % 50)),
                _ => request.idempotency_key(format!("own-{number}")),
            };
            let result = request.send().await;
            let mut log = log.lock().unwrap();
            let entry = log.entry(number).or_default();
            entry.good = result.as_ref().is_ok_and(|response| response.status().is_success());
            entry.untouched = is_untouched(history(&result));
            entry.attempts = history(&result).attempts().len();
        }
    })
    .await;
    let (charges, there, ended) = (server.charges(), full.charges(), ended.lock().unwrap());
    assert_eq!((charges.bare + there.bare, ended.len() as u64), (0, calls()));
    let mut owned = HashSet::new();
    for (number, call) in ended.iter() {
        let executions: u32 = call.keys.iter().map(|key| charges.of(key) + there.of(key)).sum();
        assert!(call.keys.len() <= 1, "call {number} has one key for all attempts: {:?}", call.keys);
        assert!(call.keys.iter().all(|key| owned.insert(key.clone())), "call {number} has a key of its own");
        assert!(executions <= 1, "call {number}: {executions} executions");
        assert!(!call.good || executions == 1, "call {number} succeeded: {executions} executions");
        assert!(call.good || !call.untouched || executions == 0, "call {number} was said to be untouched");
    }
    assert!(
        charges.keyed.keys().chain(there.keyed.keys()).all(|key| owned.contains(key)),
        "nothing was executed under another key"
    );
    // None of it is empty talk: faults and refusals struck, calls were repeated, some failed, some were not sent.
    let count = |what: fn(&Ended) -> bool| ended.values().filter(|call| what(call)).count() as u64;
    assert!(server.stats().faults > calls() / 20 && full.stats().refused > calls() / 20, "{}", server.stats());
    assert!(count(|call| call.attempts > 1) > calls() / 20 && count(|call| call.good) > calls() / 4);
    assert!(count(|call| !call.good) > 0 && count(|call| call.untouched) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bare_charge_is_made_at_most_once() {
    let server = server().await;
    let (client, good, untouched) = (client(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (url, counts) = (format!("{}/charge", server.url()), (Arc::clone(&good), Arc::clone(&untouched)));
    from_all_tasks(move |number| {
        let (client, url, counts) = (client.clone(), url.clone(), counts.clone());
        async move {
            let mode = if number % 2 == 0 { NonIdempotent::Never } else { NonIdempotent::WhenUnsent };
            let policy = Policy::default().attempt_timeout(ms(250)).retry_non_idempotent(mode).no_budget();
            let result = client.post(url).body(format!("charge {number}")).policy(policy).send().await;
            if result.as_ref().is_ok_and(|response| response.status().is_success()) {
                counts.0.fetch_add(1, Ordering::Relaxed);
            } else if is_untouched(history(&result)) {
                counts.1.fetch_add(1, Ordering::Relaxed);
            }
            let sent = history(&result).attempts().iter().filter(|attempt| attempt.sent() != SentState::NotSent);
            assert!(sent.count() <= 1, "call {number} was sent twice");
        }
    })
    .await;
    let (charges, good, untouched) =
        (server.charges(), good.load(Ordering::Relaxed), untouched.load(Ordering::Relaxed));
    assert_eq!((charges.most_bare, charges.keyed.len()), (1, 0));
    assert!((good..=calls() - untouched).contains(&charges.bare), "{good} to {} - {untouched}", calls());
    assert!(server.stats().requests <= calls() && server.stats().faults > calls() / 20, "{}", server.stats());
    assert!(good > calls() / 4 && charges.bare > good, "some were executed and not answered");
}

#[tokio::test]
async fn a_charge_that_reaches_nobody_says_so() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let policy = Policy::default().backoff(Backoff::none()).retry_non_idempotent(NonIdempotent::WhenUnsent);
    let client = Client::builder().policy(policy.no_budget()).build().unwrap();
    let error =
        client.post(format!("http://{closed}/charge")).deadline(Duration::from_secs(5)).send().await.unwrap_err();
    assert!(error.is_connect() && is_untouched(error.history()) && error.sent() == SentState::NotSent);
    assert_eq!(error.history().attempts().len(), 4);
}
