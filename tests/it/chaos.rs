//! Calls through a proxy that breaks connections by a seed: whatever it does, the promises hold.
//!
//! `ABIDE_SEED=n` runs one seed, `ABIDE_SEEDS=n` runs so many. A seed fixes what each connection suffers; which call is
//! on which connection depends on timing too.

use std::{
    env,
    future::Future,
    panic,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use abide::{
    Backoff, CallOptions, Client, History, Key, KeyBy, Limiter, NonIdempotent, Policy, Quota, ResponseExt, SentState,
    http,
    middleware::Abide,
    reqwest::{self, Response},
    testing::{Dialect, Server},
    tower::{AbideLayer, AbideService},
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use reqwest_middleware::ClientWithMiddleware;
use tokio::{runtime, sync::Semaphore, task::JoinSet};
use tower::{Layer, ServiceExt};

use crate::support::{
    alone::is_alone,
    chaos::Proxy,
    clock::{self, ms},
};

const CALLS: u64 = 6;
const ATTEMPTS: u32 = 3;
const DEADLINE: Duration = Duration::from_millis(1_200);
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
    if is_alone(&|| ()) {
        run();
    }
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
    let (seeds, turns, totals) = (seeds(), Arc::new(Semaphore::new(20)), Arc::new(Totals::default()));
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
        assert!(good > calls / 50 && failed > calls / 50 && retried > calls / 50 && dropped > 5, "{totals:?}");
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

/// Who makes the calls: all drive the same decisions.
#[derive(Clone)]
enum Face {
    Client(Client),
    Middleware(ClientWithMiddleware),
    Layer(Box<AbideService<Hyper>>),
}

type Hyper = legacy::Client<HttpConnector, Full<Bytes>>;

/// What is sent.
struct Charge {
    url: String,
    body: String,
    key: Option<String>,
    buffered: bool,
}

impl Face {
    fn new(seed: u64, limiter: &Limiter) -> Self {
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([]).read_timeout(ms(600));
        let mode = if seed.is_multiple_of(2) { NonIdempotent::Never } else { NonIdempotent::WhenUnsent };
        let policy = Policy::default()
            .no_budget()
            .backoff(Backoff::full_jitter(ms(1), ms(20)))
            .max_attempts(ATTEMPTS)
            .attempt_timeout(ms(300))
            .deadline(DEADLINE)
            .retry_non_idempotent(mode);
        let limiter = limiter.clone();
        match seed % 7 {
            5 => {
                let http = http.retry(reqwest::retry::never()).build().unwrap();
                let abide = Abide::new(limiter, policy).key_by(KeyBy::Client);
                Self::Middleware(reqwest_middleware::ClientBuilder::new(http).with(abide).build())
            }
            6 => {
                let hyper: Hyper = legacy::Client::builder(TokioExecutor::new()).build_http();
                Self::Layer(Box::new(AbideLayer::new(limiter, policy).key_by(KeyBy::Client).layer(hyper)))
            }
            _ => {
                let builder = Client::builder().http(http).policy(policy).key_by(KeyBy::Client).seed(seed);
                Self::Client(builder.limiter(limiter).build().unwrap())
            }
        }
    }

    /// Whether the answer is a 2xx, and the history; the body is read or given up.
    async fn charge(&self, charge: Charge) -> (bool, History) {
        let mut options = charge.key.iter().fold(CallOptions::new(), CallOptions::idempotency_key);
        if charge.buffered {
            options = options.buffered(1024);
        }
        match self {
            Self::Client(client) => {
                let request = client.post(charge.url).body(charge.body);
                let request = charge.key.iter().fold(request, abide::RequestBuilder::idempotency_key);
                let request = if charge.buffered { request.buffered(1024) } else { request };
                match request.send().await {
                    Ok(response) => read(response).await,
                    Err(error) => (false, error.history().clone()),
                }
            }
            Self::Middleware(client) => {
                match client.post(charge.url).body(charge.body).with_extension(options).send().await {
                    Ok(response) => read(response).await,
                    Err(error) => (false, abide::middleware::error(&error).unwrap().history().clone()),
                }
            }
            Self::Layer(service) => {
                let request = http::Request::post(charge.url).extension(options);
                match (**service).clone().oneshot(request.body(Full::from(charge.body)).unwrap()).await {
                    Ok(response) => {
                        let end = (response.status().is_success(), response.history().clone());
                        let _ = response.into_body().collect().await;
                        end
                    }
                    Err(error) => (false, error.history().clone()),
                }
            }
        }
    }
}

async fn read(response: Response) -> (bool, History) {
    let end = (response.status().is_success(), response.history().clone());
    // The idle time-out ends a stall.
    let _ = response.bytes().await;
    end
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
    let limiter = match seed % 3 {
        0 => Limiter::builder().max_in_flight(2).build().unwrap(),
        _ => Limiter::default(),
    };
    let (face, url) = (Face::new(seed, &limiter), format!("{}/charge", proxy.url()));
    let calls = (0..CALLS).map(|number| {
        let (face, url) = (face.clone(), url.clone());
        tokio::spawn(async move { call(&face, url, seed, number).await })
    });
    let mut ended = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        ended.push(call.await.unwrap());
    }
    let snapshot = limiter.snapshot(&Key::from("")).unwrap();
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

async fn call(face: &Face, url: String, seed: u64, number: u64) -> Ended {
    let mut rng = SmallRng::seed_from_u64(seed << 8 | number);
    let key = is_keyed(number).then(|| key_of(seed, number));
    // A buffered body is part of the attempt, so that a broken one is sent again.
    let charge = Charge { url, body: format!("charge {seed} {number}"), key, buffered: number % 3 == 1 };
    let patience = if rng.random_ratio(1, 8) { ms(rng.random_range(0..120)) } else { DEADLINE + SLACK };
    let ended = tokio::time::timeout(patience, face.charge(charge)).await;
    assert!(ended.is_ok() || patience < DEADLINE, "call {number} did not end by its deadline");
    Ended { end: ended.ok() }
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
