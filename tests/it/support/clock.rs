//! The one place in the tests that reads a clock or sleeps.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Now, on tokio's clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The wall clock.
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// Sleeps for `duration`.
pub(crate) async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Sleeps until `instant`.
pub(crate) async fn sleep_until(instant: Instant) {
    tokio::time::sleep_until(instant).await;
}

/// So many milliseconds.
pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A duration in milliseconds, with their fraction; exact for whole ones.
pub(crate) fn as_ms(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

/// Milliseconds of a case, cut to whole ones.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times of cases are small and positive")]
pub(crate) fn whole_ms(millis: f64) -> u64 {
    millis as u64
}
