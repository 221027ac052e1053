//! Response heads, the same for every bench that reads one.

use abide::http::{HeaderMap, HeaderName, HeaderValue};

/// What a server sends that says nothing of a limit.
const PLAIN: [(&str, &str); 12] = [
    ("date", "Mon, 21 Sep 2026 14:13:20 GMT"),
    ("content-type", "application/json; charset=utf-8"),
    ("content-length", "2012"),
    ("connection", "keep-alive"),
    ("server", "nginx"),
    ("cache-control", "private, max-age=60, s-maxage=60"),
    ("vary", "Accept, Authorization, Cookie"),
    ("etag", "W/\"a3f5c7d9e1\""),
    ("x-request-id", "8e03978e-40d5-43e8-bc93-6894a57f9324"),
    ("strict-transport-security", "max-age=31536000; includeSubdomains; preload"),
    ("x-frame-options", "deny"),
    ("x-content-type-options", "nosniff"),
];

/// The fields of most services.
pub(crate) const TRIO: [(&str, &str); 3] =
    [("x-ratelimit-limit", "5000"), ("x-ratelimit-remaining", "4920"), ("x-ratelimit-reset", "1790003600")];

/// draft-ietf-httpapi-ratelimit-headers-11.
pub(crate) const DRAFT_11: [(&str, &str); 2] =
    [("ratelimit-policy", "\"default\";q=100;w=60"), ("ratelimit", "\"default\";r=50;t=30")];

/// Twelve plain fields and `more`.
pub(crate) fn head(more: &[(&'static str, &'static str)]) -> HeaderMap {
    let lines = PLAIN.iter().chain(more);
    lines.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}
