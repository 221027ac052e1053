//! The meters that count in windows.

use std::collections::VecDeque;

use super::{Level, Meter, NEVER, Rate, clamp};
use crate::limit::Quota;

#[derive(Debug)]
pub(super) struct FixedWindow {
    pub(super) rate: Rate,
    pub(super) index: u64,
    pub(super) count: u64,
}

impl FixedWindow {
    fn roll(&mut self, now: u64) {
        let index = now / self.rate.per;
        if index != self.index {
            (self.index, self.count) = (index, 0);
        }
    }
}

impl Meter for FixedWindow {
    fn wait(&mut self, cost: u64, now: u64) -> u64 {
        self.roll(now);
        match self.count + cost {
            _ if cost > self.rate.units => NEVER,
            sum if sum <= self.rate.units => 0,
            _ => self.rate.per - now % self.rate.per,
        }
    }

    fn take(&mut self, cost: u64, now: u64) -> u64 {
        self.roll(now);
        self.count += cost;
        0
    }

    fn level(&mut self, now: u64) -> Level {
        self.roll(now);
        Level { remaining: self.rate.units.saturating_sub(self.count), reset: self.rate.per - now % self.rate.per }
    }

    fn rerate(&mut self, quota: &Quota, now: u64) {
        self.roll(now);
        self.rate = Rate::of(quota);
        self.index = now / self.rate.per;
    }

    fn contract(&self) -> (u64, Option<u64>) {
        (self.rate.units, Some(self.rate.per))
    }
}

/// An accepted request counts until exactly one window after it.
#[derive(Debug)]
pub(super) struct SlidingLog {
    pub(super) rate: Rate,
    pub(super) log: VecDeque<(u64, u64)>,
    pub(super) sum: u64,
}

impl SlidingLog {
    fn expire(&mut self, now: u64) {
        while let Some(&(at, cost)) = self.log.front()
            && at + self.rate.per <= now
        {
            self.log.pop_front();
            self.sum -= cost;
        }
    }
}

impl Meter for SlidingLog {
    fn wait(&mut self, cost: u64, now: u64) -> u64 {
        self.expire(now);
        if cost > self.rate.units {
            return NEVER;
        }
        let mut excess = (self.sum + cost).saturating_sub(self.rate.units);
        if excess == 0 {
            return 0;
        }
        for &(at, gone) in &self.log {
            excess = excess.saturating_sub(gone);
            if excess == 0 {
                return at + self.rate.per - now;
            }
        }
        self.rate.per
    }

    fn take(&mut self, cost: u64, now: u64) -> u64 {
        if cost > 0 {
            self.log.push_back((now, cost));
            self.sum += cost;
        }
        0
    }

    fn level(&mut self, now: u64) -> Level {
        self.expire(now);
        let reset = self.log.back().map_or(0, |&(at, _)| at + self.rate.per - now);
        Level { remaining: self.rate.units.saturating_sub(self.sum), reset }
    }

    fn rerate(&mut self, quota: &Quota, now: u64) {
        self.expire(now);
        self.rate = Rate::of(quota);
    }

    fn contract(&self) -> (u64, Option<u64>) {
        (self.rate.units, Some(self.rate.per))
    }
}

/// Estimate = count + before · (1 − elapsed/W), compared without rounding.
#[derive(Debug)]
pub(super) struct SlidingCounter {
    pub(super) rate: Rate,
    pub(super) index: u64,
    pub(super) count: u64,
    pub(super) before: u64,
}

impl SlidingCounter {
    fn roll(&mut self, now: u64) {
        let index = now / self.rate.per;
        if index != self.index {
            self.before = if index == self.index + 1 { self.count } else { 0 };
            (self.index, self.count) = (index, 0);
        }
    }

    fn weighted(&self, now: u64) -> u128 {
        self.rate.scaled(self.count) + u128::from(self.before) * u128::from(self.rate.per - now % self.rate.per)
    }

    /// The smallest elapsed time at which `older` has faded enough to leave room for `newer`; `None`: not in this
    /// window.
    fn fade(&self, older: u64, newer: u64) -> Option<u64> {
        let room = self.rate.scaled(self.rate.units.checked_sub(newer)?);
        let excess = self.rate.scaled(older).saturating_sub(room);
        let elapsed = if excess == 0 { 0 } else { clamp(excess.div_ceil(older.into())) };
        (elapsed < self.rate.per).then_some(elapsed)
    }
}

impl Meter for SlidingCounter {
    fn wait(&mut self, cost: u64, now: u64) -> u64 {
        self.roll(now);
        if cost > self.rate.units {
            return NEVER;
        }
        let elapsed = now % self.rate.per;
        if let Some(at) = self.fade(self.before, self.count + cost) {
            return at.saturating_sub(elapsed);
        }
        let next = self.rate.per - elapsed;
        next + self.fade(self.count, cost).unwrap_or(self.rate.per)
    }

    fn take(&mut self, cost: u64, now: u64) -> u64 {
        self.roll(now);
        self.count += cost;
        0
    }

    fn level(&mut self, now: u64) -> Level {
        self.roll(now);
        let left = self.rate.scaled(self.rate.units).saturating_sub(self.weighted(now));
        Level { remaining: self.rate.whole(left), reset: self.rate.per - now % self.rate.per }
    }

    fn rerate(&mut self, quota: &Quota, now: u64) {
        self.roll(now);
        self.rate = Rate::of(quota);
        self.index = now / self.rate.per;
    }

    fn contract(&self) -> (u64, Option<u64>) {
        (self.rate.units, Some(self.rate.per))
    }
}
