//! The only place that reads a clock: tokio's `Instant` for waits, the wall clock for dates.
#![expect(clippy::disallowed_methods, reason = "this is the place")]

use std::time::SystemTime;

use tokio::time::{Instant, Sleep};

/// Now, on the monotonic clock that tests can pause.
#[inline]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The wall clock; it only turns dates into durations.
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// A timer; fires at `until` or at most a millisecond later.
pub(crate) fn sleep_until(until: Instant) -> Sleep {
    tokio::time::sleep_until(until)
}
