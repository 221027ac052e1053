//! `Bulk` as a library, on a network in memory and the paused clock.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use abide::{
    Client, ClientBuilder, Policy, Quota,
    bulk::{Bulk, End, Job, Outcome},
    http::{self, Method},
    reqwest::{Request, Response, Url},
};
use futures_util::{StreamExt, stream};

use crate::support::clock;

type Log = Arc<Mutex<BTreeMap<String, Vec<Option<String>>>>>;

/// A client whose server takes so long and answers by path; and what it saw: keys by path.
fn client(latency: u64, status: impl Fn(&str) -> u16 + Send + Sync + 'static) -> (ClientBuilder, Log) {
    let log = Log::default();
    let (seen, status) = (Arc::clone(&log), Arc::new(status));
    let builder = Client::builder().transport(move |request: Request| {
        let path = request.url().path().to_owned();
        let key = request.headers().get("idempotency-key").map(|key| key.to_str().unwrap().to_owned());
        seen.lock().unwrap().entry(path.clone()).or_default().push(key);
        let status = status(&path);
        async move {
            clock::sleep(clock::ms(latency)).await;
            Ok(Response::from(http::Response::builder().status(status).body("done")?))
        }
    });
    (builder, log)
}

fn jobs(rows: u32) -> impl Iterator<Item = Job> {
    (0..rows).map(|n| {
        let url = Url::parse(&format!("http://h.example/{n}")).unwrap();
        Job::new(format!("row-{n}"), Request::new(Method::POST, url))
    })
}

fn journal() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("abide-{:016x}.journal", rand::random::<u64>()))
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_goes_on_where_it_was() {
    let path = journal();
    let (builder, log) = client(10, |_| 200);
    let client = builder.build().unwrap();
    let bulk = || Bulk::new(client.clone()).concurrency(4).auto_idempotency_keys().journal(&path).resume();
    let first: Vec<Outcome> = bulk().run(stream::iter(jobs(100))).take(40).collect().await;
    let mut run = bulk().run(stream::iter(jobs(100)));
    let rest: Vec<Outcome> = run.by_ref().collect().await;
    assert_eq!((run.end(), run.error().is_none()), (Some(End::Complete), true));
    // The last one that was given out may not have been dealt with.
    assert!((60..=64).contains(&rest.len()), "{}", rest.len());
    assert!(first.iter().chain(&rest).all(|outcome| outcome.is_ok() && outcome.body == "done"));
    {
        let log = log.lock().unwrap();
        assert_eq!(log.len(), 100);
        assert!(log.values().all(|keys| keys.len() <= 2 && keys.iter().all(|key| key.is_some() && *key == keys[0])));
    }
    // One that is over holds nothing.
    let mut last = bulk().run(stream::iter(jobs(100)));
    assert_eq!((last.by_ref().count().await, last.end()), (0, Some(End::Complete)));
    std::fs::remove_file(path).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_row_is_given_up_when_its_host_accepts_nothing_for_ten_minutes() {
    let (builder, log) = client(10, |_| 429);
    let client = builder.policy(Policy::default().no_budget()).build().unwrap();
    let started = clock::now();
    let outcomes: Vec<Outcome> = Bulk::new(client).auto_idempotency_keys().run(stream::iter(jobs(3))).collect().await;
    let took = clock::now() - started;
    assert!((600..1200).contains(&took.as_secs()), "{took:?}");
    for outcome in &outcomes {
        let error = outcome.error.as_ref().unwrap();
        assert_eq!((outcome.status.unwrap().as_u16(), error.kind, outcome.is_ok()), (429, "throttled", false));
        assert!(outcome.attempts > 4 && outcome.throttled == outcome.attempts && outcome.history.len() <= 20);
    }
    let log = log.lock().unwrap();
    assert!(log.values().all(|keys| keys.iter().all(|key| *key == keys[0])));
}

#[tokio::test(start_paused = true)]
async fn a_slow_limit_is_waited_for_however_long() {
    let (builder, _) = client(1, |_| 200);
    let client = builder.quota(Quota::per_hour(4).burst(1)).build().unwrap();
    let started = clock::now();
    let mut run = Bulk::new(client).run(stream::iter(jobs(5)));
    assert!(run.by_ref().all(async |outcome| outcome.is_ok()).await);
    let took = clock::now() - started;
    assert!((3600..3700).contains(&took.as_secs()), "{took:?}");
    assert!(run.summary().waited_s > 3500.0, "{}", run.summary());
}

#[tokio::test(start_paused = true)]
async fn draining_lets_come_back_what_is_on_the_wire() {
    let (builder, log) = client(100, |_| 200);
    let mut run = Bulk::new(builder.build().unwrap()).concurrency(3).run(stream::iter(jobs(1000)));
    let stopper = run.stopper();
    assert!(run.next().await.is_some());
    let sent = log.lock().unwrap().len();
    stopper.drain();
    let rest = run.by_ref().count().await;
    assert_eq!((run.end(), log.lock().unwrap().len()), (Some(End::Interrupted), sent));
    assert_eq!(rest + 1, sent);
}

#[tokio::test(start_paused = true)]
async fn memory_and_wire_are_bounded() {
    let (flying, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (now, high) = (Arc::clone(&flying), Arc::clone(&most));
    let builder = Client::builder().transport(move |_| {
        high.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let now = Arc::clone(&now);
        async move {
            clock::sleep(Duration::from_millis(50)).await;
            now.fetch_sub(1, Ordering::Relaxed);
            Ok(Response::from(http::Response::new("")))
        }
    });
    let taken = Arc::new(AtomicU32::new(0));
    let reading = Arc::clone(&taken);
    let jobs = stream::iter(jobs(5000)).inspect(move |_| {
        reading.fetch_add(1, Ordering::Relaxed);
    });
    let mut run = Bulk::new(builder.build().unwrap()).concurrency(7).run(jobs);
    let mut over = 0;
    while run.next().await.is_some() {
        over += 1;
        assert!(taken.load(Ordering::Relaxed) - over <= 1024);
    }
    assert_eq!((over, most.load(Ordering::Relaxed)), (5000, 7));
}

#[tokio::test]
async fn a_run_that_cannot_start_says_why() {
    let (builder, log) = client(1, |_| 200);
    let client = builder.build().unwrap();
    let mut run = Bulk::new(client.clone()).concurrency(0).run(stream::iter(jobs(3)));
    assert!(run.next().await.is_none());
    assert!(run.error().unwrap().to_string().contains("concurrency must be at least 1"));
    let mut run = Bulk::new(client).journal("/nowhere/journal").run(stream::iter(jobs(3)));
    assert!(run.next().await.is_none());
    assert_eq!((run.end(), log.lock().unwrap().len()), (Some(End::Failed), 0));
}
