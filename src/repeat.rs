//! What is safe to repeat.
//!
//! Invariant: pure. No verdict lifts these rules: RFC 9110 §9.2.2, and for keys
//! draft-ietf-httpapi-idempotency-key-header-06 §2.

use std::time::Duration;

use tokio::time::Instant;

use crate::{NonIdempotent, Verdict, history::Stop, sent::SentState, verdict::Answer};

/// What makes a request safe to repeat, as it stands after redirects.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Repeat {
    /// By its method, its preconditions, or the caller's word.
    pub(crate) idempotent: bool,
    /// It carries an idempotency key, which is good for so long.
    pub(crate) key_lifetime: Option<Duration>,
    /// A 409 means that another request with the key still runs.
    pub(crate) retry_conflict: bool,
    /// Its body can be sent again.
    pub(crate) replayable: bool,
}

impl Repeat {
    /// Whether it may be sent again after this result.
    pub(crate) fn check(&self, answer: &Answer<'_>, verdict: Verdict, mode: NonIdempotent) -> Result<(), Stop> {
        let safe = self.idempotent || self.key_lifetime.is_some() || allows(mode, answer, verdict);
        match (safe, self.replayable) {
            (false, _) => Err(Stop::NotIdempotent),
            (true, false) => Err(Stop::NotReplayable),
            (true, true) => Ok(()),
        }
    }

    /// Whether it may be executed again without its key.
    pub(crate) fn goes_unkeyed(&self, mode: NonIdempotent) -> bool {
        self.idempotent || mode == NonIdempotent::Always
    }

    /// From when on the key is no longer good: the request would be executed afresh.
    pub(crate) fn key_ends(&self, first_sent: Option<Instant>) -> Option<Instant> {
        first_sent?.checked_add(self.key_lifetime?)
    }
}

fn allows(mode: NonIdempotent, answer: &Answer<'_>, verdict: Verdict) -> bool {
    let unsent = answer.sent == SentState::NotSent;
    let refused = || {
        let status = answer.status.map_or(0, |status| status.as_u16());
        matches!(status, 425 | 429 | 503) || status == 403 && verdict.is_throttled()
    };
    match mode {
        NonIdempotent::Never => false,
        NonIdempotent::WhenUnsent => unsent,
        NonIdempotent::WhenRefused => unsent || refused(),
        NonIdempotent::Always => true,
    }
}
