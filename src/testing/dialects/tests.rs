//! Rows: what each dialect writes.

use super::{cells::go_duration, *};

/// Half a second after a full second of 2026.
const NOW: u64 = 1_790_000_000_500_000_000;

fn minute() -> Told {
    let reset = 29_200_000_001;
    Told { unit: Unit::Requests, limit: 100, window: Some(60 * SECOND), remaining: 0, reset, more: 600 * MILLI }
}

fn tokens() -> Told {
    let (remaining, reset) = (900, 366_000_000_000);
    Told { unit: Unit::Tokens, limit: 1000, window: Some(3600 * SECOND), remaining, reset, more: 0 }
}

#[track_caller]
fn check(dialect: Dialect, refused_by: Option<usize>, expected: &[(&str, &str)]) {
    let refusal = refused_by.map(|by| Refusal { wait: 600 * MILLI, by });
    let mut headers = HeaderMap::new();
    tell(dialect, None, &Facts { quotas: &[minute(), tokens()], refusal, now: NOW }, &mut headers);
    let mut told: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    let mut expected = expected.to_vec();
    told.sort_unstable();
    expected.sort_unstable();
    assert_eq!(told, expected, "{dialect}");
}

#[test]
fn drafts() {
    let trio = [("ratelimit-remaining", "0"), ("ratelimit-reset", "30")];
    check(Dialect::Draft03, None, &[("ratelimit-limit", "100, 100;w=60, 1000;w=3600"), trio[0], trio[1]]);
    let policy = ("ratelimit-policy", "100;w=60, 1000;w=3600");
    check(Dialect::Draft06, None, &[("ratelimit-limit", "100"), policy, trio[0], trio[1]]);
    check(Dialect::Draft07, None, &[("ratelimit", "limit=100, remaining=0, reset=30"), policy]);
    check(
        Dialect::Draft11,
        Some(0),
        &[
            ("ratelimit", "\"requests-60s\";r=0;t=1, \"tokens-3600s\";r=900;t=366"),
            ("ratelimit-policy", "\"requests-60s\";q=100;w=60, \"tokens-3600s\";q=1000;w=3600;qu=\"tokens\""),
            ("retry-after", "1"),
        ],
    );
}

#[test]
fn legacy_trios() {
    let trio = [("x-ratelimit-limit", "100"), ("x-ratelimit-remaining", "0")];
    check(Dialect::XRateLimit, None, &[trio[0], trio[1], ("x-ratelimit-reset", "30")]);
    check(Dialect::XRateLimitEpoch, None, &[trio[0], trio[1], ("x-ratelimit-reset", "1790000030")]);
}

#[test]
fn vendors() {
    let github = [
        ("x-ratelimit-limit", "100"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1790000030"),
        ("x-ratelimit-used", "100"),
        ("x-ratelimit-resource", "core"),
    ];
    check(Dialect::GitHub, Some(0), &github);
    check(Dialect::GitHub, Some(1), &[&github[..], &[("retry-after", "1")]].concat());
    check(Dialect::Stripe, None, &[]);
    check(Dialect::Stripe, Some(0), &[("stripe-should-retry", "true"), ("stripe-rate-limited-reason", "global-rate")]);
    check(Dialect::Shopify, Some(0), &[("x-shopify-shop-api-call-limit", "100/100"), ("retry-after", "0.6")]);
    check(
        Dialect::OpenAi,
        Some(0),
        &[
            ("x-ratelimit-limit-requests", "100"),
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", "29.201s"),
            ("x-ratelimit-limit-tokens", "1000"),
            ("x-ratelimit-remaining-tokens", "900"),
            ("x-ratelimit-reset-tokens", "6m6s"),
            ("retry-after", "1"),
            ("retry-after-ms", "600"),
        ],
    );
    check(
        Dialect::Discord,
        Some(0),
        &[
            ("x-ratelimit-limit", "100"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1790000029.701"),
            ("x-ratelimit-reset-after", "29.201"),
            ("x-ratelimit-bucket", "abcd1234"),
            ("x-ratelimit-scope", "user"),
            ("retry-after", "1"),
        ],
    );
    let global = [("x-ratelimit-scope", "global"), ("x-ratelimit-global", "true"), ("retry-after", "1")];
    check(Dialect::Discord, Some(1), &global);
    check(Dialect::RetryAfterOnly, Some(0), &[("retry-after", "1")]);
    check(Dialect::Silent, Some(0), &[]);
}

#[test]
fn waits_are_rounded_up() {
    let wait = |form, wait| {
        let mut headers = HeaderMap::new();
        tell_wait(form, wait, NOW, &mut headers);
        headers.get("retry-after").map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(wait(RetryAfter::Seconds, 1).as_deref(), Some("1"));
    assert_eq!(wait(RetryAfter::Seconds, SECOND + 1).as_deref(), Some("2"));
    assert_eq!(wait(RetryAfter::Decimal, 1_900_000_001).as_deref(), Some("2.0"));
    // 600 ms after half past the second: the next but one.
    assert_eq!(wait(RetryAfter::Date, 600 * MILLI).as_deref(), Some("Mon, 21 Sep 2026 14:13:22 GMT"));
    assert_eq!(wait(RetryAfter::Absent, SECOND), None);
}

#[test]
fn go_durations() {
    let text = |nanos| {
        let mut out = String::new();
        go_duration(nanos, &mut out).unwrap();
        out
    };
    assert_eq!([0, 1, 12 * MILLI, SECOND].map(text), ["0s", "1ms", "12ms", "1s"]);
    assert_eq!([1500 * MILLI, 360 * SECOND, 3600 * SECOND].map(text), ["1.5s", "6m0s", "1h0m0s"]);
    assert_eq!(text(1_252_666 * MILLI), "20m52.666s");
}

#[test]
fn names_are_read_back() {
    for dialect in Dialect::ALL {
        assert_eq!(dialect.to_string().parse(), Ok(*dialect));
    }
}
