//! Calls through a proxy that breaks connections by a seed: whatever it does, the promises hold.
//!
//! `ABIDE_SEED=n` runs one seed, `ABIDE_SEEDS=n` runs so many. A seed fixes what each connection suffers; which call is
//! on which connection depends on timing too.

use std::{
    env,
    future::Future,
    panic,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use abide::{
    Backoff, Client, Error, History, Key, KeyBy, NonIdempotent, Policy, Quota, ResponseExt, SentState,
    reqwest::Response,
    testing::{Dialect, Server},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{runtime, sync::Semaphore, task::JoinSet};

use crate::support::{
    chaos::Proxy,
    clock::{self, ms},
};

const CALLS: u64 = 6;
const ATTEMPTS: u32 = 3;
const DEADLINE: Duration = Duration::from_millis(600);
/// On a machine that is busy with other tests.
const SLACK: Duration = Duration::from_secs(8);

fn seeds() -> Vec<u64> {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("ABIDE_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("ABIDE_SEEDS").unwrap_or(200)).collect(),
    }
}

/// In a process of its own, so that its panics and its tasks are counted alone.
#[test]
fn a_broken_network_breaks_no_promise() {
    const CHILD: &str = "ABIDE_CHAOS_CHILD";
    if env::var_os(CHILD).is_some() {
        return run();
    }
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "chaos::a_broken_network_breaks_no_promise", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    println!("{said}");
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

/// Panics on any thread; tokio takes those of tasks that nobody joins.
static PANICS: AtomicU64 = AtomicU64::new(0);

fn run() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(info);
    }));
    // Servers and proxies on one runtime, clients alone on the other.
    let far = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let near = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (seeds, turns, totals) = (seeds(), Arc::new(Semaphore::new(24)), Arc::new(Totals::default()));
    near.block_on(async {
        let mut running = JoinSet::new();
        for seed in seeds.clone() {
            let (turns, totals, far) = (Arc::clone(&turns), Arc::clone(&totals), far.handle().clone());
            running.spawn(async move {
                let _turn = turns.acquire_owned().await.unwrap();
                let trial = tokio::spawn(trial(seed, far, totals)).await;
                assert!(trial.is_ok(), "seed {seed} failed: ABIDE_SEED={seed} repeats it");
            });
        }
        running.join_all().await;
        // Connections end with their clients.
        let until = clock::now() + SLACK;
        let metrics = runtime::Handle::current().metrics();
        while metrics.num_alive_tasks() > 0 {
            assert!(clock::now() < until, "{} tasks are left", metrics.num_alive_tasks());
            clock::sleep(ms(10)).await;
        }
    });
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "panics");
    let [good, failed, retried, dropped, harms] = totals.read();
    println!(
        "{} seeds: {good} good, {failed} failed, {retried} retried, {dropped} dropped, {harms} harms",
        seeds.len()
    );
    if seeds.len() >= 100 {
        // It did strike, and most went on all the same.
        let calls = seeds.len() as u64 * CALLS;
        assert!(good > calls / 4 && failed > calls / 50 && retried > calls / 20 && dropped > calls / 50, "{totals:?}");
        assert!(harms > calls / 10, "{totals:?}");
    }
}

#[derive(Debug, Default)]
struct Totals {
    good: AtomicU64,
    failed: AtomicU64,
    retried: AtomicU64,
    dropped: AtomicU64,
    harms: AtomicU64,
}

impl Totals {
    fn read(&self) -> [u64; 5] {
        [&self.good, &self.failed, &self.retried, &self.dropped, &self.harms].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Runs on `far`, where its tasks stay.
async fn on<T: Send + 'static>(far: &runtime::Handle, make: impl Future<Output = T> + Send + 'static) -> T {
    far.spawn(make).await.unwrap()
}

fn client(seed: u64) -> Client {
    let http = reqwest::Client::builder().no_proxy().tls_certs_only([]).read_timeout(ms(300));
    let mode = if seed.is_multiple_of(2) { NonIdempotent::Never } else { NonIdempotent::WhenUnsent };
    let policy = Policy::default()
        .no_budget()
        .backoff(Backoff::full_jitter(ms(1), ms(20)))
        .max_attempts(ATTEMPTS)
        .attempt_timeout(ms(150))
        .deadline(DEADLINE)
        .retry_non_idempotent(mode);
    let builder = Client::builder().http(http).policy(policy).key_by(KeyBy::Client).seed(seed);
    match seed % 3 {
        0 => builder.max_in_flight(2).build().unwrap(),
        _ => builder.build().unwrap(),
    }
}

async fn trial(seed: u64, far: runtime::Handle, totals: Arc<Totals>) {
    let corrupts = seed % 4 == 3;
    let server = match seed % 5 {
        0 => Server::builder().limit(Quota::window(4, ms(200))).dialect(Dialect::Draft11),
        _ => Server::builder().dialect(Dialect::Silent),
    };
    let server = on(&far, server.record().start()).await.unwrap();
    let to = server.url().trim_start_matches("http://").parse().unwrap();
    let proxy = on(&far, async move { Proxy::start(to, seed, corrupts).await }).await;
    let (client, url) = (client(seed), format!("{}/charge", proxy.url()));
    let calls = (0..CALLS).map(|number| {
        let (client, url) = (client.clone(), url.clone());
        tokio::spawn(async move { call(&client, &url, seed, number).await })
    });
    let mut ended = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        ended.push(call.await.unwrap());
    }
    let snapshot = client.limiter().snapshot(&Key::from("")).unwrap();
    assert_eq!((snapshot.in_flight, snapshot.waiting), (0, 0), "every permit is back");
    // What is on its way still arrives.
    let until = clock::now() + SLACK;
    while server.stats().in_flight > 0 {
        assert!(clock::now() < until, "{}", server.stats());
        clock::sleep(ms(5)).await;
    }
    for (number, call) in (0..).zip(&ended) {
        check(&server, seed, number, call);
        totals.count(call);
    }
    let struck = proxy.struck();
    let harms = [&struck.cuts, &struck.resets, &struck.stalls, &struck.corrupted];
    totals.harms.fetch_add(harms.iter().map(|count| count.load(Ordering::Relaxed)).sum(), Ordering::Relaxed);
    on(&far, server.shutdown()).await;
}

impl Totals {
    fn count(&self, call: &Ended) {
        let count = match call.end {
            None => &self.dropped,
            Some((true, _)) => &self.good,
            Some((false, _)) => &self.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let retried = call.end.as_ref().is_some_and(|(_, history)| history.attempts().len() > 1);
        self.retried.fetch_add(u64::from(retried), Ordering::Relaxed);
    }
}

/// What one call came to: a 2xx or not, and its history; none if its future was dropped.
struct Ended {
    end: Option<(bool, History)>,
}

fn key_of(seed: u64, number: u64) -> String {
    format!("key-{seed}-{number}")
}

fn is_keyed(number: u64) -> bool {
    number % 3 != 2
}

async fn call(client: &Client, url: &str, seed: u64, number: u64) -> Ended {
    let mut rng = SmallRng::seed_from_u64(seed << 8 | number);
    let request = client.post(url).body(format!("charge {seed} {number}"));
    let request = match number % 3 {
        0 => request.idempotency_key(key_of(seed, number)),
        // Its body is part of the attempt, so that a broken one is sent again.
        1 => request.idempotency_key(key_of(seed, number)).buffered(1024),
        _ => request,
    };
    let patience = if rng.random_ratio(1, 8) { ms(rng.random_range(0..120)) } else { DEADLINE + SLACK };
    let start = clock::now();
    let sent = tokio::time::timeout(patience, request.send()).await;
    let Ok(sent) = sent else {
        assert!(patience < DEADLINE, "call {number} did not end by its deadline");
        return Ended { end: None };
    };
    assert!(start.elapsed() < DEADLINE + SLACK, "call {number} took {:?}", start.elapsed());
    let end = (sent.as_ref().is_ok_and(|response| response.status().is_success()), history(&sent).clone());
    if let Ok(response) = sent {
        // Read or dropped, its slot comes back; the idle time-out ends a stall.
        let _ = tokio::time::timeout(SLACK, response.bytes()).await.unwrap();
    }
    Ended { end: Some(end) }
}

fn history(sent: &Result<Response, Error>) -> &History {
    match sent {
        Ok(response) => response.history(),
        Err(error) => error.history(),
    }
}

fn check(server: &Server, seed: u64, number: u64, call: &Ended) {
    let (charges, key, body) = (server.charges(), key_of(seed, number), format!("charge {seed} {number}"));
    let arrived = server.recorded().iter().filter(|request| request.body == body.as_bytes()).count();
    let executed = if is_keyed(number) { charges.of(&key) } else { 0 };
    assert!(charges.most_bare <= 1, "a bare charge was made twice");
    assert!(executed <= 1, "call {number}: {executed} executions of one key");
    let most = if is_keyed(number) { ATTEMPTS as usize } else { 1 };
    assert!(arrived <= most, "call {number}: {arrived} requests arrived");
    let Some((good, history)) = &call.end else { return };
    let attempts = history.attempts();
    assert!(attempts.len() <= most, "call {number}: {} attempts", attempts.len());
    assert!((1..).zip(attempts).all(|(nth, attempt)| attempt.number() == nth), "{history:?}");
    assert!(attempts.iter().all(|attempt| attempt.status().is_some() != attempt.error().is_some()), "{history:?}");
    let sent = attempts.iter().filter(|attempt| attempt.sent() != SentState::NotSent).count();
    assert!(arrived <= sent, "call {number}: {arrived} requests arrived, {sent} are told: {history:?}");
    assert_eq!(*good, attempts.last().and_then(|last| last.status()).is_some_and(|status| status.is_success()));
    // A status that was corrupted on its way may say anything.
    if *good && seed % 4 != 3 {
        assert!(arrived >= 1, "call {number} is good and never arrived");
        assert!(!is_keyed(number) || executed == 1, "call {number} is good: {executed} executions");
    }
}
