//! What a response says about limits and waits.
//!
//! [`read`] takes in one response head (and a small JSON error body) and reports what it says, in one pass and without
//! configuration. It does not cap, does not look at the status code to decide what a field means, and never fails: what
//! it cannot read is as if it were absent. Caps and what to do about it are the limiter's and the call's business.
//!
//! Servers disagree about nearly everything. Each ambiguity has one rule:
//!
//! | ambiguity | rule | source |
//! | --- | --- | --- |
//! | a plain number: delta or Unix time? | below 10^9 seconds from now; 10^9 to 10^11 Unix seconds; 10^12 to 10^14 Unix milliseconds; 10^15 to 10^17 Unix microseconds; else unreadable | the four ranges are disjoint for every instant from 2001 to 5138; GitLab sends Unix time under the draft's own names |
//! | seconds or milliseconds? | milliseconds if the name ends in `-ms` or `-milliseconds`, for `x-amz-retry-after`, `gw-ratelimit-reset`, and `x-ratelimit-reset-*` beside `x-ratelimit-renewalperiod-*`; else seconds | Azure, botocore, KuCoin and Azure OpenAI as recorded |
//! | `Retry-After` that is milliseconds by mistake | only if at least 1000, and an exhausted quota resets more than 100 times sooner, and as milliseconds it is half to twice that reset | fastify-rate-limit issue 301 |
//! | a value with units | `h m s ms us ns` or `hh:mm:ss`: carries its own unit whatever the name says | Go's `time.Duration`, OpenAI; Azure Resource Graph |
//! | dates | the three HTTP-dates and ISO 8601, against the response's `Date` + `Age` when usable, else the time of receipt; past is 0 | RFC 9110 §5.6.7, §6.6.1; RFC 9111 §1.2.2 |
//! | two-digit years | at most 50 years ahead | RFC 9110 §5.6.7 |
//! | absurd waits | digits outside the ranges saturate at 2^31 s in a wait, and are unreadable in a reset | RFC 9111 §1.2.2 |
//! | rounding | whole milliseconds, up | never early |
//! | which wait? | first readable of `*retry-after-ms`, `*retry-pushback-ms`, `x-amz-retry-after`; `x-retry-in`; `retry-after`; `x-retry-after`, `*-ratelimit-retry-after`, `x-ratelimit-after`, `retry-after-<name>`; the body | the exact form outranks the rounded one: openai-python, Traefik |
//! | several waits in one field | the longest readable one | RFC 9110 §5.3 forbids them, proxies join them |
//! | a quota's reset | is never a wait by itself | draft-ietf-httpapi-ratelimit-headers-11 §4.1.2 |
//! | retry or not? | `x-should-retry`, `stripe-should-retry`; an unreadable or negative `grpc-retry-pushback-ms` is a no; a no outranks a yes | openai-python, stripe-python, gRPC A6 |
//! | which draft? | by the first bytes: numbers -01 to -06, `limit=` -07, names -08 to -11 | the tagged drafts |
//! | which policy is in force? | the only one whose quota is the limit told | drafts -01 to -06, Envoy |
//! | malformed lists | a number parameter that is no whole number voids the field; two names, a `;` at the end or an odd `pk` do not | RFC 9651 §2.2; Hugging Face; the draft's own examples |
//! | role and name in a header's name | the last word is the role, else the first, else it is glued on; the rest is the quota's name | OpenAI, Anthropic, Yelp |
//! | the vendor in a header's name | is no name, unless the response has the family without it too | Strava |
//! | windows in names | a period word, a counted one, or a bare number in front; none for months and years | Kong, Mistral, HubSpot |
//! | a negative number or a word | not told; never an exhausted quota | Spring Cloud Gateway, Azure OpenAI, Cloud Foundry |
//! | lists by position or policies? | by position only beside a list of used or remaining of the same length | Strava |
//! | one quota told twice | nameless ones that do not contradict each other are one; a nameless one with limit and remaining of exactly one named quota is that one | Zendesk, express-rate-limit, Kong |
//! | a marker (`x-envoy-ratelimited`, `x-ratelimit-global`) | nothing to read | Envoy, Discord |
//!
//! Bounds: 8 KiB and 64 members a field, 64 bytes a number, 128 header lines, 16 KiB and 32 levels of a body.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

mod assemble;
mod body;
mod date;
mod draft;
mod explain;
mod family;
mod ratelimit;
mod retry_after;
#[cfg(test)]
mod tests;
mod value;
mod vendor;

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};

pub(crate) use body::MAX_BODY;
pub use explain::{Explanation, Reading, explain};

use crate::Unit;
use date::Clock;
use draft::Drafts;
use family::{Field, Interest, Role};
use retry_after::{Source, Waits};
use value::Plain;

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
///
/// `received` is the wall clock at receipt; dates are measured against the response's own `Date` where it has one.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use abide::headers;
/// use abide::http::{HeaderMap, HeaderValue, StatusCode};
///
/// let mut head = HeaderMap::new();
/// head.insert("ratelimit-policy", HeaderValue::from_static("\"default\";q=100;w=60"));
/// head.insert("ratelimit", HeaderValue::from_static("\"default\";r=0;t=12"));
/// head.insert("retry-after", HeaderValue::from_static("12"));
///
/// let hints = headers::read(StatusCode::TOO_MANY_REQUESTS, &head, None, SystemTime::UNIX_EPOCH);
/// assert!(hints.refused);
/// assert_eq!(hints.retry_after, Some(Duration::from_secs(12)));
/// assert_eq!(hints.quotas[0].limit, Some(100.0));
/// assert_eq!(hints.quotas[0].window, Some(Duration::from_secs(60)));
/// ```
#[must_use]
pub fn read(status: StatusCode, headers: &HeaderMap, body: Option<&[u8]>, received: SystemTime) -> Hints {
    let clock = Clock::new(headers, received);
    let mut lines = Lines::default();
    for (name, value) in headers {
        let name = name.as_str();
        match family::interest(name) {
            None => {}
            Some(Interest::Retry) => lines.waits.note(name, value.as_bytes(), &clock),
            Some(Interest::Limit) => lines.limit(name, value.as_bytes().trim_ascii(), &clock),
        }
    }
    let Lines { waits, fields, found } = lines;
    let none = fields.is_empty() && found.is_empty();
    let quotas = if none { Vec::new() } else { assemble::quotas(fields, found, &clock) };
    let retry_after = waits.wait(&quotas).or_else(|| body.and_then(|body| body::wait(body, &clock)));
    let refused = match status {
        StatusCode::TOO_MANY_REQUESTS => true,
        StatusCode::SERVICE_UNAVAILABLE => retry_after.is_some(),
        _ => false,
    };
    Hints { retry_after, should_retry: waits.word(), refused, quotas }
}

/// The wait that a throttled answer asks for: the one named; else the longest reset of the quotas with nothing left;
/// else that of the quotas that do not tell what is left.
#[must_use]
pub(crate) fn asked_wait(hints: &Hints) -> Option<Duration> {
    let longest = |remaining: Option<f64>| {
        let quotas = hints.quotas.iter().filter(move |quota| quota.remaining == remaining);
        quotas.filter_map(|quota| quota.reset_after).max()
    };
    hints.retry_after.or_else(|| longest(Some(0.0))).or_else(|| longest(None))
}

/// Most header lines about limits that are taken in.
const MAX_LINES: usize = 128;

/// What one pass over the headers collects.
#[derive(Default)]
struct Lines<'h> {
    waits: Waits,
    fields: Vec<Field<'h>>,
    found: Drafts<'h>,
}

impl<'h> Lines<'h> {
    /// Takes in one line whose name is about a limit.
    fn limit(&mut self, name: &'h str, text: &'h [u8], clock: &Clock<'_>) {
        if text.is_empty() || self.fields.len() >= MAX_LINES {
            return;
        }
        if name.ends_with("-rate-limits") {
            if !ratelimit::oversized(std::iter::once(text)) {
                vendor::sentry(text, clock, &mut self.waits, &mut |hint| self.found.quota(name, hint));
            }
            return;
        }
        match family::field(name, text) {
            Some(field) if field.role == Role::Wait => {
                self.waits.add(Source::Alias, retry_after::longest(text, clock, Plain::Seconds));
            }
            Some(field) => self.push(field),
            None if ratelimit::oversized(std::iter::once(text)) => {}
            None if vendor::one_line(name, text, clock, &mut self.found) => {}
            None => {
                if let Some(field) = family::odd(name, text) {
                    self.push(field);
                }
            }
        }
    }

    fn push(&mut self, mut field: Field<'h>) {
        let known = self.fields.iter().find(|other| other.same_quota(&field));
        field.group = known.map_or(self.fields.len(), |known| known.group);
        self.fields.push(field);
    }
}
