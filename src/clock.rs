//! The only place that reads a clock: tokio's `Instant` for waits, the wall clock for dates.
#![expect(clippy::disallowed_methods, reason = "this is the place")]

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::SystemTime,
};

use pin_project_lite::pin_project;
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

/// Waits until then, and tells the time.
pub(crate) async fn wait_until(until: Instant) -> Instant {
    sleep_until(until).await;
    now()
}

/// What the future gives, or `None` if `until` comes first. When both are there, the future's.
pub(crate) fn before<F: Future>(until: Option<Instant>, future: F) -> Before<F> {
    Before { future, until, timer: None }
}

pin_project! {
    /// See [`before`]. The timer is made when the future first has to wait: mostly it does not.
    pub(crate) struct Before<F> {
        #[pin]
        future: F,
        until: Option<Instant>,
        #[pin]
        timer: Option<Sleep>,
    }
}

impl<F: Future> Future for Before<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Some(output));
        }
        if let Some(until) = this.until.take() {
            this.timer.set(Some(sleep_until(until)));
        }
        match this.timer.as_pin_mut() {
            Some(timer) => timer.poll(cx).map(|()| None),
            None => Poll::Pending,
        }
    }
}
