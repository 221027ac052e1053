//! The meters that fill and drain continuously.

use super::{Level, Meter, NEVER, Rate};
use crate::limit::Quota;

#[derive(Debug)]
pub(super) struct TokenBucket {
    pub(super) rate: Rate,
    pub(super) level: u128,
    pub(super) at: u64,
}

impl TokenBucket {
    fn refill(&mut self, now: u64) {
        self.level = (self.level + self.rate.drained(now.saturating_sub(self.at))).min(self.rate.full());
        self.at = now;
    }
}

impl Meter for TokenBucket {
    fn wait(&mut self, cost: u64, now: u64) -> u64 {
        self.refill(now);
        if cost > self.rate.burst {
            return NEVER;
        }
        self.rate.time(self.rate.scaled(cost).saturating_sub(self.level))
    }

    fn take(&mut self, cost: u64, now: u64) -> u64 {
        self.refill(now);
        self.level = self.level.saturating_sub(self.rate.scaled(cost));
        0
    }

    fn level(&mut self, now: u64) -> Level {
        self.refill(now);
        let reset = self.rate.time(self.rate.full() - self.level);
        Level { remaining: self.rate.whole(self.level), reset }
    }

    fn rerate(&mut self, quota: &Quota, now: u64) {
        self.refill(now);
        let new = Rate::of(quota);
        self.level = new.full().saturating_sub(self.rate.rescale(self.rate.full() - self.level, &new));
        self.rate = new;
    }

    fn contract(&self) -> (u64, Option<u64>) {
        self.rate.bucket_contract()
    }
}

/// What stands in the queue, the one being served included.
#[derive(Debug)]
pub(super) struct LeakyBucket {
    pub(super) rate: Rate,
    pub(super) level: u128,
    pub(super) at: u64,
}

impl LeakyBucket {
    fn drain(&mut self, now: u64) {
        self.level = self.level.saturating_sub(self.rate.drained(now.saturating_sub(self.at)));
        self.at = now;
    }
}

impl Meter for LeakyBucket {
    fn wait(&mut self, cost: u64, now: u64) -> u64 {
        self.drain(now);
        if cost > self.rate.burst {
            return NEVER;
        }
        self.rate.time((self.level + self.rate.scaled(cost)).saturating_sub(self.rate.full()))
    }

    fn take(&mut self, cost: u64, now: u64) -> u64 {
        self.drain(now);
        let delay = self.rate.time(self.level);
        self.level += self.rate.scaled(cost);
        delay
    }

    fn level(&mut self, now: u64) -> Level {
        self.drain(now);
        let left = self.rate.full().saturating_sub(self.level);
        Level { remaining: self.rate.whole(left), reset: self.rate.time(self.level) }
    }

    fn rerate(&mut self, quota: &Quota, now: u64) {
        self.drain(now);
        let new = Rate::of(quota);
        self.level = self.rate.rescale(self.level, &new);
        self.rate = new;
    }

    fn contract(&self) -> (u64, Option<u64>) {
        self.rate.bucket_contract()
    }
}

/// The theoretical arrival time, in nanoseconds times units so that the emission interval W/N needs no rounding.
#[derive(Debug)]
pub(super) struct Gcra {
    pub(super) rate: Rate,
    pub(super) arrival: u128,
}

impl Gcra {
    /// How far the theoretical arrival lies ahead.
    fn ahead(&self, now: u64) -> u128 {
        self.arrival.saturating_sub(self.rate.drained(now))
    }
}

impl Meter for Gcra {
    fn wait(&mut self, cost: u64, now: u64) -> u64 {
        if cost > self.rate.burst {
            return NEVER;
        }
        self.rate.time((self.ahead(now) + self.rate.scaled(cost)).saturating_sub(self.rate.full()))
    }

    fn take(&mut self, cost: u64, now: u64) -> u64 {
        self.arrival = self.arrival.max(self.rate.drained(now)) + self.rate.scaled(cost);
        0
    }

    fn level(&mut self, now: u64) -> Level {
        let left = self.rate.full().saturating_sub(self.ahead(now));
        Level { remaining: self.rate.whole(left), reset: self.rate.time(self.ahead(now)) }
    }

    fn rerate(&mut self, quota: &Quota, now: u64) {
        let new = Rate::of(quota);
        self.arrival = new.drained(now) + self.rate.rescale(self.ahead(now), &new);
        self.rate = new;
    }

    fn contract(&self) -> (u64, Option<u64>) {
        self.rate.bucket_contract()
    }
}
