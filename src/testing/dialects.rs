//! How limits are told: one table a dialect, a row a header.

use std::{fmt, fmt::Write, str::FromStr};

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

    fn rows(self) -> &'static [Row] {
        match self {
            Self::Draft03 => &DRAFT_03,
            Self::Draft06 => &DRAFT_06,
            Self::Draft07 => &DRAFT_07,
            Self::Draft11 => &DRAFT_11,
            Self::XRateLimit => &X_RATELIMIT,
            Self::XRateLimitEpoch => &X_RATELIMIT_EPOCH,
            Self::GitHub => &GITHUB,
            Self::Stripe => &STRIPE,
            Self::OpenAi => &OPENAI,
            Self::Shopify => &SHOPIFY,
            Self::Discord => &DISCORD,
            Self::RetryAfterOnly | Self::Silent => &[],
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
    pub(super) fn status(self, other: bool) -> StatusCode {
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
pub(super) struct Told {
    pub(super) unit: Unit,
    pub(super) limit: u64,
    /// Nanoseconds; `None`: a quota without time.
    pub(super) window: Option<u64>,
    pub(super) remaining: u64,
    pub(super) reset: u64,
    /// Nanoseconds until one more unit.
    pub(super) more: u64,
}

/// Why the answer is a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Nanoseconds, or [`NEVER`].
    pub(super) wait: u64,
    /// Index of the quota that refused.
    pub(super) by: usize,
}

/// What an answer has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts<'a> {
    pub(super) quotas: &'a [Told],
    pub(super) refusal: Option<Refusal>,
    /// Nanoseconds since the Unix epoch, by the server's clock.
    pub(super) now: u64,
}

/// Writes what `dialect` says into `headers`.
pub(super) fn tell(dialect: Dialect, form: Option<RetryAfter>, facts: &Facts<'_>, headers: &mut HeaderMap) {
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
pub(super) fn refusal_body(dialect: Dialect, refusal: Refusal) -> (String, bool) {
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
pub(super) fn date(seconds: u64) -> String {
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

/// A header of a dialect.
struct Row {
    name: HeaderName,
    cell: Cell,
    when: When,
}

enum When {
    Always,
    Refused,
    /// Refused by the first quota.
    ByFirst,
    /// Refused by another.
    ByOther,
}

impl When {
    fn holds(&self, facts: &Facts<'_>) -> bool {
        match (self, facts.refusal) {
            (Self::Always, _) | (Self::Refused, Some(_)) => true,
            (Self::ByFirst, Some(refusal)) => refusal.by == 0,
            (Self::ByOther, Some(refusal)) => refusal.by > 0,
            _ => false,
        }
    }
}

/// What a header says; `(Which)` where a dialect tells several quotas apart.
enum Cell {
    Text(&'static str),
    Limit(Which),
    Remaining(Which),
    Used,
    /// `used/limit`.
    UsedOfLimit,
    Seconds,
    Epoch,
    EpochDecimal,
    AfterDecimal,
    /// `6m0s`, `34ms`.
    GoDuration(Which),
    /// `100, 100;w=60, 1000;w=3600`.
    LimitAndPolicies,
    /// `100;w=60, 1000;w=3600`.
    Policies,
    /// `limit=100, remaining=50, reset=30`.
    Dictionary,
    /// `"default";r=50;t=30`.
    Items,
    /// `"default";q=100;w=60`.
    NamedPolicies,
}

#[derive(Clone, Copy)]
enum Which {
    /// The one that refused, else the one nearest to its end.
    Tightest,
    Requests,
    Tokens,
}

impl Which {
    fn pick<'a>(self, facts: &Facts<'a>) -> Option<&'a Told> {
        match self {
            Self::Tightest => facts.tightest(),
            Self::Requests => facts.quotas.iter().find(|told| told.unit == Unit::Requests),
            Self::Tokens => facts.quotas.iter().find(|told| told.unit == Unit::Tokens),
        }
    }
}

impl<'a> Facts<'a> {
    fn tightest(&self) -> Option<&'a Told> {
        match self.refusal {
            Some(refusal) => self.quotas.get(refusal.by).or_else(|| self.quotas.first()),
            None => self.quotas.iter().min_by(|a, b| share(a, b)),
        }
    }
}

/// Compares what is left of two quotas.
fn share(a: &Told, b: &Told) -> std::cmp::Ordering {
    let cross = |x: &Told, y: &Told| u128::from(x.remaining) * u128::from(y.limit);
    cross(a, b).cmp(&cross(b, a))
}

impl Cell {
    /// `None`: there is nothing to say.
    fn write(&self, facts: &Facts<'_>, out: &mut String) -> Option<()> {
        let told = facts.tightest()?;
        let at = facts.now + told.reset;
        let written = match *self {
            Self::Text(text) => out.write_str(text),
            Self::Limit(which) => write!(out, "{}", which.pick(facts)?.limit),
            Self::Remaining(which) => write!(out, "{}", which.pick(facts)?.remaining),
            Self::Used => write!(out, "{}", told.used()),
            Self::UsedOfLimit => write!(out, "{}/{}", told.used(), told.limit),
            Self::Seconds => write!(out, "{}", told.reset.div_ceil(SECOND)),
            Self::Epoch => write!(out, "{}", at.div_ceil(SECOND)),
            Self::EpochDecimal => out.write_str(&decimal(at.div_ceil(MILLI), 3)),
            Self::AfterDecimal => out.write_str(&decimal(told.reset.div_ceil(MILLI), 3)),
            Self::GoDuration(which) => go_duration(which.pick(facts)?.reset, out),
            Self::LimitAndPolicies => write!(out, "{}, ", told.limit).and_then(|()| policies(facts, out)),
            Self::Policies => policies(facts, out),
            Self::Dictionary => {
                let reset = told.reset.div_ceil(SECOND);
                write!(out, "limit={}, remaining={}, reset={reset}", told.limit, told.remaining)
            }
            Self::Items => items(facts, out),
            Self::NamedPolicies => named_policies(facts, out),
        };
        written.ok()
    }
}

impl Told {
    fn used(&self) -> u64 {
        self.limit.saturating_sub(self.remaining)
    }

    /// Whole seconds, rounded up: a shorter window would promise more than there is.
    fn window_seconds(&self) -> Option<u64> {
        self.window.map(|nanos| nanos.div_ceil(SECOND).max(1))
    }

    /// A lone quota is `default`; several are named by unit and window, which tells them apart.
    fn name(&self, alone: bool, out: &mut String) -> fmt::Result {
        match self.window_seconds() {
            _ if alone => out.write_str("\"default\""),
            Some(seconds) => write!(out, "\"{}-{seconds}s\"", self.unit),
            None => out.write_str("\"concurrency\""),
        }
    }
}

fn policies(facts: &Facts<'_>, out: &mut String) -> fmt::Result {
    for (i, told) in facts.quotas.iter().enumerate() {
        out.write_str(if i == 0 { "" } else { ", " })?;
        write!(out, "{}", told.limit)?;
        if let Some(seconds) = told.window_seconds() {
            write!(out, ";w={seconds}")?;
        }
    }
    Ok(())
}

/// `t`: until more appears if nothing is left (draft-10, -11 §4.1.2), else until the reset.
fn items(facts: &Facts<'_>, out: &mut String) -> fmt::Result {
    for (i, told) in facts.quotas.iter().enumerate() {
        out.write_str(if i == 0 { "" } else { ", " })?;
        told.name(facts.quotas.len() == 1, out)?;
        write!(out, ";r={}", told.remaining)?;
        let until = if told.remaining == 0 { told.more } else { told.reset };
        if told.window.is_some() {
            write!(out, ";t={}", until.div_ceil(SECOND))?;
        }
    }
    Ok(())
}

fn named_policies(facts: &Facts<'_>, out: &mut String) -> fmt::Result {
    for (i, told) in facts.quotas.iter().enumerate() {
        out.write_str(if i == 0 { "" } else { ", " })?;
        told.name(facts.quotas.len() == 1, out)?;
        write!(out, ";q={}", told.limit)?;
        match (told.window_seconds(), &told.unit) {
            (None, _) => out.write_str(";qu=\"concurrent-requests\"")?,
            (Some(seconds), Unit::Requests) => write!(out, ";w={seconds}")?,
            (Some(seconds), unit) => write!(out, ";w={seconds};qu=\"{unit}\"")?,
        }
    }
    Ok(())
}

/// As Go prints a duration, in whole milliseconds: `34ms`, `1.5s`, `6m0s`, `1h0m0s`.
fn go_duration(nanos: u64, out: &mut String) -> fmt::Result {
    let millis = nanos.div_ceil(MILLI);
    let (hours, minutes, rest) = (millis / 3_600_000, millis / 60_000 % 60, millis % 60_000);
    if millis > 0 && millis < 1000 {
        return write!(out, "{millis}ms");
    }
    if hours > 0 {
        write!(out, "{hours}h")?;
    }
    if hours > 0 || minutes > 0 {
        write!(out, "{minutes}m")?;
    }
    match (rest / 1000, rest % 1000) {
        (seconds, 0) => write!(out, "{seconds}s"),
        (seconds, part) => write!(out, "{seconds}.{}s", format!("{part:03}").trim_end_matches('0')),
    }
}

const fn always(name: &'static str, cell: Cell) -> Row {
    Row { name: HeaderName::from_static(name), cell, when: When::Always }
}

const fn when(when: When, name: &'static str, cell: Cell) -> Row {
    Row { name: HeaderName::from_static(name), cell, when }
}

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

use Which::{Requests, Tightest, Tokens};

static DRAFT_03: [Row; 3] = [
    always("ratelimit-limit", Cell::LimitAndPolicies),
    always("ratelimit-remaining", Cell::Remaining(Tightest)),
    always("ratelimit-reset", Cell::Seconds),
];
static DRAFT_06: [Row; 4] = [
    always("ratelimit-limit", Cell::Limit(Tightest)),
    always("ratelimit-remaining", Cell::Remaining(Tightest)),
    always("ratelimit-reset", Cell::Seconds),
    always("ratelimit-policy", Cell::Policies),
];
static DRAFT_07: [Row; 2] = [always("ratelimit", Cell::Dictionary), always("ratelimit-policy", Cell::Policies)];
static DRAFT_11: [Row; 2] = [always("ratelimit", Cell::Items), always("ratelimit-policy", Cell::NamedPolicies)];
static X_RATELIMIT: [Row; 3] = [
    always("x-ratelimit-limit", Cell::Limit(Tightest)),
    always("x-ratelimit-remaining", Cell::Remaining(Tightest)),
    always("x-ratelimit-reset", Cell::Seconds),
];
static X_RATELIMIT_EPOCH: [Row; 3] = [
    always("x-ratelimit-limit", Cell::Limit(Tightest)),
    always("x-ratelimit-remaining", Cell::Remaining(Tightest)),
    always("x-ratelimit-reset", Cell::Epoch),
];
// docs.github.com, rate limits for the REST API.
static GITHUB: [Row; 5] = [
    always("x-ratelimit-limit", Cell::Limit(Tightest)),
    always("x-ratelimit-remaining", Cell::Remaining(Tightest)),
    always("x-ratelimit-reset", Cell::Epoch),
    always("x-ratelimit-used", Cell::Used),
    always("x-ratelimit-resource", Cell::Text("core")),
];
// docs.stripe.com, rate limits; stripe-go reads the override.
static STRIPE: [Row; 2] = [
    when(When::Refused, "stripe-should-retry", Cell::Text("true")),
    when(When::Refused, "stripe-rate-limited-reason", Cell::Text("global-rate")),
];
// platform.openai.com, rate limits in headers.
static OPENAI: [Row; 6] = [
    always("x-ratelimit-limit-requests", Cell::Limit(Requests)),
    always("x-ratelimit-remaining-requests", Cell::Remaining(Requests)),
    always("x-ratelimit-reset-requests", Cell::GoDuration(Requests)),
    always("x-ratelimit-limit-tokens", Cell::Limit(Tokens)),
    always("x-ratelimit-remaining-tokens", Cell::Remaining(Tokens)),
    always("x-ratelimit-reset-tokens", Cell::GoDuration(Tokens)),
];
// shopify.dev, API limits of the REST Admin API.
static SHOPIFY: [Row; 1] = [always("x-shopify-shop-api-call-limit", Cell::UsedOfLimit)];
// discord.com/developers, rate limits.
static DISCORD: [Row; 8] = [
    always("x-ratelimit-limit", Cell::Limit(Tightest)),
    always("x-ratelimit-remaining", Cell::Remaining(Tightest)),
    always("x-ratelimit-reset", Cell::EpochDecimal),
    always("x-ratelimit-reset-after", Cell::AfterDecimal),
    always("x-ratelimit-bucket", Cell::Text("abcd1234")),
    when(When::ByFirst, "x-ratelimit-scope", Cell::Text("user")),
    when(When::ByOther, "x-ratelimit-scope", Cell::Text("global")),
    when(When::ByOther, "x-ratelimit-global", Cell::Text("true")),
];
