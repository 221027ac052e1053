//! The only place that reads a clock: tokio's `Instant` for waits, the wall clock for dates.
#![expect(clippy::disallowed_methods, reason = "this is the place")]

use std::{future::poll_fn, pin::pin, task::Poll, time::SystemTime};

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

/// What the future gives, or `None` if `until` comes first. When both are there, the future's.
pub(crate) async fn before<F: Future>(until: Option<Instant>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let Some(until) = until else {
        return Some(future.await);
    };
    let mut timer = pin!(sleep_until(until));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
    })
    .await
}
