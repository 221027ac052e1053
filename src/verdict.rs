//! What one result means.
//!
//! Invariant: pure. A verdict says what would help, never what is safe: that is decided in `call.rs`.

use std::{fmt, time::Duration};

use http::{HeaderMap, HeaderName, Method, StatusCode};

use crate::{
    headers::Hints,
    policy::{Policy, Statuses},
    sent::{Cause, SentState},
};

/// What one result means.
///
/// | result | verdict by default |
/// | --- | --- |
/// | 429; 503 with a named wait; 403 of GitHub's kind, with `rate_limit_403` | `Throttled` |
/// | 408 425 500 502 503 504 522 524 | `Retry` |
/// | 413 with Retry-After | `Retry` |
/// | 409 to a keyed call whose scheme says `retry_conflict` | `Retry` |
/// | any other 4xx and 5xx | `Stop` |
/// | 1xx 2xx 3xx | `Accept` |
/// | no connection, reset, refused stream, time-out, temporary DNS failure | `Retry` |
/// | bad URL, TLS trust, unknown host name, anything else | `Stop` |
///
/// A word of the server comes first: `should-retry: false` stops, `true` retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a verdict decides what happens next"]
#[non_exhaustive]
pub enum Verdict {
    /// The answer the caller wants.
    Accept,
    /// Failed, and another attempt may mend it.
    Retry,
    /// Refused for its rate: the key is paused, the retry waits for what the server asked, else for the throttle
    /// backoff.
    Throttled,
    /// Refused for its rate, with a wait that only the classifier knows; never shorter than what the server asked.
    ThrottledFor(Duration),
    /// Failed for good.
    Stop,
}

impl Verdict {
    pub(crate) fn is_throttled(self) -> bool {
        matches!(self, Self::Throttled | Self::ThrottledFor(_))
    }
}

/// One result, as a classifier sees it: an answer or a failure. Its `Debug` form shows the names of headers only.
#[derive(Clone, Copy)]
pub struct Answer<'a> {
    pub(crate) method: &'a Method,
    pub(crate) status: Option<StatusCode>,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) error: Option<Cause>,
    pub(crate) sent: SentState,
    pub(crate) attempt: u32,
    /// What a classifier beneath an adapter said.
    pub(crate) word: Option<Verdict>,
}

impl<'a> Answer<'a> {
    /// Of the request, after redirects.
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// `None`: there was no usable answer, see [`error`](Self::error).
    pub fn status(&self) -> Option<StatusCode> {
        self.status
    }

    /// Of the answer; empty if there was none.
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// What went wrong, if there was no usable answer.
    pub fn error(&self) -> Option<Cause> {
        self.error
    }

    /// How far the request got.
    pub fn sent(&self) -> SentState {
        self.sent
    }

    /// From 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

/// The caller's own word on what a result means. It never lifts the idempotency rule.
///
/// # Examples
///
/// ```
/// use abide::{Answer, Classify, Policy, Verdict};
///
/// #[derive(Debug)]
/// struct NotYetThere;
///
/// impl Classify for NotYetThere {
///     fn classify(&self, answer: &Answer<'_>) -> Option<Verdict> {
///         answer.status().filter(|status| status.as_u16() == 404).map(|_| Verdict::Retry)
///     }
/// }
///
/// let policy = Policy::default().classify(NotYetThere);
/// # let _ = policy;
/// ```
pub trait Classify: Send + Sync + 'static {
    /// `None`: the default.
    fn classify(&self, answer: &Answer<'_>) -> Option<Verdict>;
}

impl<F: Fn(&Answer<'_>) -> Option<Verdict> + Send + Sync + 'static> Classify for F {
    fn classify(&self, answer: &Answer<'_>) -> Option<Verdict> {
        self(answer)
    }
}

impl fmt::Debug for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("method", self.method)
            .field("status", &self.status)
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("error", &self.error)
            .field("sent", &self.sent)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for dyn Classify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Classify")
    }
}

/// All that a verdict is drawn from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) answer: Answer<'a>,
    pub(crate) hints: &'a Hints,
    /// The whole body, where it was read.
    pub(crate) body: Option<&'a [u8]>,
    /// The call is keyed and its scheme takes a 409 for "still running".
    pub(crate) retry_conflict: bool,
}

/// What the result means: by body, by classifier, by default.
pub(crate) fn of(evidence: &Evidence<'_>, policy: &Policy) -> Verdict {
    let answer = &evidence.answer;
    let by_body = || policy.by_body(answer.status?, answer.headers, evidence.body?);
    let by_head = || policy.classifier()?.classify(answer);
    by_body().or_else(by_head).unwrap_or_else(|| by_word(evidence, policy))
}

/// The word of an adapter's classifier, which knows failures but no throttles.
fn by_word(evidence: &Evidence<'_>, policy: &Policy) -> Verdict {
    let by_default = by_default(evidence, policy);
    match evidence.answer.word {
        None => by_default,
        Some(Verdict::Retry) if by_default.is_throttled() => by_default,
        // It was asked about the head; the body broke later.
        Some(Verdict::Accept) if evidence.answer.status.is_none() => by_default,
        Some(word) => word,
    }
}

fn by_default(evidence: &Evidence<'_>, policy: &Policy) -> Verdict {
    let Some(status) = evidence.answer.status else {
        let passing = evidence.answer.error.is_some_and(Cause::is_passing);
        return if passing { Verdict::Retry } else { Verdict::Stop };
    };
    if status.as_u16() < 400 && !policy.statuses().has(status) {
        return Verdict::Accept;
    }
    let throttled = throttled(status, evidence, policy);
    if evidence.hints.should_retry == Some(false) || is_final(evidence.answer.headers) {
        return Verdict::Stop;
    }
    match throttled {
        Some(verdict) => verdict,
        None if is_retried(status, evidence, policy.statuses()) => Verdict::Retry,
        None if evidence.hints.should_retry == Some(true) => Verdict::Retry,
        None => Verdict::Stop,
    }
}

fn throttled(status: StatusCode, evidence: &Evidence<'_>, policy: &Policy) -> Option<Verdict> {
    let named = evidence.hints.retry_after.is_some_and(|wait| !wait.is_zero());
    match status.as_u16() {
        429 if policy.statuses().has(status) => Some(Verdict::Throttled),
        503 if named && policy.statuses().has(status) => Some(Verdict::Throttled),
        403 if policy.is_rate_limit_403() => github(evidence),
        _ => None,
    }
}

/// GitHub signals both of its limits with 403 or 429: docs.github.com, «Rate limits for the REST API», 2026-10.
fn github(evidence: &Evidence<'_>) -> Option<Verdict> {
    let hints = evidence.hints;
    let spent = hints.quotas.iter().any(|quota| quota.remaining == Some(0.0) && quota.reset_after.is_some());
    if hints.retry_after.is_some() || spent {
        return Some(Verdict::Throttled);
    }
    let secondary = evidence.body.is_some_and(|body| contains(body, b"secondary rate limit"));
    secondary.then_some(Verdict::ThrottledFor(SECONDARY_WAIT))
}

/// "Wait for at least one minute": docs.github.com, «Rate limits for the REST API», 2026-10.
const SECONDARY_WAIT: Duration = Duration::from_secs(60);

fn contains(body: &[u8], words: &[u8]) -> bool {
    body.windows(words.len()).any(|window| window.eq_ignore_ascii_case(words))
}

fn is_retried(status: StatusCode, evidence: &Evidence<'_>, statuses: &Statuses) -> bool {
    match status.as_u16() {
        // Another request with this key still runs: draft-ietf-httpapi-idempotency-key-header-06 §2.6.
        409 if evidence.retry_conflict => true,
        // RFC 9110 §15.5.14: temporary only if the server says so.
        413 if statuses.is_default() => evidence.hints.retry_after.is_some(),
        _ => statuses.has(status),
    }
}

static REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
static REPEATABILITY: HeaderName = HeaderName::from_static("repeatability-result");

/// A stored answer, or a key that is known with another request: the same will come again. docs.stripe.com,
/// «Idempotent requests», 2026-10; OASIS Repeatable Requests 1.0.
fn is_final(headers: &HeaderMap) -> bool {
    let says = |name: &HeaderName, word: &[u8]| {
        headers.get(name).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(word))
    };
    says(&REPLAYED, b"true") || says(&REPEATABILITY, b"rejected")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: u16, hints: &Hints, policy: &Policy, body: Option<&str>, expected: Verdict) {
        let headers = HeaderMap::new();
        let answer = Answer {
            method: &Method::GET,
            status: Some(StatusCode::from_u16(status).unwrap()),
            headers: &headers,
            error: None,
            sent: SentState::Sent,
            attempt: 1,
            word: None,
        };
        let evidence = Evidence { answer, hints, body: body.map(str::as_bytes), retry_conflict: false };
        assert_eq!(of(&evidence, policy), expected, "{status}");
    }

    fn wait(seconds: u64) -> Hints {
        Hints { retry_after: Some(Duration::from_secs(seconds)), ..Hints::default() }
    }

    fn word(should_retry: bool) -> Hints {
        Hints { should_retry: Some(should_retry), ..Hints::default() }
    }

    #[test]
    fn a_named_wait_makes_a_503_a_throttle_and_a_413_temporary() {
        let (policy, silent) = (Policy::default(), Hints::default());
        check(503, &silent, &policy, None, Verdict::Retry);
        check(503, &wait(0), &policy, None, Verdict::Retry);
        check(503, &wait(1), &policy, None, Verdict::Throttled);
        check(413, &silent, &policy, None, Verdict::Stop);
        check(413, &wait(1), &policy, None, Verdict::Retry);
        check(500, &wait(1), &policy, None, Verdict::Retry);
    }

    #[test]
    fn the_word_of_the_server_comes_first() {
        let policy = Policy::default();
        check(429, &word(false), &policy, None, Verdict::Stop);
        check(400, &word(true), &policy, None, Verdict::Retry);
        check(200, &word(true), &policy, None, Verdict::Accept);
    }

    #[test]
    fn a_403_is_a_rate_limit_only_by_name() {
        let (policy, silent) = (Policy::default().rate_limit_403(true), Hints::default());
        check(403, &wait(1), &Policy::default(), None, Verdict::Stop);
        check(403, &wait(1), &policy, None, Verdict::Throttled);
        check(403, &silent, &policy, Some("no access"), Verdict::Stop);
        let text = "You have exceeded a Secondary Rate Limit.";
        check(403, &silent, &policy, Some(text), Verdict::ThrottledFor(SECONDARY_WAIT));
    }

    #[test]
    fn own_words_come_before_the_default() {
        let policy = Policy::default()
            .retry_statuses([404])
            .classify(|answer: &Answer<'_>| (answer.status()?.as_u16() == 418).then_some(Verdict::Retry))
            .classify_body(1024, |_, _, body| (body == b"slow").then_some(Verdict::Throttled));
        let silent = Hints::default();
        check(404, &silent, &policy, None, Verdict::Retry);
        check(503, &silent, &policy, None, Verdict::Stop);
        check(418, &silent, &policy, None, Verdict::Retry);
        check(200, &silent, &policy, Some("slow"), Verdict::Throttled);
        check(200, &silent, &policy, Some("fast"), Verdict::Accept);
    }
}
