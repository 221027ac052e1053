//! What must hold for any bytes: shared by the fuzz targets and by the replay of their seeds and findings.

use std::time::{Duration, SystemTime};

use abide::headers::{self, Hints};
use abide::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

#[path = "../../src/bin/abide/head.rs"]
mod head;

/// 2^31 s: no wait is longer.
const MAX_WAIT: Duration = Duration::from_secs(1 << 31);

/// Header lines up to a blank one, then a body; the first byte picks the status.
pub(crate) fn headers(data: &[u8]) {
    let (first, rest) = data.split_first().unwrap_or((&0, &[]));
    let status = [200, 202, 403, 429, 503][usize::from(*first) % 5];
    let mut map = HeaderMap::new();
    let mut lines = rest.split(|byte| *byte == b'\n');
    for line in lines.by_ref().take(1000).take_while(|line| !line.is_empty()) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        let name = HeaderName::from_bytes(name);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.get(1..).unwrap_or_default())) {
            map.append(name, value);
        }
    }
    let body: Vec<u8> = lines.flatten().copied().collect();
    read(status, &map, Some(&body));
}

/// A date as a wait, as the server's clock and as a reset.
pub(crate) fn http_date(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    let hints = read(503, &one("retry-after", &value), None);
    let mut reset = one("x-ratelimit-reset", &value);
    if let ([quota], Some(wait)) = (read(200, &reset, None).quotas.as_slice(), hints.retry_after) {
        // Not equal: of joined values a wait also counts those that only saturate.
        let told = quota.reset_after.map(|reset| reset.min(MAX_WAIT));
        assert!(told.is_none_or(|told| told <= wait), "a reset beyond the wait of the same value");
    }
    reset.insert("date", value);
    read(200, &reset, None);
}

/// A value of each field that tells a time or a number.
pub(crate) fn reset_value(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    let names = [
        "x-ratelimit-reset",
        "x-ratelimit-reset-ms",
        "x-ratelimit-window",
        "ratelimit-limit",
        "ratelimit",
        "ratelimit-policy",
        "x-rate-limit",
        "x-app-rate-limit",
        "x-sentry-rate-limits",
        "x-shopify-shop-api-call-limit",
        "x-app-usage",
        "remaining-req",
    ];
    for name in names {
        read(429, &one(name, &value), None);
    }
}

/// A body without a header that names a wait.
pub(crate) fn body_hint(data: &[u8]) {
    let hints = read(429, &HeaderMap::new(), Some(data));
    assert!(data.len() <= 16 * 1024 || hints.retry_after.is_none(), "a large body was read");
}

/// A raw response head as the command line takes it.
pub(crate) fn explain(data: &[u8]) {
    let Ok(head) = head::Head::parse(data) else { return };
    let received = SystemTime::UNIX_EPOCH + Duration::from_millis(1_790_000_000_123);
    let explained = headers::explain(head.status, &head.headers, Some(head.body), received);
    check(&explained.hints);
    explained.readings.iter().for_each(|reading| check(&reading.hints));
}

/// Reads, and checks what must hold of every reading.
pub(crate) fn read(status: u16, headers: &HeaderMap, body: Option<&[u8]>) -> Hints {
    let status = StatusCode::from_u16(status).unwrap_or_default();
    let received = SystemTime::UNIX_EPOCH + Duration::from_millis(1_790_000_000_123);
    let hints = headers::read(status, headers, body, received);
    assert_eq!(hints, headers::read(status, headers, body, received), "a reading is repeatable");
    check(&hints);
    hints
}

/// Every wait is finite and every number finite and not negative.
pub(crate) fn check(hints: &Hints) {
    assert!(hints.retry_after.is_none_or(|wait| wait <= MAX_WAIT), "a wait beyond 2^31 s");
    assert!(hints.quotas.len() <= 128, "unbounded quotas");
    for quota in &hints.quotas {
        for number in [quota.limit, quota.remaining].into_iter().flatten() {
            assert!(number.is_finite() && number >= 0.0, "{number}");
        }
        let told = quota.limit.is_some() || quota.remaining.is_some() || quota.reset_after.is_some();
        assert!(told, "a quota that says nothing");
        assert!(quota.window.is_none_or(|window| !window.is_zero()), "an empty window");
        assert!(quota.name.as_ref().is_none_or(|name| !name.is_empty()), "an empty name");
    }
}

fn one(name: &'static str, value: &HeaderValue) -> HeaderMap {
    let mut map = HeaderMap::new();
    map.insert(name, value.clone());
    map
}
