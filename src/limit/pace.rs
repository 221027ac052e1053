//! The token bucket: units come back continuously, up to the burst. Exact integers, handed `now`, never early.
//!
//! Invariant: in any span t at most burst + n·t/per units are taken, plus n·5 ms/per while somebody waits.

use super::tick::Tick;

/// While somebody waits the level may pass the burst by what comes back in this time, so that a timer of 1 ms can
/// serve 10,000 a second.
const GRAIN: u64 = 5_000_000;

/// A bucket's level and how it refills.
///
/// The level is kept in units × `per`, so that a refill over `dt` nanoseconds is the whole number `units · dt` and
/// nothing is ever rounded. It may go below zero (a cost above the burst, or a cost corrected upward later).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    level: i128,
    at: Tick,
    per: u64,
    units: u32,
    burst: u32,
}

impl Pace {
    /// `units` per `per` nanoseconds; holds `level` whole units at `now`.
    pub(crate) fn new(units: u32, per: u64, burst: u32, level: u32, now: Tick) -> Self {
        Self { level: scaled(level.into(), per), at: now, per, units, burst }
    }

    pub(crate) fn burst(&self) -> u32 {
        self.burst
    }

    /// The instant up to which refills are booked.
    pub(crate) fn at(&self) -> Tick {
        self.at
    }

    /// Whole units that could be taken now.
    pub(crate) fn level(&self) -> i64 {
        i64::try_from(self.level.div_euclid(self.per.into())).unwrap_or(i64::MIN)
    }

    /// Refills up to `now`, to no more than the burst less what is held, and the grain if somebody waits.
    #[inline]
    pub(crate) fn fill(&mut self, now: Tick, held: u64, waiting: bool) {
        let grain = if waiting { u64::from(self.units) * GRAIN } else { 0 };
        self.fill_to(now, scaled(self.burst.into(), self.per) - scaled(held, self.per) + i128::from(grain));
    }

    /// Refills up to `now`, to one unit and no further.
    pub(crate) fn fill_to_one(&mut self, now: Tick, held: u64) {
        self.fill_to(now, scaled(1, self.per).min(scaled(self.burst.into(), self.per) - scaled(held, self.per)));
    }

    /// Cuts the level to one unit.
    pub(crate) fn cut_to_one(&mut self) {
        self.level = self.level.min(self.per.into());
    }

    fn fill_to(&mut self, now: Tick, cap: i128) {
        let refill = i128::from(self.units) * i128::from(now.since(self.at));
        self.level = (self.level + refill).min(cap);
        self.at = self.at.max(now);
    }

    pub(crate) fn holds(&self, units: u64) -> bool {
        self.level >= scaled(units, self.per)
    }

    pub(crate) fn take(&mut self, units: u64) {
        self.level -= scaled(units, self.per);
    }

    pub(crate) fn give(&mut self, units: u64) {
        self.level += scaled(units, self.per);
    }

    /// Gives back `units`, but no more than `most`, in units × `per`. Gives how much that was.
    pub(crate) fn give_at_most(&mut self, units: u64, most: i128) -> i128 {
        let given = scaled(units, self.per).min(most);
        self.level += given;
        given
    }

    /// What is missing to full, in units × `per`, apart from what is held; 0 at least.
    pub(crate) fn slack(&self, held: u64) -> i128 {
        (scaled(self.burst.into(), self.per) - scaled(held, self.per) - self.level).max(0)
    }

    /// The instant at which it holds `units`, if nothing is taken until then and, from `from` on, no cap is met.
    pub(crate) fn ready_at(&self, units: u64, from: Tick) -> Tick {
        let missing = scaled(units, self.per) - self.level;
        if missing <= 0 {
            return from;
        }
        let nanos = (missing + i128::from(self.units) - 1) / i128::from(self.units);
        from.max(self.at.plus(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Changes the rate from here on; the level is kept in units, cut to the new burst.
    pub(crate) fn rerate(&mut self, units: u32, per: u64, burst: u32) {
        let whole = self.level.div_euclid(self.per.into());
        let rest = self.level.rem_euclid(self.per.into());
        self.level = whole * i128::from(per) + rest * i128::from(per) / i128::from(self.per);
        self.level = self.level.min(scaled(burst.into(), per));
        (self.units, self.per, self.burst) = (units, per, burst);
    }
}

fn scaled(units: u64, per: u64) -> i128 {
    i128::from(units) * i128::from(per)
}

#[cfg(test)]
mod tests {
    use super::{super::tick::SECOND, *};
    use proptest::prelude::*;

    fn tick(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn starts_full_and_refills_one_by_one() {
        let mut pace = Pace::new(10, SECOND, 3, 3, Tick::default());
        pace.take(3);
        assert!(!pace.holds(1));
        assert_eq!(pace.ready_at(1, Tick::default()), tick(100));
        pace.fill(tick(99), 0, false);
        assert!(!pace.holds(1));
        pace.fill(tick(100), 0, false);
        assert!(pace.holds(1));
        pace.fill(tick(10_000), 0, false);
        assert_eq!(pace.level(), 3);
    }

    #[test]
    fn held_units_lower_the_cap() {
        let mut pace = Pace::new(10, SECOND, 3, 3, Tick::default());
        pace.take(2);
        pace.fill(tick(60_000), 2, false);
        assert_eq!(pace.level(), 1);
        pace.give(2);
        assert_eq!(pace.level(), 3);
    }

    #[test]
    fn rerate_keeps_units() {
        let mut pace = Pace::new(10, SECOND, 10, 7, Tick::default());
        pace.rerate(100, 60 * SECOND, 5);
        assert_eq!(pace.level(), 5);
        pace.take(7);
        pace.rerate(1, SECOND, 5);
        assert_eq!(pace.level(), -2);
    }

    proptest! {
        #[test]
        fn never_over_burst_and_rate(
            units in 1u32..1000, per in 1u64..5_000_000_000, burst in 1u32..50,
            steps in proptest::collection::vec((0u64..200_000_000, 0u64..5), 1..200),
        ) {
            let mut pace = Pace::new(units, per, burst, burst, Tick::default());
            let mut now = Tick::default();
            let mut taken = Vec::new();
            for (dt, want) in steps {
                now = now.plus(dt);
                pace.fill(now, 0, false);
                if pace.holds(want) {
                    pace.take(want);
                    taken.push((now, want));
                }
            }
            for (i, (from, _)) in taken.iter().enumerate() {
                let mut sum = 0u128;
                for (to, n) in &taken[i..] {
                    sum += u128::from(*n);
                    let span = u128::from(to.since(*from));
                    prop_assert!(sum * u128::from(per) <= u128::from(burst) * u128::from(per) + u128::from(units) * span);
                }
            }
        }

        #[test]
        fn ready_exactly_when_promised(units in 1u32..1000, per in 1u64..5_000_000_000, burst in 1u32..50, take in 0u64..50) {
            let mut pace = Pace::new(units, per, burst, burst, Tick::default());
            pace.take(take);
            let at = pace.ready_at(1, Tick::default());
            if at > Tick::default() {
                let mut early = pace;
                early.fill(Tick::from_nanos(at.nanos() - 1), 0, false);
                prop_assert!(!early.holds(1));
            }
            pace.fill(at, 0, false);
            prop_assert!(pace.holds(1));
        }

        #[test]
        fn repeated_or_backward_now_changes_nothing(dt in 0u64..10_000_000_000, back in 0u64..10_000_000_000) {
            let mut pace = Pace::new(7, SECOND, 5, 0, Tick::default());
            let now = Tick::from_nanos(dt);
            pace.fill(now, 0, false);
            let before = format!("{pace:?}");
            pace.fill(now, 0, false);
            pace.fill(Tick::from_nanos(dt.saturating_sub(back)), 0, false);
            prop_assert_eq!(before, format!("{:?}", pace));
        }
    }
}
