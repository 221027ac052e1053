//! The server: its settings, its life, its clock.

use std::{
    fmt, io, mem,
    net::Ipv4Addr,
    ops::Range,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Uri, request};
use hyper::{rt::Executor, service::service_fn};
use hyper_util::{rt::TokioIo, server::conn::auto};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
    time::Instant,
};

use super::{
    algorithms::{self, Algorithm},
    charge::{Charges, Ledger},
    dialects::{self, Dialect, RetryAfter},
    faults::{Fault, Faults, Switch, Wire},
    gate::{Admission, Gate, KeyBy, Limit, lock},
    script::{Script, Scripted},
    stats::{Arrivals, Counters, Stats},
    visit,
};
use crate::{
    clock,
    limit::{Quota, Unit},
};

/// A practice server, listening on a port of the loopback address until it is dropped.
///
/// Every path is the limited resource, except two: `POST /charge`, which counts executions per idempotency key, and
/// `GET /stats`, the numbers as JSON, never limited and never faulted. HTTP/1.1 and HTTP/2 (prior knowledge).
///
/// ```
/// use std::time::Duration;
/// use abide::{Quota, testing::{Algorithm, Dialect, Server}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::builder()
///     .limit(Quota::window(2, Duration::from_secs(60)))
///     .algorithm(Algorithm::SlidingLog)
///     .dialect(Dialect::XRateLimit)
///     .start()
///     .await?;
/// for _ in 0..3 {
///     abide::reqwest::get(server.url()).await?;
/// }
/// assert_eq!((server.stats().accepted, server.stats().refused), (2, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    url: String,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// A server without limits until [`ServerBuilder::limit`] sets one.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// `http://127.0.0.1:PORT`, without a slash at its end.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The numbers so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// When requests arrived, in order: the last 65,536.
    #[must_use]
    pub fn arrivals(&self) -> Vec<Instant> {
        lock(&self.shared.log).arrivals.to_vec()
    }

    /// The requests as they came: the last 10,000 of a server with a script or with [`ServerBuilder::record`].
    #[must_use]
    pub fn recorded(&self) -> Vec<Recorded> {
        lock(&self.shared.log).recorded.iter().cloned().collect()
    }

    /// How often `/charge` executed.
    #[must_use]
    pub fn charges(&self) -> Charges {
        self.shared.ledger.charges()
    }

    /// The seed of latency and faults.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// The server's clock, its skew included.
    #[must_use]
    pub fn wall(&self) -> SystemTime {
        self.shared.wall()
    }

    /// From now on the first limit in the quota's unit is `quota`, for every key; what was used stays used. If there is no
    /// such limit, it is added.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the quota makes no sense; nothing changes.
    pub fn set_limit(&self, quota: Quota) -> io::Result<()> {
        quota.check().map_err(invalid)?;
        lock(&self.shared.gate).set_limit(quota, self.shared.nanos());
        Ok(())
    }

    /// From now on answers take this long, uniformly drawn; a range that runs backward is its start.
    pub fn set_latency(&self, latency: Range<Duration>) {
        lock(&self.shared.dice).latency = latency;
    }

    /// From now on these faults strike.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the rate is outside 0..=1; nothing changes.
    pub fn set_faults(&self, faults: Faults) -> io::Result<()> {
        check_faults(&faults)?;
        lock(&self.shared.dice).faults = faults;
        Ok(())
    }

    /// Stops listening and closes every connection; returns when all its tasks have ended.
    pub async fn shutdown(mut self) {
        self.accepting.abort();
        // A task that was aborted ends with an error that says so.
        let _ = (&mut self.accepting).await;
    }
}

/// Stops listening and closes every connection.
impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Settings of a [`Server`].
#[derive(Clone, Debug, Default)]
#[must_use = "a server runs from start() on"]
pub struct ServerBuilder {
    limits: Vec<Quota>,
    algorithm: Option<Algorithm>,
    advertised: Option<Quota>,
    concurrency: Option<u32>,
    dialect: Dialect,
    retry_after: Option<RetryAfter>,
    key_by: KeyBy,
    latency: Range<Duration>,
    faults: Faults,
    ahead: Duration,
    behind: Duration,
    port: u16,
    seed: Option<u64>,
    body: Option<Bytes>,
    script: Option<Vec<Scripted>>,
    record: bool,
}

impl ServerBuilder {
    /// Adds a limit; all of them hold. Default: none.
    ///
    /// A quota in another unit than requests costs what the request says in a header `x-<unit>` (`x-tokens: 120`) or in
    /// that field of its JSON body; nothing if it says nothing.
    pub fn limit(mut self, quota: Quota) -> Self {
        self.limits.push(quota);
        self
    }

    /// How the limits count; default: fixed window for a window quota, token bucket for a bucket quota.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// What the first limit says of itself, instead of the truth. What was used is told as it is.
    pub fn advertise(mut self, quota: Quota) -> Self {
        self.advertised = Some(quota);
        self
    }

    /// Most requests of a key being served at one time, besides the limits; default: any number, 0 is an error of `start()`.
    pub fn concurrency(mut self, requests: u32) -> Self {
        self.concurrency = Some(requests);
        self
    }

    /// How limits are told; default [`Dialect::Draft11`].
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// How a refusal names its wait; default: as the dialect does. The wait is the exact one, rounded up.
    pub fn retry_after(mut self, form: RetryAfter) -> Self {
        self.retry_after = Some(form);
        self
    }

    /// Whose requests share a limit; default [`KeyBy::All`].
    pub fn key_by(mut self, key_by: KeyBy) -> Self {
        self.key_by = key_by;
        self
    }

    /// Time before an answer's head, uniformly drawn from `a..b`; `a..a` is always `a`. Default: none.
    pub fn latency(mut self, latency: Range<Duration>) -> Self {
        self.latency = latency;
        self
    }

    /// Which faults strike, and how often; default: none.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// The share of accepted requests that meet a fault, 0 to 1; default 0.
    pub fn fault_rate(mut self, share: f64) -> Self {
        self.faults.rate = share;
        self
    }

    /// The faults that strike; default: all kinds.
    pub fn fault_kinds(mut self, kinds: impl IntoIterator<Item = Fault>) -> Self {
        self.faults = self.faults.kinds(kinds);
        self
    }

    /// The server's clock is ahead of this machine's: its dates, Unix times and aligned windows. Default: zero.
    pub fn clock_ahead(mut self, by: Duration) -> Self {
        (self.ahead, self.behind) = (by, Duration::ZERO);
        self
    }

    /// The server's clock is behind this machine's; at most to 1970. Default: zero.
    pub fn clock_behind(mut self, by: Duration) -> Self {
        (self.ahead, self.behind) = (Duration::ZERO, by);
        self
    }

    /// The port on the loopback address; default 0: a free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Seed of latency and faults; default: a random one, told by [`Server::seed`].
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The resource; default `ok` and a line feed.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Answers every request from a list, in order of arrival, instead of limits and `/charge`. Beyond its end: a 500 with
    /// `x-beyond-script`, counted in [`Stats::beyond_script`].
    pub fn script(mut self, script: Vec<Scripted>) -> Self {
        self.script = Some(script);
        self
    }

    /// Keeps the last 10,000 requests for [`Server::recorded`]; a server with a script does so anyway.
    pub fn record(mut self) -> Self {
        self.record = true;
        self
    }

    /// Listens and answers, as tasks of the current tokio runtime.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] names the setting that makes no sense; others come from the socket.
    pub async fn start(self) -> io::Result<Server> {
        let listener_port = self.port;
        let shared = Arc::new(self.shared()?);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, listener_port)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        tracing::debug!(url, seed = shared.seed, "practice server started");
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Server { url, shared, accepting })
    }

    fn shared(mut self) -> io::Result<Shared> {
        check_faults(&self.faults)?;
        if self.latency.start > self.latency.end {
            return Err(invalid("latency: the range must not run backward"));
        }
        let gate = Gate::new(self.take_limits()?);
        let started = clock::now();
        let wall = (clock::wall() + self.ahead).checked_sub(self.behind).unwrap_or(UNIX_EPOCH);
        let epoch = algorithms::nanos(wall.duration_since(UNIX_EPOCH).unwrap_or_default());
        let seed = self.seed.unwrap_or_else(rand::random);
        let dice = Dice { rng: StdRng::seed_from_u64(seed), latency: self.latency, faults: self.faults };
        Ok(Shared {
            gate: Mutex::new(gate),
            dice: Mutex::new(dice),
            log: Mutex::default(),
            date: Mutex::new((u64::MAX, HeaderValue::from_static(""))),
            requests: AtomicU64::new(0),
            counters: Arc::default(),
            ledger: Ledger::default(),
            record: self.record || self.script.is_some(),
            script: self.script.map(Script::new).transpose()?,
            dialect: self.dialect,
            retry_after: self.retry_after,
            key_by: self.key_by,
            body: self.body.unwrap_or(Bytes::from_static(b"ok\n")),
            seed,
            started,
            epoch,
        })
    }

    fn take_limits(&mut self) -> io::Result<Vec<Limit>> {
        for quota in self.limits.iter().chain(&self.advertised) {
            quota.check().map_err(invalid)?;
        }
        let mut limits = Vec::new();
        for quota in mem::take(&mut self.limits) {
            let algorithm = self.algorithm.unwrap_or_else(|| Algorithm::of(&quota));
            limits.push(Limit { quota, algorithm, advertised: self.advertised.take() });
        }
        if let Some(most) = self.concurrency {
            let quota = Quota::per_second(most);
            quota.check().map_err(|_nothing_of_the_second| invalid("concurrency: must be at least 1"))?;
            limits.push(Limit { quota, algorithm: Algorithm::Concurrency, advertised: None });
        }
        Ok(limits)
    }
}

fn check_faults(faults: &Faults) -> io::Result<()> {
    if (0.0..=1.0).contains(&faults.rate) { Ok(()) } else { Err(invalid("faults: the rate must be in 0..=1")) }
}

fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// A request as it came.
#[derive(Clone)]
#[non_exhaustive]
pub struct Recorded {
    /// Its method.
    pub method: Method,
    /// Its target.
    pub uri: Uri,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// When its head had come.
    pub arrived: Instant,
}

impl Recorded {
    pub(super) fn new(parts: &request::Parts, body: &Bytes, arrived: Instant) -> Self {
        let (method, uri, headers) = (parts.method.clone(), parts.uri.clone(), parts.headers.clone());
        Self { method, uri, headers, body: body.clone(), arrived }
    }
}

/// Without query and values of headers.
impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded")
            .field("method", &self.method)
            .field("path", &self.uri.path())
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("body", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    gate: Mutex<Gate>,
    dice: Mutex<Dice>,
    log: Mutex<Log>,
    date: Mutex<(u64, HeaderValue)>,
    requests: AtomicU64,
    pub(super) counters: Arc<Counters>,
    pub(super) ledger: Ledger,
    pub(super) script: Option<Script>,
    pub(super) dialect: Dialect,
    pub(super) retry_after: Option<RetryAfter>,
    pub(super) body: Bytes,
    record: bool,
    key_by: KeyBy,
    seed: u64,
    started: Instant,
    /// Nanoseconds since the Unix epoch at `started`, by the server's clock.
    epoch: u64,
}

#[derive(Debug)]
struct Dice {
    rng: StdRng,
    latency: Range<Duration>,
    faults: Faults,
}

#[derive(Debug, Default)]
struct Log {
    arrivals: Arrivals,
    recorded: std::collections::VecDeque<Recorded>,
}

const MOST_RECORDED: usize = 10_000;

impl Shared {
    /// Nanoseconds since the Unix epoch, by the server's clock: it runs with the monotonic one.
    fn nanos(&self) -> u64 {
        self.epoch.saturating_add(algorithms::nanos(clock::now().duration_since(self.started)))
    }

    pub(super) fn wall(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.nanos())
    }

    /// The `Date` of now, made once a second.
    pub(super) fn date(&self) -> HeaderValue {
        let seconds = self.nanos() / 1_000_000_000;
        let mut cached = lock(&self.date);
        if cached.0 != seconds
            && let Ok(value) = HeaderValue::from_str(&dialects::date(seconds))
        {
            *cached = (seconds, value);
        }
        cached.1.clone()
    }

    /// Notes an arrival; its number, from 0.
    pub(super) fn arrive(&self, at: Instant, request: impl FnOnce() -> Recorded) -> u64 {
        let mut log = lock(&self.log);
        log.arrivals.push(at);
        if self.record {
            if log.recorded.len() == MOST_RECORDED {
                log.recorded.pop_front();
            }
            log.recorded.push_back(request());
        }
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn admit(&self, headers: &HeaderMap, cost: impl Fn(&Unit) -> u64) -> Admission {
        let mut gate = lock(&self.gate);
        gate.admit(self.key_by.read(headers), cost, self.nanos())
    }

    pub(super) fn draw_latency(&self) -> Duration {
        let mut dice = lock(&self.dice);
        let Range { start, end } = dice.latency;
        if start < end { dice.rng.random_range(start..end) } else { start }
    }

    pub(super) fn roll(&self) -> Option<Fault> {
        let dice = &mut *lock(&self.dice);
        dice.faults.roll(&mut dice.rng)
    }

    pub(super) fn toss(&self) -> bool {
        lock(&self.dice).rng.random_bool(0.5)
    }

    pub(super) fn stats(&self) -> Stats {
        let gate = lock(&self.gate);
        let (accepted, refused, most_in_window) = (gate.accepted, gate.refused, gate.most_in_window());
        drop(gate);
        let requests = self.requests.load(Ordering::Relaxed);
        let executions = self.ledger.executed();
        let mut stats = Stats { requests, accepted, refused, most_in_window, executions, ..Stats::default() };
        self.counters.fill(&mut stats);
        stats
    }
}

/// Accepts until it is aborted; its connections end with it.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors: some connection has to end first.
            clock::sleep_until(clock::now() + Duration::from_millis(10)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        Counters::count(&shared.counters.connections);
        connections.spawn(serve(stream, Arc::clone(&shared)));
    }
}

/// One connection, until it ends or a fault cuts it.
async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // Without it answers wait for acknowledgements; a socket that refuses is merely slower.
    let _ = stream.set_nodelay(true);
    let switch = Arc::new(Switch::default());
    let io = TokioIo::new(Wire::new(stream, Arc::clone(&switch)));
    let on_request = {
        let switch = Arc::clone(&switch);
        service_fn(move |request| visit::answer(Arc::clone(&shared), Arc::clone(&switch), request))
    };
    let builder = auto::Builder::new(Streams::default());
    let connection = pin!(builder.serve_connection(io, on_request));
    switch.watch(connection).await;
}

/// The tasks of a connection's HTTP/2 streams: they end with it.
#[derive(Clone, Debug, Default)]
struct Streams(Arc<Mutex<JoinSet<()>>>);

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let mut streams = lock(&self.0);
        while streams.try_join_next().is_some() {}
        streams.spawn(stream);
    }
}
