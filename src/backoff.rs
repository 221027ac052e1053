//! How long to wait before the next attempt when the server named no wait.
//!
//! Invariant: pure. Chance comes in as an rng, and no wait is longer than the cap.

use std::time::Duration;

use rand::{Rng, RngExt, SeedableRng, rngs::SmallRng};

use crate::limit::tick::nanos_of;

/// How much of a backoff is left to chance.
///
/// With `e = min(cap, base · 2^n)` before retry `n` (the first is 0), after the AWS architecture blog's simulator
/// (aws-samples/aws-arch-backoff-simulator):
///
/// | jitter | wait |
/// | --- | --- |
/// | `None` | `e` |
/// | `Full` | uniform in `0..=e` |
/// | `Equal` | `e/2` plus uniform in `0..=e/2` |
/// | `Decorrelated` | `min(cap, uniform in base..=3 · the last wait)` |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Jitter {
    /// No chance at all: clients that failed together come back together.
    None,
    /// The whole wait; the default.
    #[default]
    Full,
    /// The upper half.
    Equal,
    /// From the last wait, not from the number of the retry.
    Decorrelated,
}

/// The wait that abide chooses between two attempts.
///
/// Default: full jitter, base 200 ms, cap 20 s.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use abide::Backoff;
///
/// let backoff = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(1));
/// let waits: Vec<_> = backoff.waits(7).take(5).map(|wait| wait.as_millis()).collect();
/// assert_eq!(waits, [100, 200, 400, 800, 1000]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    growth: Growth,
    jitter: Jitter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    Doubling,
    Flat,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::full_jitter(Duration::from_millis(200), Duration::from_secs(20))
    }
}

impl Backoff {
    /// Uniform in `0..=min(cap, base · 2^n)`: the wait that spreads clients best for the work it costs.
    pub fn full_jitter(base: Duration, cap: Duration) -> Self {
        Self { base, cap, growth: Growth::Doubling, jitter: Jitter::Full }
    }

    /// Half of `min(cap, base · 2^n)` for certain, the other half by chance.
    pub fn equal_jitter(base: Duration, cap: Duration) -> Self {
        Self::full_jitter(base, cap).jitter(Jitter::Equal)
    }

    /// Uniform between `base` and three times the last wait, at most `cap`.
    pub fn decorrelated_jitter(base: Duration, cap: Duration) -> Self {
        Self::full_jitter(base, cap).jitter(Jitter::Decorrelated)
    }

    /// `min(cap, base · 2^n)`, without chance.
    pub fn exponential(base: Duration, cap: Duration) -> Self {
        Self::full_jitter(base, cap).jitter(Jitter::None)
    }

    /// The same wait before each retry.
    pub fn constant(wait: Duration) -> Self {
        Self { base: wait, cap: wait, growth: Growth::Flat, jitter: Jitter::None }
    }

    /// No wait at all.
    pub fn none() -> Self {
        Self::constant(Duration::ZERO)
    }

    /// Replaces the jitter.
    #[must_use]
    pub fn jitter(self, jitter: Jitter) -> Self {
        Self { jitter, ..self }
    }

    /// The waits before the retries of one call, endless, drawn with this seed.
    pub fn waits(&self, seed: u64) -> impl Iterator<Item = Duration> + use<> {
        let (backoff, mut rng) = (*self, SmallRng::seed_from_u64(seed));
        let mut last = None;
        (0u32..).map(move |retry| {
            let wait = backoff.wait(retry, last, &mut rng);
            last = Some(wait);
            wait
        })
    }

    /// The least wait that grows; also the most that is added to a wait the server asked for.
    pub(crate) fn base(&self) -> Duration {
        self.base
    }

    /// The wait before retry `retry` (from 0); `last` is the wait before the one before.
    pub(crate) fn wait(&self, retry: u32, last: Option<Duration>, rng: &mut dyn Rng) -> Duration {
        let ceiling = self.ceiling(retry);
        match self.jitter {
            Jitter::None => ceiling,
            Jitter::Full => uniform(Duration::ZERO, ceiling, rng),
            Jitter::Equal => {
                let half = ceiling / 2;
                half.saturating_add(uniform(Duration::ZERO, ceiling.saturating_sub(half), rng))
            }
            Jitter::Decorrelated => {
                let last = last.unwrap_or(self.base).max(self.base);
                uniform(self.base, last.saturating_mul(3), rng).min(self.cap)
            }
        }
    }

    fn ceiling(&self, retry: u32) -> Duration {
        let factor = match self.growth {
            Growth::Doubling => 1u32.checked_shl(retry).unwrap_or(u32::MAX),
            Growth::Flat => 1,
        };
        // Past 2^31 the factor stops doubling: by then the cap has long been reached, or the base is 0.
        self.base.saturating_mul(factor).min(self.cap)
    }
}

/// A duration from `low` to `high`, both included, each nanosecond as likely; saturates at 584 years.
pub(crate) fn uniform(low: Duration, high: Duration, rng: &mut dyn Rng) -> Duration {
    let (low, high) = (nanos_of(low), nanos_of(high));
    if low >= high { Duration::from_nanos(low) } else { Duration::from_nanos(rng.random_range(low..=high)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BASE: Duration = Duration::from_millis(50);
    const CAP: Duration = Duration::from_millis(400);

    #[track_caller]
    fn check(backoff: Backoff, expected: &[(u64, u64)]) {
        for seed in 0..200 {
            for (wait, (low, high)) in backoff.waits(seed).zip(expected) {
                let range = Duration::from_millis(*low)..=Duration::from_millis(*high);
                assert!(range.contains(&wait), "{wait:?} is not in {range:?}");
            }
        }
    }

    #[test]
    fn each_kind_stays_in_its_range() {
        check(Backoff::full_jitter(BASE, CAP), &[(0, 50), (0, 100), (0, 200), (0, 400), (0, 400)]);
        check(Backoff::equal_jitter(BASE, CAP), &[(25, 50), (50, 100), (100, 200), (200, 400), (200, 400)]);
        check(Backoff::decorrelated_jitter(BASE, CAP), &[(50, 150), (50, 400), (50, 400)]);
        check(Backoff::exponential(BASE, CAP), &[(50, 50), (100, 100), (200, 200), (400, 400), (400, 400)]);
        check(Backoff::constant(BASE), &[(50, 50), (50, 50)]);
        check(Backoff::none(), &[(0, 0), (0, 0)]);
    }

    proptest! {
        #[test]
        fn no_wait_exceeds_the_cap(base in 0u64..u64::MAX, cap in 0u64..u64::MAX, retry: u32, seed: u64) {
            let (base, cap) = (Duration::from_nanos(base), Duration::from_nanos(cap));
            let mut rng = SmallRng::seed_from_u64(seed);
            for backoff in [
                Backoff::full_jitter(base, cap),
                Backoff::equal_jitter(base, cap),
                Backoff::decorrelated_jitter(base, cap),
                Backoff::exponential(base, cap),
            ] {
                prop_assert!(backoff.wait(retry, Some(cap), &mut rng) <= cap);
            }
        }
    }
}
