//! One call's rules.
//!
//! Invariant: pure. Settings are checked once, in `build()` or, for a call's own policy, in `send()`.

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};

use crate::{Backoff, Error, RetryBudget, Verdict, verdict::Classify};

/// When a call that may not be repeated is repeated all the same.
///
/// May be repeated: GET HEAD OPTIONS TRACE QUERY PUT DELETE; a call with an idempotency key, with If-Match or
/// If-Unmodified-Since; and what the caller vouches for by `idempotent()` (RFC 9110 §9.2.2, RFC 10008).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NonIdempotent {
    /// Sent once, whatever the failure.
    #[default]
    Never,
    /// When it certainly was not processed: no connection, a stream refused unread.
    WhenUnsent,
    /// Also when the server says that it refused it: 429, 503, 425.
    WhenRefused,
    /// Always: it may be executed twice.
    Always,
}

type ByBody = dyn Fn(StatusCode, &HeaderMap, &[u8]) -> Option<Verdict> + Send + Sync;

/// One call's rules: attempts, waits, deadline, and what is retried.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use abide::{Backoff, Policy};
///
/// let policy = Policy::default()
///     .max_attempts(6)
///     .deadline(Duration::from_secs(300))
///     .backoff(Backoff::full_jitter(Duration::from_millis(500), Duration::from_secs(30)));
/// # let _ = policy;
/// ```
#[derive(Clone)]
pub struct Policy {
    max_attempts: u32,
    backoff: Option<Backoff>,
    throttle_backoff: Option<Backoff>,
    deadline: Option<Duration>,
    attempt_timeout: Duration,
    max_server_wait: Duration,
    statuses: Statuses,
    non_idempotent: NonIdempotent,
    rate_limit_403: bool,
    poll_202: bool,
    classify: Option<Arc<dyn Classify>>,
    by_body: Option<(usize, Arc<ByBody>)>,
    budget: Option<RetryBudget>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_attempts: 4,
            backoff: None,
            throttle_backoff: None,
            deadline: Some(Duration::from_secs(120)),
            attempt_timeout: Duration::from_secs(60),
            max_server_wait: Duration::from_secs(120),
            statuses: Statuses::default(),
            non_idempotent: NonIdempotent::Never,
            rate_limit_403: false,
            poll_202: false,
            classify: None,
            by_body: None,
            budget: Some(RetryBudget::default()),
        }
    }
}

impl Policy {
    /// Attempts of the call, the first included; redirect hops and 202 polls are not counted. Default 4; zero is an
    /// error of `build()` or `send()`.
    #[must_use]
    pub fn max_attempts(self, max_attempts: u32) -> Self {
        Self { max_attempts, ..self }
    }

    /// The wait before a retry when the server named none. Default: full jitter, base 200 ms, cap 20 s.
    ///
    /// Once set it also holds after a throttle, unless [`throttle_backoff`](Self::throttle_backoff) is set.
    #[must_use]
    pub fn backoff(self, backoff: Backoff) -> Self {
        Self { backoff: Some(backoff), ..self }
    }

    /// The wait after a 429 that names none. Default: full jitter, base 1 s, cap 60 s.
    #[must_use]
    pub fn throttle_backoff(self, backoff: Backoff) -> Self {
        Self { throttle_backoff: Some(backoff), ..self }
    }

    /// How long the whole call may take: limiter waits, attempts, sleeps, buffered body. Default 120 s.
    ///
    /// A wait that would end past it is not begun. Zero: a call ends before anything is sent.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// As long as it takes.
    #[must_use]
    pub fn no_deadline(self) -> Self {
        Self { deadline: None, ..self }
    }

    /// How long one attempt may take until the head of its answer; until the end of the body when it is buffered.
    /// Default 60 s. Each redirect hop has it anew. Zero is an error of `build()` or `send()`.
    #[must_use]
    pub fn attempt_timeout(self, attempt_timeout: Duration) -> Self {
        Self { attempt_timeout, ..self }
    }

    /// The longest wait of the server's that is waited. Default 120 s; zero: none is.
    ///
    /// When it asks for more the call ends at once, with that wait in its history: a wait is never clipped.
    #[must_use]
    pub fn max_server_wait(self, max_server_wait: Duration) -> Self {
        Self { max_server_wait, ..self }
    }

    /// Replaces the statuses that are retried: 408 425 429 500 502 503 504 522 524, and 413 with Retry-After.
    ///
    /// Each must be a status from 100 to 599, else it is an error of `build()` or `send()`.
    #[must_use]
    pub fn retry_statuses(self, statuses: impl IntoIterator<Item = u16>) -> Self {
        Self { statuses: Statuses::of(statuses), ..self }
    }

    /// What of a call that may not be repeated is repeated all the same. Default: nothing.
    #[must_use]
    pub fn retry_non_idempotent(self, non_idempotent: NonIdempotent) -> Self {
        Self { non_idempotent, ..self }
    }

    /// Takes a 403 of GitHub's kind for a rate limit: with Retry-After, with Remaining 0 and a reset, or with
    /// "secondary rate limit" in its body (then at least 60 s). Default off.
    #[must_use]
    pub fn rate_limit_403(self, rate_limit_403: bool) -> Self {
        Self { rate_limit_403, ..self }
    }

    /// After a 202 with Retry-After, asks by GET for the result, at `Operation-Location`, `Azure-AsyncOperation` or
    /// `Location` of the same origin, until it is no 202. Default off. Polls are no attempts; the deadline ends them.
    #[must_use]
    pub fn poll_202(self, poll_202: bool) -> Self {
        Self { poll_202, ..self }
    }

    /// The caller's own word on what a result means, before the default.
    #[must_use]
    pub fn classify(self, classify: impl Classify) -> Self {
        Self { classify: Some(Arc::new(classify)), ..self }
    }

    /// Reads bodies of at most so many bytes inside the attempt and asks what they mean, before
    /// [`classify`](Self::classify): a failure hidden in a 200. Longer ones are handed over unclassified.
    #[must_use]
    pub fn classify_body<F>(self, limit: usize, classify: F) -> Self
    where
        F: Fn(StatusCode, &HeaderMap, &[u8]) -> Option<Verdict> + Send + Sync + 'static,
    {
        Self { by_body: Some((limit, Arc::new(classify))), ..self }
    }

    /// The share of calls that may be retries. Default: 20 % over 10 s, at least 10, per limiter key.
    #[must_use]
    pub fn budget(self, budget: RetryBudget) -> Self {
        Self { budget: Some(budget), ..self }
    }

    /// Each call retries for itself.
    #[must_use]
    pub fn no_budget(self) -> Self {
        Self { budget: None, ..self }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.max_attempts == 0 {
            return Err(Error::builder("max_attempts must be at least 1"));
        }
        if self.attempt_timeout.is_zero() {
            return Err(Error::builder("attempt_timeout must be more than 0"));
        }
        if self.statuses.invalid {
            return Err(Error::builder("retry_statuses must be from 100 to 599"));
        }
        self.budget.as_ref().map_or(Ok(()), RetryBudget::check)
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.max_attempts
    }

    /// The backoff in force: two causes, two scales.
    pub(crate) fn backoff_after(&self, throttled: bool) -> Backoff {
        let plain = self.backoff;
        match throttled {
            false => plain.unwrap_or_default(),
            true => self.throttle_backoff.or(plain).unwrap_or_else(after_throttle),
        }
    }

    pub(crate) fn whole(&self) -> Option<Duration> {
        self.deadline
    }

    pub(crate) fn per_attempt(&self) -> Duration {
        self.attempt_timeout
    }

    pub(crate) fn longest_wait(&self) -> Duration {
        self.max_server_wait
    }

    pub(crate) fn statuses(&self) -> &Statuses {
        &self.statuses
    }

    pub(crate) fn non_idempotent(&self) -> NonIdempotent {
        self.non_idempotent
    }

    pub(crate) fn is_rate_limit_403(&self) -> bool {
        self.rate_limit_403
    }

    pub(crate) fn polls(&self) -> bool {
        self.poll_202
    }

    pub(crate) fn classifier(&self) -> Option<&dyn Classify> {
        self.classify.as_deref()
    }

    pub(crate) fn by_body(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Option<Verdict> {
        self.by_body.as_ref().and_then(|(_, classify)| classify(status, headers, body))
    }

    /// How much of a body is read to be classified.
    pub(crate) fn body_limit(&self) -> Option<usize> {
        self.by_body.as_ref().map(|(limit, _)| *limit)
    }

    pub(crate) fn retry_budget(&self) -> Option<&RetryBudget> {
        self.budget.as_ref()
    }
}

fn after_throttle() -> Backoff {
    Backoff::full_jitter(Duration::from_secs(1), Duration::from_secs(60))
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("max_attempts", &self.max_attempts)
            .field("backoff", &self.backoff_after(false))
            .field("throttle_backoff", &self.backoff_after(true))
            .field("deadline", &self.deadline)
            .field("attempt_timeout", &self.attempt_timeout)
            .field("max_server_wait", &self.max_server_wait)
            .field("retry_non_idempotent", &self.non_idempotent)
            .field("rate_limit_403", &self.rate_limit_403)
            .field("poll_202", &self.poll_202)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

/// A set of statuses from 100 to 599.
#[derive(Clone, Debug)]
pub(crate) struct Statuses {
    bits: [u64; 8],
    default: bool,
    invalid: bool,
}

/// Statuses that another attempt may mend: RFC 9110 §15, RFC 8470 §5.2, RFC 6585 §4; 522 and 524 are Cloudflare's
/// time-outs. 413 has a rule of its own.
const RETRIED: [u16; 9] = [408, 425, 429, 500, 502, 503, 504, 522, 524];

impl Default for Statuses {
    fn default() -> Self {
        Self { default: true, ..Self::of(RETRIED) }
    }
}

impl Statuses {
    fn of(statuses: impl IntoIterator<Item = u16>) -> Self {
        let mut set = Self { bits: [0; 8], default: false, invalid: false };
        for status in statuses {
            match place(status) {
                Some((word, bit)) => set.bits[word] |= bit,
                None => set.invalid = true,
            }
        }
        set
    }

    pub(crate) fn has(&self, status: StatusCode) -> bool {
        place(status.as_u16()).is_some_and(|(word, bit)| self.bits[word] & bit != 0)
    }

    pub(crate) fn is_default(&self) -> bool {
        self.default
    }
}

fn place(status: u16) -> Option<(usize, u64)> {
    let offset = status.checked_sub(100).filter(|offset| *offset < 500)?;
    Some((usize::from(offset / 64), 1 << (offset % 64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_named() {
        let check = |policy: Policy, words: &str| {
            let error = policy.check().unwrap_err();
            assert!(error.is_builder() && error.to_string().contains(words), "{error}");
        };
        check(Policy::default().max_attempts(0), "max_attempts");
        check(Policy::default().attempt_timeout(Duration::ZERO), "attempt_timeout");
        check(Policy::default().retry_statuses([600]), "retry_statuses");
        check(Policy::default().budget(RetryBudget::ratio(1.5)), "ratio");
        check(Policy::default().budget(RetryBudget::ratio(f64::NAN)), "ratio");
        assert!(Policy::default().check().is_ok());
    }

    #[test]
    fn the_throttle_backoff_follows_the_backoff_once_that_is_set() {
        let (own, other) = (Backoff::constant(Duration::from_secs(3)), Backoff::none());
        assert_eq!(Policy::default().backoff_after(true).base(), Duration::from_secs(1));
        assert_eq!(Policy::default().backoff(own).backoff_after(true), own);
        assert_eq!(Policy::default().backoff(own).throttle_backoff(other).backoff_after(true), other);
    }
}
