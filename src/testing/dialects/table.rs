//! The dialects: a row a header.

use http::HeaderName;

use super::{
    Dialect,
    cells::{
        Cell, Row, When,
        Which::{Requests, Tightest, Tokens},
    },
};

impl Dialect {
    /// Its headers.
    pub(super) fn rows(self) -> &'static [Row] {
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
}

const fn always(name: &'static str, cell: Cell) -> Row {
    Row { name: HeaderName::from_static(name), cell, when: When::Always }
}

const fn when(when: When, name: &'static str, cell: Cell) -> Row {
    Row { name: HeaderName::from_static(name), cell, when }
}

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
    when(When::UnlessOther, "x-ratelimit-limit", Cell::Limit(Tightest)),
    when(When::UnlessOther, "x-ratelimit-remaining", Cell::Remaining(Tightest)),
    when(When::UnlessOther, "x-ratelimit-reset", Cell::EpochDecimal),
    when(When::UnlessOther, "x-ratelimit-reset-after", Cell::AfterDecimal),
    when(When::UnlessOther, "x-ratelimit-bucket", Cell::Text("abcd1234")),
    when(When::ByFirst, "x-ratelimit-scope", Cell::Text("user")),
    when(When::ByOther, "x-ratelimit-scope", Cell::Text("global")),
    when(When::ByOther, "x-ratelimit-global", Cell::Text("true")),
];
