//! Waits and overrides told by header fields (RFC 9110 §10.2.3 and its siblings). The longest readable wait of a field
//! counts; a more exact field outranks a rounded one.

use std::time::Duration;

use super::{
    QuotaHint,
    date::Clock,
    ratelimit::MAX_MEMBERS,
    value::{self, Plain},
};

/// The fields that name a wait, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Milliseconds by name: `retry-after-ms`, `x-ms-retry-after-ms`, `grpc-retry-pushback-ms`, `x-amz-retry-after`.
    Exact,
    /// `x-retry-in`, Traefik's exact form of its rounded `Retry-After`.
    RetryIn,
    /// `Retry-After` itself.
    RetryAfter,
    /// `x-retry-after`, `*-ratelimit-retry-after`, `retry-after-<name>`.
    Alias,
}

/// What the fields of one response say about a wait and about a retry.
#[derive(Debug, Default)]
pub(super) struct Waits {
    exact: Option<Duration>,
    retry_in: Option<Duration>,
    retry_after: Option<Duration>,
    alias: Option<Duration>,
    /// The longest plain seconds among the values of `Retry-After`.
    bare: Option<Duration>,
    pub(super) should_retry: Option<bool>,
    /// `grpc-retry-pushback-ms` had a line that is negative or unreadable.
    pushback_refused: bool,
}

impl Waits {
    /// Takes in one line of a header whose name has `retry` in it.
    pub(super) fn note(&mut self, name: &str, text: &[u8], clock: &Clock<'_>) {
        if matches!(name, "x-should-retry" | "stripe-should-retry") {
            return self.note_override(text.trim_ascii());
        }
        let Some(source) = Source::of(name) else { return };
        let plain = if source == Source::Exact { Plain::Millis } else { Plain::Seconds };
        let wait = longest(text, clock, plain);
        if name == "grpc-retry-pushback-ms" {
            self.pushback_refused |= wait.is_none();
        }
        if source == Source::RetryAfter {
            let plain = value::parts(text, b',').take(MAX_MEMBERS).filter(|part| value::is_delta(part));
            self.bare = self.bare.max(plain.filter_map(|part| value::wait(part, clock, Plain::Seconds)).max());
        }
        self.add(source, wait);
    }

    /// Takes in a wait of the given rank.
    pub(super) fn add(&mut self, source: Source, wait: Option<Duration>) {
        let slot = match source {
            Source::Exact => &mut self.exact,
            Source::RetryIn => &mut self.retry_in,
            Source::RetryAfter => &mut self.retry_after,
            Source::Alias => &mut self.alias,
        };
        *slot = (*slot).max(wait);
    }

    /// The wait, once the quotas of the response are known.
    pub(super) fn wait(&self, quotas: &[QuotaHint]) -> Option<Duration> {
        let retry_after = self.retry_after.map(|wait| self.milliseconds_by_mistake(wait, quotas).unwrap_or(wait));
        self.exact.or(self.retry_in).or(retry_after).or(self.alias)
    }

    /// The explicit word for or against a retry. A pushback that is negative or unreadable forbids one (gRPC A6).
    pub(super) fn word(&self) -> Option<bool> {
        if self.pushback_refused { Some(false) } else { self.should_retry }
    }

    fn note_override(&mut self, text: &[u8]) {
        let word = if text.eq_ignore_ascii_case(b"true") {
            true
        } else if text.eq_ignore_ascii_case(b"false") {
            false
        } else {
            return;
        };
        // The word against a retry holds.
        self.should_retry = Some(word && self.should_retry.unwrap_or(true));
    }

    /// fastify-rate-limit 8.0 sent milliseconds (its issue 301). Only an exhausted quota of the same response proves
    /// it.
    fn milliseconds_by_mistake(&self, wait: Duration, quotas: &[QuotaHint]) -> Option<Duration> {
        if self.bare != Some(wait) || wait < Duration::from_secs(1000) {
            return None;
        }
        let seconds = wait.as_secs_f64();
        let exhausted =
            quotas.iter().filter(|quota| quota.remaining == Some(0.0)).filter_map(|quota| quota.reset_after);
        let proof = exhausted.map(|reset| reset.as_secs_f64()).any(|reset| {
            let millis = seconds / 1000.0;
            seconds > 100.0 * reset && reset / 2.0 <= millis && millis <= 2.0 * reset
        });
        let millis = u64::try_from(wait.as_millis().div_ceil(1000)).ok()?;
        proof.then(|| Duration::from_millis(millis))
    }
}

impl Source {
    /// By a name that has `retry` in it.
    fn of(name: &str) -> Option<Self> {
        let ends = |end| name.ends_with(end);
        if name == "retry-after" {
            Some(Self::RetryAfter)
        } else if name == "x-retry-in" {
            Some(Self::RetryIn)
        } else if ends("retry-after-ms")
            || ends("retry-pushback-ms")
            || ends("retry-after-milliseconds")
            || name == "x-amz-retry-after"
        {
            Some(Self::Exact)
        } else if name == "x-retry-after"
            || name.starts_with("retry-after-")
            || ends("ratelimit-retry-after")
            || ends("rate-limit-retry-after")
        {
            Some(Self::Alias)
        } else {
            None
        }
    }
}

/// The longest readable wait of one line.
pub(super) fn longest(text: &[u8], clock: &Clock<'_>, plain: Plain) -> Option<Duration> {
    value::longest(text, |text| value::wait(text, clock, plain))
}
