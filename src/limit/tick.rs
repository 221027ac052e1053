//! The core's instant: nanoseconds since the limiter was built; saturates, never panics.

use std::time::Duration;

use tokio::time::Instant;

/// An instant, in nanoseconds since the limiter's [`Epoch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(u64);

impl Tick {
    /// Later than all others: "no timer will bring it".
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn nanos(self) -> u64 {
        self.0
    }

    pub(crate) const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to here; 0 if it is not earlier.
    pub(crate) const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Whole nanoseconds of a span, saturating at 584 years.
#[inline]
pub(crate) fn nanos_of(span: Duration) -> u64 {
    span.as_secs().saturating_mul(SECOND).saturating_add(span.subsec_nanos().into())
}

/// In nanoseconds.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// The instant that ticks are counted from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch(Instant);

impl Epoch {
    pub(crate) const fn new(start: Instant) -> Self {
        Self(start)
    }

    pub(crate) fn tick(self, at: Instant) -> Tick {
        Tick(nanos_of(at.saturating_duration_since(self.0)))
    }

    /// The instant of a tick; what lies beyond the clock's range is cut to a century.
    pub(crate) fn instant(self, tick: Tick) -> Instant {
        self.0.checked_add(Duration::from_nanos(tick.0)).unwrap_or_else(|| self.0 + CENTURY)
    }
}

const CENTURY: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);
