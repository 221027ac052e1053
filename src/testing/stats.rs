//! What the server counted.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::time::Instant;

use super::gate::Slot;

/// What a server has seen since it started. `/stats` is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that arrived, whatever came of them.
    pub requests: u64,
    /// Requests that the limits let through, faulted ones included.
    pub accepted: u64,
    /// Requests that the limits refused.
    pub refused: u64,
    /// Most requests accepted, by their arrival, in any window as long as the first limit's period, of one key.
    pub most_in_window: u64,
    /// Faults that struck, scripted ones included.
    pub faults: u64,
    /// Requests being answered now, bodies included.
    pub in_flight: u64,
    /// Most requests being answered at one time.
    pub most_in_flight: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Requests that came after the script's end.
    pub beyond_script: u64,
    /// Charges executed, keyed and bare.
    pub executions: u64,
}

/// The numbers, as JSON.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("accepted", self.accepted),
            ("refused", self.refused),
            ("most_in_window", self.most_in_window),
            ("requests", self.requests),
            ("faults", self.faults),
            ("in_flight", self.in_flight),
            ("most_in_flight", self.most_in_flight),
            ("connections", self.connections),
            ("beyond_script", self.beyond_script),
            ("executions", self.executions),
        ];
        for (i, (name, value)) in rows.iter().enumerate() {
            write!(f, "{}\"{name}\":{value}", if i == 0 { "{" } else { "," })?;
        }
        f.write_str("}")
    }
}

/// Numbers that need no lock.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) faults: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) beyond_script: AtomicU64,
    in_flight: AtomicU64,
    most_in_flight: AtomicU64,
}

impl Counters {
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn fill(&self, stats: &mut Stats) {
        stats.faults = self.faults.load(Ordering::Relaxed);
        stats.connections = self.connections.load(Ordering::Relaxed);
        stats.beyond_script = self.beyond_script.load(Ordering::Relaxed);
        stats.in_flight = self.in_flight.load(Ordering::Relaxed);
        stats.most_in_flight = self.most_in_flight.load(Ordering::Relaxed);
    }
}

/// One request's place among those in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    counters: Arc<Counters>,
    /// Its place in a concurrency limit.
    pub(super) slot: Option<Slot>,
}

impl InFlight {
    pub(super) fn enter(counters: &Arc<Counters>) -> Self {
        let now = counters.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        counters.most_in_flight.fetch_max(now, Ordering::Relaxed);
        Self { counters: Arc::clone(counters), slot: None }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.counters.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The most in any window, exactly, from the arrivals of the last one.
#[derive(Debug, Default)]
pub(super) struct Busiest {
    last: VecDeque<u64>,
    most: u64,
}

impl Busiest {
    /// An arrival at `now`; one exactly `window` earlier is out.
    pub(super) fn arrive(&mut self, window: u64, now: u64) {
        while self.last.front().is_some_and(|&at| at + window <= now) {
            self.last.pop_front();
        }
        self.last.push_back(now);
        self.most = self.most.max(self.last.len() as u64);
    }

    pub(super) fn most(&self) -> u64 {
        self.most
    }
}

/// When the last requests came: at most [`MOST_ARRIVALS`].
#[derive(Debug, Default)]
pub(super) struct Arrivals(VecDeque<Instant>);

/// An hour at 18 a second.
const MOST_ARRIVALS: usize = 65_536;

impl Arrivals {
    pub(super) fn push(&mut self, at: Instant) {
        if self.0.len() == MOST_ARRIVALS {
            self.0.pop_front();
        }
        self.0.push_back(at);
    }

    pub(super) fn to_vec(&self) -> Vec<Instant> {
        self.0.iter().copied().collect()
    }
}
