//! The settings of a practice server, checked once in `start()`.

use std::{
    io, mem,
    net::Ipv4Addr,
    ops::Range,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use http::HeaderValue;
use rand::{SeedableRng, rngs::SmallRng};
use tokio::net::TcpListener;

use super::{
    algorithms::Algorithm,
    charge::Ledger,
    dialects::{Dialect, RetryAfter},
    faults::{Fault, Faults},
    gate::{Gate, KeyBy, Limit},
    script::{Script, Scripted},
    server::Server,
    shared::{Dice, Shared},
};
use crate::{
    client::any_seed,
    clock,
    limit::{Quota, tick::nanos_of},
};

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

    /// Most requests of a key being served at one time, besides the limits; default: any number, 0 is an error of
    /// `start()`.
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

    /// The server's clock is ahead of this machine's: its dates, Unix times and aligned windows. Default: zero; at most
    /// 36,600 days.
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

    /// Answers every request from a list, in order of arrival, instead of limits and `/charge`. Beyond its end: a 500
    /// with `x-beyond-script`, counted in [`Stats::beyond_script`](super::Stats::beyond_script).
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
    ///
    /// # Cancel safety
    /// Dropped before it is done it leaves nothing behind.
    pub async fn start(self) -> io::Result<Server> {
        let port = self.port;
        let shared = Arc::new(self.shared()?);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        Server::listen(listener, shared)
    }

    fn shared(mut self) -> io::Result<Shared> {
        self.faults.check().map_err(invalid)?;
        if self.latency.start > self.latency.end {
            return Err(invalid("latency: the range must not run backward"));
        }
        let gate = Gate::new(self.take_limits()?);
        if self.ahead > MOST_AHEAD {
            return Err(invalid("clock: at most 36,600 days ahead"));
        }
        let (started, wall) = (clock::now(), clock::wall() + self.ahead);
        let epoch = wall.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(self.behind);
        let seed = self.seed.unwrap_or_else(any_seed);
        let dice = Dice { rng: SmallRng::seed_from_u64(seed), latency: self.latency, faults: self.faults };
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
            epoch: nanos_of(epoch),
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

/// Beyond it nanoseconds since 1970 would not fit 64 bits for much longer.
const MOST_AHEAD: Duration = Duration::from_secs(36_600 * 24 * 60 * 60);

pub(super) fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
