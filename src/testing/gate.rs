//! The limits of every key, taken all or none.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::HeaderMap;

use super::{
    algorithms::{Algorithm, Meter, NEVER},
    dialects::{Refusal, Told},
    stats::Busiest,
};
use crate::limit::{Quota, Unit, tick::nanos_of};

/// Whose requests share a limit on the server's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyBy {
    /// One limit for all.
    #[default]
    All,
    /// One for each value of `Authorization`.
    Authorization,
    /// One for each value of `X-Api-Key`.
    ApiKey,
}

impl KeyBy {
    pub(super) fn read(self, headers: &HeaderMap) -> &[u8] {
        let name = match self {
            Self::All => return &[],
            Self::Authorization => "authorization",
            Self::ApiKey => "x-api-key",
        };
        headers.get(name).map_or(&[], |value| value.as_bytes())
    }
}

/// A limit as configured.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    pub(super) quota: Quota,
    pub(super) algorithm: Algorithm,
    /// What it says of itself, if that is not the truth.
    pub(super) advertised: Option<Quota>,
}

/// What the limits answered.
#[derive(Debug)]
pub(super) struct Admission {
    /// Nanoseconds by which the answer is delayed.
    pub(super) delay: u64,
    pub(super) refusal: Option<Refusal>,
    pub(super) told: Vec<Told>,
    pub(super) slot: Option<Slot>,
    /// The instant that counted: nanoseconds since the Unix epoch, by the server's clock.
    pub(super) now: u64,
}

/// All limits of all keys.
#[derive(Debug)]
pub(super) struct Gate {
    limits: Vec<Limit>,
    keys: HashMap<Box<[u8]>, Arc<Mutex<Books>>>,
    last: u64,
    pub(super) accepted: u64,
    pub(super) refused: u64,
}

/// More keys than this share one limit: a hostile client cannot grow the server without bound.
const MOST_KEYS: usize = 65_536;

impl Gate {
    pub(super) fn new(limits: Vec<Limit>) -> Self {
        Self { limits, keys: HashMap::new(), last: 0, accepted: 0, refused: 0 }
    }

    /// All limits or none; `cost` is what the request takes of a unit.
    pub(super) fn admit(&mut self, key: &[u8], cost: impl Fn(&Unit) -> u64, now: u64) -> Admission {
        // Two threads may have read the clock in the other order.
        self.last = self.last.max(now);
        let costs: Box<[u64]> = self.limits.iter().map(|limit| cost(limit.quota.unit_ref())).collect();
        let books = self.books(key);
        let mut admission = lock(&books).admit(&self.limits, &costs, self.last);
        match admission.refusal {
            Some(_) => self.refused += 1,
            None => self.accepted += 1,
        }
        let concurrent = self.limits.iter().any(|limit| limit.algorithm == Algorithm::Concurrency);
        if concurrent && admission.refusal.is_none() {
            admission.slot = Some(Slot { books, costs });
        }
        admission
    }

    fn books(&mut self, key: &[u8]) -> Arc<Mutex<Books>> {
        if let Some(books) = self.keys.get(key) {
            return Arc::clone(books);
        }
        let key = if self.keys.len() < MOST_KEYS { key } else { &[] };
        let fresh = || Arc::new(Mutex::new(Books::new(&self.limits)));
        Arc::clone(self.keys.entry(key.into()).or_insert_with(fresh))
    }

    /// Re-rates the first limit in the quota's unit, of every key, or adds one.
    pub(super) fn set_limit(&mut self, quota: Quota, now: u64) {
        self.last = self.last.max(now);
        let same =
            |limit: &Limit| limit.algorithm != Algorithm::Concurrency && limit.quota.unit_ref() == quota.unit_ref();
        let found = self.limits.iter().position(same);
        for books in self.keys.values() {
            let meters = &mut lock(books).meters;
            match found {
                Some(at) => meters[at].rerate(&quota, self.last),
                None => meters.push(Algorithm::of(&quota).meter(&quota)),
            }
        }
        match found {
            Some(at) => self.limits[at].quota = quota,
            None => self.limits.push(Limit { algorithm: Algorithm::of(&quota), quota, advertised: None }),
        }
    }

    pub(super) fn most_in_window(&self) -> u64 {
        self.keys.values().map(|books| lock(books).busiest.most()).max().unwrap_or(0)
    }
}

/// One key's meters.
#[derive(Debug)]
struct Books {
    meters: Vec<Box<dyn Meter>>,
    busiest: Busiest,
}

impl Books {
    fn new(limits: &[Limit]) -> Self {
        let meters = limits.iter().map(|limit| limit.algorithm.meter(&limit.quota)).collect();
        Self { meters, busiest: Busiest::default() }
    }

    fn admit(&mut self, limits: &[Limit], costs: &[u64], now: u64) -> Admission {
        let waits = self.meters.iter_mut().zip(costs).map(|(meter, &cost)| meter.wait(cost, now));
        let worst = waits.enumerate().filter(|&(_, wait)| wait > 0).max_by_key(|&(_, wait)| wait);
        let refusal = worst.map(|(by, wait)| Refusal { wait, by });
        let mut delay = 0;
        if refusal.is_none() {
            for (meter, &cost) in self.meters.iter_mut().zip(costs) {
                delay = delay.max(meter.take(cost, now));
            }
            self.busiest.arrive(limits.first().map_or(0, |limit| nanos_of(limit.quota.per())), now);
        }
        let told = self.meters.iter_mut().zip(limits).map(|(meter, limit)| limit.tell(meter.as_mut(), now)).collect();
        Admission { delay, refusal, told, slot: None, now }
    }
}

impl Limit {
    fn tell(&self, meter: &mut dyn Meter, now: u64) -> Told {
        let level = meter.level(now);
        let real = meter.contract();
        let (limit, window) = match &self.advertised {
            Some(quota) => self.algorithm.meter(quota).contract(),
            None => real,
        };
        let used = real.0.saturating_sub(level.remaining);
        let more = meter.wait(1, now);
        Told {
            unit: self.quota.unit_ref().clone(),
            limit,
            window,
            remaining: limit.saturating_sub(used),
            reset: level.reset,
            more: if more == NEVER { level.reset } else { more },
        }
    }
}

/// A place in a concurrency limit, until dropped.
#[derive(Debug)]
pub(super) struct Slot {
    books: Arc<Mutex<Books>>,
    costs: Box<[u64]>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        for (meter, &cost) in lock(&self.books).meters.iter_mut().zip(&self.costs) {
            meter.release(cost);
        }
    }
}

/// The practice server goes on after a panic elsewhere: its numbers are whole between two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: u64 = 1_790_000_000_000_000_000;

    fn gate(limits: [(Quota, Algorithm); 2]) -> Gate {
        Gate::new(limits.map(|(quota, algorithm)| Limit { quota, algorithm, advertised: None }).into())
    }

    #[test]
    fn limits_are_taken_all_or_none() {
        let hour = Quota::per_hour(2);
        let minute = Quota::per_minute(1);
        let mut gate = gate([(hour, Algorithm::FixedWindow), (minute, Algorithm::SlidingLog)]);
        assert_eq!(gate.admit(b"", |_| 1, NOW).refusal, None);
        for n in 0..10 {
            let refused = gate.admit(b"", |_| 1, NOW + n);
            assert_eq!(refused.refusal, Some(Refusal { wait: 60_000_000_000 - n, by: 1 }));
            assert_eq!(refused.told.iter().map(|told| told.remaining).collect::<Vec<_>>(), [1, 0]);
        }
        assert_eq!(gate.admit(b"", |_| 1, NOW + 60_000_000_000).refusal, None);
        assert_eq!((gate.accepted, gate.refused, gate.most_in_window()), (2, 10, 2));
    }

    #[test]
    fn a_dropped_slot_is_free() {
        let rate = (Quota::per_second(100), Algorithm::TokenBucket);
        let mut gate = gate([rate, (Quota::per_second(1), Algorithm::Concurrency)]);
        let held = gate.admit(b"", |_| 1, NOW);
        assert!(gate.admit(b"", |_| 1, NOW).refusal.is_some());
        drop(held);
        assert_eq!(gate.admit(b"", |_| 1, NOW).refusal, None);
    }

    #[test]
    fn a_backward_clock_changes_nothing() {
        let quota = Quota::window(1, Duration::from_secs(1));
        let mut gate = gate([(quota.clone(), Algorithm::FixedWindow), (quota, Algorithm::Gcra)]);
        assert_eq!(gate.admit(b"", |_| 1, NOW).refusal, None);
        assert!(gate.admit(b"", |_| 1, NOW - 2_000_000_000).refusal.is_some());
    }
}
