//! One typed event for each decision, for an observer of the user and for `tracing`.
//!
//! No event holds a query, a header value or an idempotency key.

use std::{fmt, time::Duration};

use http::StatusCode;
use tokio::time::Instant;

use crate::{
    Key, clock,
    history::Stop,
    sent::{Cause, SentState},
    verdict::Verdict,
};

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitCause {
    /// The backoff that abide chose.
    Backoff,
    /// The server asked for it.
    Server,
}

/// One decision about one call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// An attempt goes on the wire.
    #[non_exhaustive]
    Sent {
        /// The limiter key.
        key: Key,
        /// From 1; hops and polls keep the number of their attempt.
        attempt: u32,
        /// What it waited for the limiter.
        waited: Duration,
    },
    /// It was answered.
    #[non_exhaustive]
    Answered {
        /// The limiter key.
        key: Key,
        /// From 1.
        attempt: u32,
        /// Of the answer.
        status: StatusCode,
        /// What the answer means.
        verdict: Verdict,
        /// What the server asked for.
        asked_wait: Option<Duration>,
    },
    /// It failed.
    #[non_exhaustive]
    Failed {
        /// The limiter key.
        key: Key,
        /// From 1.
        attempt: u32,
        /// What went wrong.
        cause: Cause,
        /// How far the request got.
        sent: SentState,
    },
    /// The call waits before it asks the limiter again.
    #[non_exhaustive]
    Waiting {
        /// The limiter key.
        key: Key,
        /// What for.
        cause: WaitCause,
        /// Until then.
        until: Instant,
    },
    /// A redirect is followed, or the result of a 202 asked for.
    #[non_exhaustive]
    Redirected {
        /// The limiter key of what is asked next.
        key: Key,
        /// Of the answer that pointed there.
        status: StatusCode,
    },
    /// The limiter let nothing through.
    #[non_exhaustive]
    Refused {
        /// The limiter key.
        key: Key,
        /// When a permit could be had, if ever.
        retry_at: Option<Instant>,
    },
    /// The call is over.
    #[non_exhaustive]
    Ended {
        /// The limiter key.
        key: Key,
        /// Why.
        stop: Stop,
        /// How many were sent.
        attempts: usize,
    },
}

/// Whoever wants to know of each decision. Called on the task of the call: be quick, do not block.
///
/// # Examples
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use abide::{Event, Observer};
///
/// #[derive(Debug, Default)]
/// struct Waits(AtomicU64);
///
/// impl Observer for Waits {
///     fn on_event(&self, event: &Event) {
///         if let Event::Waiting { .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let client = abide::Client::builder().observer(Waits::default()).build()?;
/// # let _ = client;
/// # Ok::<(), abide::Error>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Called once for each decision.
    fn on_event(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync + 'static> Observer for F {
    fn on_event(&self, event: &Event) {
        self(event);
    }
}

/// Tells the observer and `tracing`; builds the event only if somebody listens.
#[inline]
pub(crate) fn emit(observer: Option<&dyn Observer>, event: impl FnOnce() -> Event) {
    let traced = tracing::enabled!(target: "abide", tracing::Level::DEBUG);
    if observer.is_some() || traced {
        tell(observer, traced, &event());
    }
}

#[cold]
fn tell(observer: Option<&dyn Observer>, traced: bool, event: &Event) {
    if traced {
        trace(event);
    }
    if let Some(observer) = observer {
        observer.on_event(event);
    }
}

fn trace(event: &Event) {
    macro_rules! debug {
        ($($fields:tt)*) => { tracing::debug!(target: "abide", $($fields)*) };
    }
    match event {
        Event::Sent { key, attempt, waited } => debug!(%key, attempt, ?waited, "sent"),
        Event::Answered { key, attempt, status, verdict, asked_wait } => {
            debug!(%key, attempt, status = status.as_u16(), ?verdict, ?asked_wait, "answered");
        }
        Event::Failed { key, attempt, cause, sent } => debug!(%key, attempt, %cause, ?sent, "failed"),
        Event::Waiting { key, cause, until } => {
            let wait = until.saturating_duration_since(clock::now());
            debug!(%key, ?cause, ?wait, "waiting");
        }
        Event::Redirected { key, status } => debug!(%key, status = status.as_u16(), "redirected"),
        Event::Refused { key, retry_at } => debug!(%key, ?retry_at, "refused"),
        Event::Ended { key, stop, attempts } => debug!(%key, ?stop, attempts, "ended"),
    }
}

impl fmt::Debug for dyn Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
