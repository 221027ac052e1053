//! A quota as the store keeps it: whole microseconds, and room for what is leased and not yet sent.

use std::time::Duration;

use crate::limit::{Contract, Quota, whole};

/// Leases of a window last a twenty-fifth of it, within bounds: the guard of the store spans the window and a lease,
/// so that the fleet uses at best 96 % of a window.
const LEASES: u64 = 25;
const SHORTEST: u64 = 20_000;
const LONGEST: u64 = 1_000_000;
const OF_BUCKET: u64 = 100_000;
/// A lease lasts so many round trips at least, or it would be over when it comes.
const ROUND_TRIPS: u64 = 4;

/// What a line of the store's books says about its quota; times in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Terms {
    /// Whether it holds in any window; else it is a bucket.
    pub(crate) window: bool,
    pub(crate) limit: u32,
    /// How long a send counts: the window and a lease. Zero for a bucket.
    pub(crate) span: u64,
    pub(crate) burst: f64,
    /// So many units come back …
    pub(crate) refill: u64,
    /// … in so many microseconds.
    pub(crate) per: u64,
    /// How long a lease lasts.
    pub(crate) lease: u64,
}

impl Terms {
    /// `round_trip`: to the store and back, in microseconds; a lease counts from before it was asked for.
    pub(crate) fn of(quota: &Quota, round_trip: u64) -> Self {
        let far = round_trip.saturating_mul(ROUND_TRIPS).min(LONGEST);
        let per = micros(quota.per()).max(1);
        let (units, burst) = (u64::from(quota.units().max(1)), quota.burst_units());
        let common = gcd(units, per);
        let rate = Self {
            window: quota.contract() == Contract::Window,
            limit: quota.units(),
            span: 0,
            burst: f64::from(burst),
            refill: units / common,
            per: per / common,
            lease: 0,
        };
        if rate.window {
            let lease = (per / LEASES).clamp(SHORTEST, LONGEST).max(far);
            return Self { span: per.saturating_add(lease), lease, ..rate };
        }
        let half = u64::from(burst).saturating_mul(per) / units.saturating_mul(2);
        let lease = half.clamp(SHORTEST, OF_BUCKET).max(far);
        Self { lease, ..rate }
    }

    /// How long what was sent still counts, in nanoseconds.
    pub(crate) fn memory(&self) -> u64 {
        let refilled = whole((self.burst * self.per as f64 / self.refill as f64).ceil());
        self.span.max(refilled).saturating_mul(1_000)
    }
}

/// Whole microseconds, rounded up.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX / 1_000)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The part of a quota that one of `members` may use alone.
pub(crate) fn share_of(quota: &Quota, members: u32) -> Quota {
    let members = members.max(1);
    let burst = (quota.burst_units() / members).max(1);
    let unit = quota.unit_ref().clone();
    if quota.contract() == Contract::Bucket {
        return Quota::bucket(quota.units(), quota.per().saturating_mul(members)).burst(burst).unit(unit);
    }
    let units = quota.units() / members;
    if units >= 1 {
        return Quota::window(units, quota.per()).burst(burst.min(units)).unit(unit);
    }
    let per = (quota.per().as_nanos() * u128::from(members)).div_ceil(u128::from(quota.units().max(1)));
    Quota::window(1, Duration::from_nanos(u64::try_from(per).unwrap_or(u64::MAX))).unit(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_window_spans_its_leases_too() {
        let terms = Terms::of(&Quota::per_second(100), 0);
        assert_eq!((terms.span, terms.lease, terms.refill, terms.per), (1_040_000, 40_000, 1, 10_000));
        assert_eq!(Terms::of(&Quota::window(5, Duration::from_millis(200)), 0).lease, 20_000);
        assert_eq!(Terms::of(&Quota::window(5, Duration::from_millis(200)), 25_000).lease, 100_000);
        assert_eq!(Terms::of(&Quota::per_day(5), 0).lease, 1_000_000);
    }

    #[test]
    fn a_bucket_is_leased_for_less_than_its_burst_takes_to_come_back() {
        for (n, burst, lease) in [(100, 20, 100_000), (2, 4, 100_000), (100, 5, 25_000), (100, 1, 20_000)] {
            assert_eq!(Terms::of(&Quota::bucket(n, SECOND).burst(burst), 0).lease, lease);
        }
    }

    #[test]
    fn shares_add_up_to_no_more_than_the_quota() {
        assert_eq!(share_of(&Quota::per_second(100), 8), Quota::per_second(12).burst(3));
        assert_eq!(share_of(&Quota::per_second(5), 8), Quota::window(1, Duration::from_millis(1_600)));
        assert_eq!(share_of(&Quota::bucket(10, SECOND), 4), Quota::bucket(10, 4 * SECOND).burst(2));
    }
}
