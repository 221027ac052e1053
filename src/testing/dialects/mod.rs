//! How limits are told: one table a dialect, a row a header.

mod cells;
mod table;
#[cfg(test)]
mod tests;

use std::{fmt, str::FromStr};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::{
    algorithms::NEVER,
    names::{self, UnknownName},
};
use crate::limit::Unit;

/// How the practice server tells its limits.
///
/// | dialect | on every answer | on a refusal |
/// | --- | --- | --- |
/// | `Draft03` | `RateLimit-Limit: 100, 100;w=60`, `-Remaining`, `-Reset` in seconds | 429, Retry-After |
/// | `Draft06` | the trio and `RateLimit-Policy: 100;w=60` | 429, Retry-After |
/// | `Draft07` | `RateLimit: limit=100, remaining=50, reset=30` and the policy | 429, Retry-After |
/// | `Draft11` | `RateLimit: "default";r=50;t=30`, `RateLimit-Policy: "default";q=100;w=60` | 429, Retry-After |
/// | `XRateLimit` | `X-RateLimit-Limit`, `-Remaining`, `-Reset` in seconds | 429, Retry-After |
/// | `XRateLimitEpoch` | the same, the reset as Unix time | 429, Retry-After |
/// | `RetryAfterOnly` | nothing | 429, Retry-After |
/// | `GitHub` | `X-RateLimit-*` with Unix time, used and resource `core` | first limit: 429; others: 403, Retry-After, "secondary rate limit" |
/// | `Stripe` | nothing | 429, `Stripe-Should-Retry: true`, no wait |
/// | `OpenAi` | `X-RateLimit-{Limit,Remaining,Reset}-{Requests,Tokens}`, resets as `6m0s` | 429, Retry-After and `-Ms` |
/// | `Shopify` | `X-Shopify-Shop-Api-Call-Limit: 32/40` | 429, Retry-After as `2.0` |
/// | `Discord` | `X-RateLimit-*` with bucket, decimal reset and reset-after | 429, Retry-After, JSON `retry_after`; other limits than the first: global |
/// | `Silent` | nothing | 429 |
///
/// Whole seconds are rounded up, so that a client that waits as told is not early. With several limits the one
/// nearest to its end is told where a dialect has room for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// draft-ietf-httpapi-ratelimit-headers-03.
    Draft03,
    /// draft-ietf-httpapi-ratelimit-headers-06.
    Draft06,
    /// draft-ietf-httpapi-ratelimit-headers-07.
    Draft07,
    /// draft-ietf-httpapi-ratelimit-headers-11.
    #[default]
    Draft11,
    /// `X-RateLimit-*`, reset in seconds from now.
    XRateLimit,
    /// `X-RateLimit-*`, reset as Unix time.
    XRateLimitEpoch,
    /// Only a 429 with Retry-After.
    RetryAfterOnly,
    /// GitHub's REST API.
    GitHub,
    /// Stripe.
    Stripe,
    /// OpenAI, requests and tokens apart.
    OpenAi,
    /// Shopify's REST API.
    Shopify,
    /// Discord.
    Discord,
    /// A bare 429.
    Silent,
}

impl Dialect {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Draft03,
        Self::Draft06,
        Self::Draft07,
        Self::Draft11,
        Self::XRateLimit,
        Self::XRateLimitEpoch,
        Self::RetryAfterOnly,
        Self::GitHub,
        Self::Stripe,
        Self::OpenAi,
        Self::Shopify,
        Self::Discord,
        Self::Silent,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Draft03 => "draft-03",
            Self::Draft06 => "draft-06",
            Self::Draft07 => "draft-07",
            Self::Draft11 => "draft-11",
            Self::XRateLimit => "x-ratelimit",
            Self::XRateLimitEpoch => "x-ratelimit-epoch",
            Self::RetryAfterOnly => "retry-after",
            Self::GitHub => "github",
            Self::Stripe => "stripe",
            Self::OpenAi => "openai",
            Self::Shopify => "shopify",
            Self::Discord => "discord",
            Self::Silent => "none",
        }
    }

    /// Its counters are those of the first limit, whatever refused.
    fn tells_first(self) -> bool {
        matches!(self, Self::GitHub | Self::Discord)
    }

    /// The form its refusals use when the builder names none.
    fn retry_after(self, other: bool) -> RetryAfter {
        match self {
            Self::Stripe | Self::Silent => RetryAfter::Absent,
            Self::GitHub if !other => RetryAfter::Absent,
            Self::Shopify => RetryAfter::Decimal,
            Self::OpenAi => RetryAfter::SecondsAndMillis,
            _ => RetryAfter::Seconds,
        }
    }

    /// The status of a refusal.
    pub(in crate::testing) fn status(self, other: bool) -> StatusCode {
        match self {
            Self::GitHub if other => StatusCode::FORBIDDEN,
            _ => StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Dialect {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        names::find("dialect", Self::ALL, Self::as_str, text)
    }
}

/// How a refusal names its wait; unset, the dialect decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RetryAfter {
    /// Whole seconds, rounded up.
    Seconds,
    /// Seconds with one decimal, rounded up.
    Decimal,
    /// Whole seconds, and `Retry-After-Ms` beside it.
    SecondsAndMillis,
    /// An HTTP-date by the server's clock, rounded up.
    Date,
    /// No such header.
    Absent,
}

/// One quota as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::testing) struct Told {
    pub(in crate::testing) unit: Unit,
    pub(in crate::testing) limit: u64,
    /// Nanoseconds; `None`: a quota without time.
    pub(in crate::testing) window: Option<u64>,
    pub(in crate::testing) remaining: u64,
    pub(in crate::testing) reset: u64,
    /// Nanoseconds until one more unit.
    pub(in crate::testing) more: u64,
}

/// Why the answer is a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::testing) struct Refusal {
    /// Nanoseconds, or [`NEVER`].
    pub(in crate::testing) wait: u64,
    /// Index of the quota that refused.
    pub(in crate::testing) by: usize,
}

/// What an answer has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::testing) struct Facts<'a> {
    pub(in crate::testing) quotas: &'a [Told],
    pub(in crate::testing) refusal: Option<Refusal>,
    /// Nanoseconds since the Unix epoch, by the server's clock.
    pub(in crate::testing) now: u64,
}

/// Writes what `dialect` says into `headers`.
pub(in crate::testing) fn tell(dialect: Dialect, form: Option<RetryAfter>, facts: &Facts<'_>, headers: &mut HeaderMap) {
    let mut text = String::new();
    let first = facts.quotas.len().min(1);
    let told = if dialect.tells_first() { &facts.quotas[..first] } else { facts.quotas };
    let facts = &Facts { quotas: told, ..*facts };
    for row in dialect.rows() {
        text.clear();
        if row.when.holds(facts) && row.cell.write(facts, &mut text).is_some() {
            insert(headers, row.name.clone(), &text);
        }
    }
    if let Some(refusal) = facts.refusal.filter(|refusal| refusal.wait != NEVER) {
        let form = form.unwrap_or_else(|| dialect.retry_after(refusal.by > 0));
        tell_wait(form, refusal.wait, facts.now, headers);
    }
}

fn tell_wait(form: RetryAfter, wait: u64, now: u64, headers: &mut HeaderMap) {
    let seconds = wait.div_ceil(SECOND);
    let text = match form {
        RetryAfter::Absent => return,
        RetryAfter::Seconds | RetryAfter::SecondsAndMillis => seconds.to_string(),
        RetryAfter::Decimal => decimal(wait.div_ceil(SECOND / 10), 1),
        RetryAfter::Date => date((now + wait).div_ceil(SECOND)),
    };
    insert(headers, http::header::RETRY_AFTER, &text);
    if form == RetryAfter::SecondsAndMillis {
        insert(headers, RETRY_AFTER_MS, &wait.div_ceil(MILLI).to_string());
    }
}

/// The body of a refusal, and whether it is JSON.
pub(in crate::testing) fn refusal_body(dialect: Dialect, refusal: Refusal) -> (String, bool) {
    let wait = if refusal.wait == NEVER { 0 } else { refusal.wait };
    let body = match dialect {
        Dialect::Discord => format!(
            r#"{{"message":"You are being rate limited.","retry_after":{},"global":{}}}"#,
            decimal(wait.div_ceil(MILLI), 3),
            refusal.by > 0
        ),
        Dialect::GitHub if refusal.by > 0 => {
            r#"{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}"#
                .to_owned()
        }
        Dialect::GitHub => r#"{"message":"API rate limit exceeded"}"#.to_owned(),
        Dialect::Stripe => r#"{"error":{"code":"rate_limit","type":"invalid_request_error"}}"#.to_owned(),
        Dialect::OpenAi => r#"{"error":{"code":"rate_limit_exceeded","message":"Rate limit reached"}}"#.to_owned(),
        _ => return ("too many requests\n".to_owned(), false),
    };
    (body, true)
}

/// An HTTP-date of Unix seconds.
pub(in crate::testing) fn date(seconds: u64) -> String {
    // The last second of the year 9999: later ones have no HTTP-date (RFC 9110 §5.6.7).
    let at = std::time::Duration::from_secs(seconds.min(253_402_300_799));
    httpdate::fmt_http_date(std::time::UNIX_EPOCH + at)
}

/// `value` · 10^-places.
fn decimal(value: u64, places: usize) -> String {
    let unit = 10_u64.pow(u32::try_from(places).unwrap_or(0));
    format!("{}.{:0places$}", value / unit, value % unit)
}

fn insert(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
