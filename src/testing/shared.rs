//! What all connections share: the gate, the dice, the log and the server's clock.

use std::{
    collections::VecDeque,
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Uri, request};
use rand::{RngExt, rngs::SmallRng};
use tokio::time::Instant;

use super::{
    charge::Ledger,
    dialects::{self, Dialect, RetryAfter},
    faults::{Fault, Faults},
    gate::{Admission, Gate, KeyBy, lock},
    script::Script,
    stats::{Arrivals, Counters, Stats},
};
use crate::{
    clock,
    limit::{Unit, tick::nanos_of},
};

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) gate: Mutex<Gate>,
    pub(super) dice: Mutex<Dice>,
    pub(super) log: Mutex<Log>,
    pub(super) date: Mutex<(u64, HeaderValue)>,
    pub(super) requests: AtomicU64,
    pub(super) counters: Arc<Counters>,
    pub(super) ledger: Ledger,
    pub(super) script: Option<Script>,
    pub(super) dialect: Dialect,
    pub(super) retry_after: Option<RetryAfter>,
    pub(super) body: Bytes,
    pub(super) record: bool,
    pub(super) key_by: KeyBy,
    pub(super) seed: u64,
    pub(super) started: Instant,
    /// Nanoseconds since the Unix epoch at `started`, by the server's clock.
    pub(super) epoch: u64,
}

#[derive(Debug)]
pub(super) struct Dice {
    pub(super) rng: SmallRng,
    pub(super) latency: Range<Duration>,
    pub(super) faults: Faults,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) arrivals: Arrivals,
    pub(super) recorded: VecDeque<Recorded>,
}

const MOST_RECORDED: usize = 10_000;

impl Shared {
    /// Nanoseconds since the Unix epoch, by the server's clock: it runs with the monotonic one.
    pub(super) fn nanos(&self) -> u64 {
        self.epoch.saturating_add(nanos_of(clock::now().duration_since(self.started)))
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
