//! The ways in which servers limit: pure arithmetic in integer nanoseconds, exact at any uptime, `now` handed in.
//!
//! Each [`Meter`] is asked, then told: `wait` says how long a request of that cost is too early (0: it may come now),
//! `take` books it, `level` says what is left. `now` counts nanoseconds since the Unix epoch and never runs backward.

mod buckets;
#[cfg(test)]
mod tests;
mod windows;

use std::{collections::VecDeque, fmt, str::FromStr};

use super::names::{self, UnknownName};
use crate::limit::{Contract, Quota, tick::nanos_of};
use buckets::{Gcra, LeakyBucket, TokenBucket};
use windows::{FixedWindow, SlidingCounter, SlidingLog};

/// How the practice server limits.
///
/// | algorithm | admits | quota it advertises |
/// | --- | --- | --- |
/// | `FixedWindow` | N between two multiples of W since the Unix epoch | N per W |
/// | `SlidingLog` | N in any window of W, by a log of what it accepted | N per W |
/// | `SlidingCounter` | N by two fixed windows, the older one weighted by its overlap | N per W |
/// | `TokenBucket` | a burst b at once, refilled at N/W | b per b·W/N |
/// | `LeakyBucket` | a queue of b, served at N/W: accepted requests are delayed | b per b·W/N |
/// | `Gcra` | as the token bucket, kept as one theoretical arrival time | b per b·W/N |
/// | `Concurrency` | N being served at one time | N concurrent requests |
///
/// b is the burst of a [`Quota::bucket`] and N for a [`Quota::window`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts between two multiples of the window since the Unix epoch.
    FixedWindow,
    /// Remembers every accepted request for one window.
    SlidingLog,
    /// Two fixed windows, the older weighted by its overlap with the sliding one.
    SlidingCounter,
    /// Starts full, refills continuously.
    TokenBucket,
    /// A queue drained at the rate; delays what it accepts, refuses when full.
    LeakyBucket,
    /// The generic cell rate algorithm.
    Gcra,
    /// Requests being served at one time, whatever their rate.
    Concurrency,
}

impl Algorithm {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::FixedWindow,
        Self::SlidingLog,
        Self::SlidingCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Gcra,
        Self::Concurrency,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window",
            Self::SlidingLog => "sliding-log",
            Self::SlidingCounter => "sliding-counter",
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
            Self::Gcra => "gcra",
            Self::Concurrency => "concurrency",
        }
    }

    /// What a quota asks for when nothing else was said.
    pub(in crate::testing) fn of(quota: &Quota) -> Self {
        match quota.contract() {
            Contract::Window => Self::FixedWindow,
            Contract::Bucket => Self::TokenBucket,
        }
    }

    /// A fresh meter: nothing taken yet.
    pub(in crate::testing) fn meter(self, quota: &Quota) -> Box<dyn Meter> {
        let rate = Rate::of(quota);
        match self {
            Self::FixedWindow => Box::new(FixedWindow { rate, index: 0, count: 0 }),
            Self::SlidingLog => Box::new(SlidingLog { rate, log: VecDeque::new(), sum: 0 }),
            Self::SlidingCounter => Box::new(SlidingCounter { rate, index: 0, count: 0, before: 0 }),
            Self::TokenBucket => Box::new(TokenBucket { rate, level: rate.full(), at: 0 }),
            Self::LeakyBucket => Box::new(LeakyBucket { rate, level: 0, at: 0 }),
            Self::Gcra => Box::new(Gcra { rate, arrival: 0 }),
            Self::Concurrency => Box::new(Concurrency { most: rate.units, now: 0 }),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        names::find("algorithm", Self::ALL, Self::as_str, text)
    }
}

/// The wait for what will never be admitted: it costs more than the meter holds.
pub(in crate::testing) const NEVER: u64 = u64::MAX;

/// What is left after the last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::testing) struct Level {
    /// Whole units that would be admitted now.
    pub(in crate::testing) remaining: u64,
    /// Nanoseconds until the server calls the quota reset: full again if nothing comes, the window's end if it counts
    /// in windows.
    pub(in crate::testing) reset: u64,
}

/// One limit, of one key.
pub(in crate::testing) trait Meter: fmt::Debug + Send {
    /// Nanoseconds until `cost` would be admitted if nothing else came; 0: now; [`NEVER`].
    fn wait(&mut self, cost: u64, now: u64) -> u64;
    /// Books what `wait` admitted; nanoseconds by which its answer is delayed.
    fn take(&mut self, cost: u64, now: u64) -> u64;
    /// What is left.
    fn level(&mut self, now: u64) -> Level;
    /// Another rate from now on; what was taken stays taken.
    fn rerate(&mut self, quota: &Quota, now: u64);
    /// Capacity, and the nanoseconds in which it refills; `None`: it has no time.
    fn contract(&self) -> (u64, Option<u64>);
    /// A request is done.
    fn release(&mut self, _cost: u64) {}
}

/// A quota as the meters count it.
#[derive(Clone, Copy, Debug)]
struct Rate {
    units: u64,
    per: u64,
    burst: u64,
}

impl Rate {
    fn of(quota: &Quota) -> Self {
        let burst = match quota.contract() {
            Contract::Window => quota.units(),
            Contract::Bucket => quota.burst_units(),
        };
        Self { units: quota.units().into(), per: nanos_of(quota.per()), burst: burst.into() }
    }

    /// Cost in the unit of the continuous meters: one unit is `per`, a nanosecond drains `units`.
    fn scaled(&self, cost: u64) -> u128 {
        u128::from(cost) * u128::from(self.per)
    }

    fn full(&self) -> u128 {
        self.scaled(self.burst)
    }

    /// Whole units in a scaled amount.
    fn whole(&self, scaled: u128) -> u64 {
        clamp(scaled / u128::from(self.per))
    }

    /// Nanoseconds in which a scaled amount drains or refills, rounded up.
    fn time(&self, scaled: u128) -> u64 {
        clamp(scaled.div_ceil(u128::from(self.units)))
    }

    fn drained(&self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.units)
    }

    /// The same number of units in the scale of `new`, rounded up.
    fn rescale(&self, scaled: u128, new: &Self) -> u128 {
        (scaled * u128::from(new.per)).div_ceil(u128::from(self.per))
    }

    fn bucket_contract(&self) -> (u64, Option<u64>) {
        (self.burst, Some(self.time(self.full())))
    }
}

fn clamp(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[derive(Debug)]
struct Concurrency {
    most: u64,
    now: u64,
}

/// What a server can say at least: nobody knows when a slot will be free.
const SLOT_WAIT: u64 = 1_000_000_000;

impl Meter for Concurrency {
    fn wait(&mut self, cost: u64, _now: u64) -> u64 {
        match self.now + cost {
            _ if cost > self.most => NEVER,
            sum if sum <= self.most => 0,
            _ => SLOT_WAIT,
        }
    }

    fn take(&mut self, cost: u64, _now: u64) -> u64 {
        self.now += cost;
        0
    }

    fn level(&mut self, _now: u64) -> Level {
        Level { remaining: self.most.saturating_sub(self.now), reset: SLOT_WAIT }
    }

    fn rerate(&mut self, quota: &Quota, _now: u64) {
        self.most = quota.units().into();
    }

    fn contract(&self) -> (u64, Option<u64>) {
        (self.most, None)
    }

    fn release(&mut self, cost: u64) {
        self.now = self.now.saturating_sub(cost);
    }
}
