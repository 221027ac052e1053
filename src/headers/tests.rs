//! The rules of reading, row by row; expected values are worked out by hand.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;

use super::{Hints, QuotaHint, QuotaScope, asked_wait, read};

/// 2026-09-21T14:13:20Z.
const NOW: u64 = 1_790_000_000;

fn map(lines: &str) -> HeaderMap {
    let mut map = HeaderMap::new();
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let (name, value) = line.trim_start().split_once(':').unwrap();
        let name: HeaderName = name.parse().unwrap();
        map.append(name, HeaderValue::from_bytes(value.strip_prefix(' ').unwrap_or(value).as_bytes()).unwrap());
    }
    map
}

fn hints(lines: &str) -> Hints {
    read(StatusCode::OK, &map(lines), None, SystemTime::UNIX_EPOCH + Duration::from_secs(NOW))
}

#[track_caller]
fn check_wait(lines: &str, millis: impl Into<Option<u64>>) {
    assert_eq!(hints(lines).retry_after, millis.into().map(Duration::from_millis), "{lines}");
}

#[track_caller]
fn check_body(body: &str, millis: impl Into<Option<u64>>) {
    let found = read(StatusCode::OK, &HeaderMap::new(), Some(body.as_bytes()), SystemTime::UNIX_EPOCH);
    assert_eq!(found.retry_after, millis.into().map(Duration::from_millis), "{body}");
}

/// A reset by the value of `x-ratelimit-reset`.
#[track_caller]
fn check_reset(value: &str, millis: impl Into<Option<u64>>) {
    let found = hints(&format!("x-ratelimit-reset: {value}"));
    let reset = found.quotas.first().and_then(|quota| quota.reset_after);
    assert_eq!(reset, millis.into().map(Duration::from_millis), "{value}");
}

/// One quota as `name limit/remaining reset window unit partition`, `-` for what is not told.
fn row(quota: &QuotaHint) -> String {
    let number = |number: Option<f64>| number.map_or_else(dash, |number| number.to_string());
    let time = |time: Option<Duration>| time.map_or_else(dash, |time| format!("{time:?}"));
    let text = |text: &Option<String>| text.clone().unwrap_or_else(dash);
    format!(
        "{} {}/{} {} {} {} {}",
        text(&quota.name),
        number(quota.limit),
        number(quota.remaining),
        time(quota.reset_after),
        time(quota.window),
        quota.unit,
        text(&quota.partition),
    )
}

fn dash() -> String {
    "-".to_owned()
}

#[track_caller]
fn check(lines: &str, expected: &[&str]) {
    let mut found: Vec<String> = hints(lines).quotas.iter().map(row).collect();
    let mut expected: Vec<&str> = expected.to_vec();
    found.sort();
    expected.sort_unstable();
    assert_eq!(found, expected, "{lines}");
}

#[test]
fn numbers_by_magnitude() {
    check_reset("0", 0);
    check_reset("59.0001", 59_001);
    check_reset("999999999", 999_999_999_000);
    check_reset("1000000000", 0);
    check_reset("1790000030", 30_000);
    check_reset("1790000000.0001", 1);
    check_reset("99999999999", 98_209_999_999_000);
    check_reset("100000000000", None);
    check_reset("999999999999", None);
    check_reset("1790000000500", 500);
    check_reset("99999999999999", 98_209_999_999_999);
    check_reset("100000000000000", None);
    check_reset("1790000000000001", 1);
    check_reset("100000000000000000", None);
    for unreadable in ["-5", "+5", "5.", ".5", "1e3", "0x10", "inf", "NaN", "5 s", "soon", "1_000", ""] {
        check_reset(unreadable, None);
    }
}

#[test]
fn durations_carry_their_unit() {
    check_reset("6m0s", 360_000);
    check_reset("1h2m3.5s", 3_723_500);
    check_reset("17.563999999s", 17_564);
    check_reset("1us", 1);
    check_reset("250000ns", 1);
    check_reset("00:00:03", 3000);
    check_reset("01:02:03.25", 3_723_250);
    check_reset("00:60:00", None);
    check_reset("3x", None);
    check("x-ratelimit-reset-ms: 2s", &["- -/- 2s - requests -"]);
}

#[test]
fn dates() {
    check_reset("Mon, 21 Sep 2026 14:13:50 GMT", 30_000);
    check_reset("Mon, 21 Sep 2026 14:13:50 UTC", 30_000);
    check_reset("Monday, 21-Sep-26 14:13:50 GMT", 30_000);
    check_reset("Mon Sep 21 14:13:50 2026", 30_000);
    check_reset("Thu, 1 Oct 2026 14:13:20 GMT", 864_000_000);
    check_reset("Mon, 21 Sep 2026 14:13:60 GMT", 39_000);
    // 2077 would be more than 50 years ahead, 2076 is not.
    check_reset("Friday, 01-Jan-77 00:00:00 GMT", None);
    check_reset("Saturday, 01-Jan-77 00:00:00 GMT", 0);
    check_reset("Wednesday, 01-Jan-76 00:00:00 GMT", 1_555_062_400_000);
    check_reset("Tue, 21 Sep 2026 14:13:50 GMT", None);
    check_reset("Wed, 31 Sep 2026 14:13:50 GMT", None);
    check_reset("2026-09-21T14:13:50Z", 30_000);
    check_reset("2026-09-21 14:13:50", 30_000);
    check_reset("2026-09-21T14:14Z", 40_000);
    check_reset("2026-09-21T16:13:50+02:00", 30_000);
    check_reset("2026-09-21T12:13:50.0001-0200", 30_001);
    check_reset("2026-09-21", None);
    check_reset("2026-02-30T00:00:00Z", None);
    check_reset("2020-01-01T00:00:00Z", 0);
}

/// The short way through the usual form agrees with the crate that knows all of them.
#[test]
fn every_day_of_the_usual_form() {
    for day in 0..60_000 {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(day * 86_400 + day % 86_400);
        let date = httpdate::fmt_http_date(time);
        let found = hints(&format!("date: Thu, 01 Jan 1970 00:00:01 GMT\nx-ratelimit-reset: {date}"));
        let expected = Duration::from_secs((day * 86_400 + day % 86_400).saturating_sub(1));
        assert_eq!(found.quotas[0].reset_after, Some(expected), "{date}");
    }
}

#[test]
fn names_are_sorted_out_by_their_words() {
    use super::family::{Interest, interest};
    for at in 0..20 {
        for (word, expected) in [
            ("limit", Some(Interest::Limit)),
            ("remain", Some(Interest::Limit)),
            ("retry", Some(Interest::Retry)),
            ("quota", Some(Interest::Limit)),
            ("floodcontrol", Some(Interest::Limit)),
            ("mmyyqqff", None),
            ("linit", None),
        ] {
            let name = format!("{}{word}{}", "x".repeat(at), "-y".repeat(8));
            assert_eq!(interest(&name), expected, "{name}");
        }
    }
    for common in ["content-type", "x-request-id", "x-frame-options", "strict-transport-security", "last-modified"] {
        assert_eq!((interest(common), interest(&format!("{common}-limit"))), (None, Some(Interest::Limit)), "{common}");
    }
    assert_eq!(interest("x-app-usage"), Some(Interest::Limit));
    assert_eq!(interest("x-ratelimit-retry-after"), Some(Interest::Retry));
    assert_eq!(interest("date"), None);
}

#[test]
fn the_servers_clock_is_used() {
    let skewed = "date: Mon, 21 Sep 2026 13:00:00 GMT\n";
    check_wait(&format!("{skewed}retry-after: Mon, 21 Sep 2026 13:00:10 GMT"), 10_000);
    check_wait(&format!("{skewed}age: 4\nretry-after: Mon, 21 Sep 2026 13:00:10 GMT"), 6000);
    check_wait(&format!("{skewed}retry-after: 10"), 10_000);
    check_wait("date: yesterday\nretry-after: 1790000007", 7000);
    check(&format!("{skewed}x-ratelimit-reset: 1789995605"), &["- -/- 5s - requests -"]);
}

#[test]
fn waits() {
    check_wait("retry-after:  5 ", 5000);
    check_wait("retry-after: 5, 12, x", 12_000);
    check_wait("retry-after: 5\nretry-after: soon\nretry-after: 7", 7000);
    check_wait("retry-after: 5, Mon, 21 Sep 2026 14:13:50 GMT", 30_000);
    check_wait("retry-after: 100000000000", 2_147_483_648_000);
    check_wait(&format!("retry-after: {}", "9".repeat(500)), 2_147_483_648_000);
    check_wait("retry-after: 999999h", 2_147_483_648_000);
    check_wait("retry-after: Fri, 01 Jan 9999 00:00:00 GMT", 2_147_483_648_000);
    check_wait("retry-after: later", None);
    check_wait("retry-after: 3\nx-ms-retry-after-ms: 1500", 1500);
    check_wait("retry-after: 3\nx-acme-retry-after-ms: nope", 3000);
    check_wait("x-amz-retry-after: 1500", 1500);
    check_wait("x-retry-in: 1.5s\nretry-after: 2", 1500);
    check_wait("x-retry-after: 4\nx-ratelimit-retry-after: 9\nretry-after-burst: 6", 9000);
    check_wait("anthropic-ratelimit-retry-after: 9", 9000);
    check_wait("x-rate-limit-retry-after-seconds: 9", 9000);
    check_wait("x-rate-limit-retry-after-milliseconds: 9", 9);
    check_wait("x-rate-limit-retry-after-nanoseconds: 5000000000", None);
    check_wait("x-ratelimit-retry-after-contract: 5", 5000);
    check_wait("x-ratelimit-after: 3\nretry-after: 1", 1000);
    check_wait("x-ratelimit-reset: 9\nx-ratelimit-remaining: 0", None);
    check_wait("retry-after: 60000\nratelimit: \"a\";r=0;t=59", 60_000);
    check_wait("retry-after: 60000.5, 2\nratelimit: \"a\";r=0;t=59", 60_001);
    check_wait("retry-after: 1790060000, 1000\nratelimit: \"a\";r=0;t=59", 60_000_000);
    check_wait("retry-after: 900\nratelimit: \"a\";r=0;t=1", 900_000);
    check_wait("retry-after: 60000\nratelimit: \"a\";r=1;t=59", 60_000_000);
}

#[test]
fn overrides() {
    let word = |lines: &str| hints(lines).should_retry;
    assert_eq!(word("x-should-retry: true"), Some(true));
    assert_eq!(word("stripe-should-retry: False"), Some(false));
    assert_eq!(word("x-should-retry: maybe"), None);
    assert_eq!(word("x-should-retry: true\nstripe-should-retry: false"), Some(false));
    assert_eq!(word("grpc-retry-pushback-ms: -1"), Some(false));
    assert_eq!(word("grpc-retry-pushback-ms: abc"), Some(false));
    assert_eq!(word("grpc-retry-pushback-ms: 20"), None);
    assert_eq!(word("acme-retry-pushback-ms: abc"), None);
}

#[test]
fn bodies() {
    check_body(r#"{"retry_after": 0.5}"#, 500);
    check_body(r#"{"retry_after": 17}"#, 17_000);
    check_body(r#"{"retry_after": "2"}"#, 2000);
    check_body(r#"{"retry_after": -2}"#, None);
    check_body(r#"{"retry_after": 1e300}"#, 2_147_483_648_000);
    check_body(r#"{"parameters":{"retry_after":3},"retry_after":9}"#, 3000);
    check_body(
        r#"[{"error":{"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"1.0001s"}]}}]"#,
        1001,
    );
    check_body(r#"{"details":{"retry_after": 5}}"#, None);
    check_body("retry_after: 5", None);
    check_body(&format!("{}{}{}", "[".repeat(40), r#"{"retry_after":1}"#, "]".repeat(40)), None);
    check_body(&format!("{}{}", r#"{"retry_after":1}"#, " ".repeat(17_000)), None);
    let both = read(StatusCode::OK, &map("retry-after: 1"), Some(br#"{"retry_after": 5}"#), SystemTime::UNIX_EPOCH);
    assert_eq!(both.retry_after, Some(Duration::from_secs(1)));
}

#[test]
fn refused() {
    let refused = |status, lines| read(status, &map(lines), None, SystemTime::UNIX_EPOCH).refused;
    assert!(refused(StatusCode::TOO_MANY_REQUESTS, ""));
    assert!(refused(StatusCode::SERVICE_UNAVAILABLE, "retry-after: 1"));
    assert!(!refused(StatusCode::SERVICE_UNAVAILABLE, "x-ratelimit-remaining: 0"));
    assert!(!refused(StatusCode::FORBIDDEN, "retry-after: 1"));
}

#[test]
fn ietf_numbers() {
    check(
        "ratelimit-limit: 100, 100;window=60;, 50\nratelimit-remaining: 9",
        &["- 100/9 - 60s requests -", "- 50/- - - requests -"],
    );
    // Two policies of the limit's quota: neither is in force.
    check(
        "ratelimit-limit: 10\nratelimit-policy: 10;w=1, 10;w=60\nratelimit-remaining: 3",
        &["- 10/3 - - requests -", "- 10/- - 1s requests -", "- 10/- - 60s requests -"],
    );
    check("ratelimit-limit: 10, 10;w=1\nratelimit-policy: 10;w=1", &["- 10/- - 1s requests -"]);
    check("ratelimit-policy: 10;w=1.5\nratelimit-remaining: 3", &["- -/3 - - requests -"]);
    check("ratelimit: limit=10, remaining=x, reset=5", &[]);
    check("ratelimit: remaining=4, reset=5", &["- -/4 5s - requests -"]);
    check("x-acme-ratelimit-limit: 5;w=2;name=\"a b\"\nx-acme-ratelimit-remaining: 1", &["a b 5/1 - 2s requests -"]);
    check("beta-ratelimit-limit: 5\nbeta-ratelimit-remaining: 4", &["- 5/4 - - requests -"]);
}

#[test]
fn ietf_names() {
    check("ratelimit: \"a\";r=1;t=2, b;r=3", &["a -/1 2s - requests -", "b -/3 - - requests -"]);
    check("ratelimit: \"a\";r=1\nratelimit: \"b\";r=2", &["a -/1 - - requests -", "b -/2 - - requests -"]);
    check("ratelimit: \"a\";r=1\nratelimit: \"b\";r=2.5", &[]);
    check("ratelimit: \"a\";r=1.0\nratelimit-policy: \"a\";q=10;w=5", &["a 10/- - 5s requests -"]);
    check("ratelimit: \"a\";r=-1", &[]);
    check("ratelimit: \"a\";r=1,", &[]);
    check("ratelimit: \"a\" ;r=1", &[]);
    check("ratelimit: \"a\";r=1;r=9", &["a -/9 - - requests -"]);
    check("ratelimit: \"a\";r=1;x=@1659578233;t=3", &["a -/1 3s - requests -"]);
    check("ratelimit: \"a\";r=1;", &["a -/1 - - requests -"]);
    check("ratelimit: \"a, b\";r=1;pk=\"x;y\"", &["a, b -/1 - - requests x;y"]);
    check("ratelimit: \"a\";r=1;pk=:not_base64!:", &["a -/1 - - requests not_base64!"]);
    check("ratelimit-policy: \"win\";\"api\";q=7;w=1", &["api 7/- - 1s requests -"]);
    check(
        "ratelimit-policy: \"t\";q=7;qu=\"tokens\", \"b\";q=8;qu=\"content-bytes\", \"c\";q=9;qu=\"gizmos\"",
        &["t 7/- - - tokens -", "b 8/- - - content-bytes -", "c 9/- - - gizmos -"],
    );
    check(
        "ratelimit-policy: \"p\";q=7;w=1;pk=:YQ==:, \"p\";q=7;w=1;pk=:Yg==:\nratelimit: \"p\";r=2;pk=:Yg==:",
        &["p 7/- - 1s requests YQ==", "p 7/2 - 1s requests Yg=="],
    );
    // A named policy of the limit in force lends name and window.
    check("ratelimit-policy: \"p\";q=7;w=1\nratelimit-limit: 7\nratelimit-remaining: 2", &["p 7/2 - 1s requests -"]);
}

#[test]
fn roles() {
    check("acme-rate-limit-max: 9\nacme-rate-limit-available: 3", &["- 9/3 - - requests -"]);
    check("ratelimit-total: 9\nratelimit-used: 12", &["- 9/0 - - requests -"]);
    check("x-ratelimit-remain: 3\nx-ratelimit-usage: 2", &["- 5/3 - - requests -"]);
    check("x-ratelimit-reset-in: 5\nx-ratelimit-reset: 9", &["- -/- 5s - requests -"]);
    check("x-ratelimit-reset-timestamp: 1790000004", &["- -/- 4s - requests -"]);
    check(
        "x-ratelimit-limit-search: 5\nx-ratelimit-remaining-search: 4\nx-ratelimit-search-reset-after: 2",
        &["search 5/4 2s - requests -"],
    );
    check("x-ratelimit-limit: 5\nx-ratelimit-duration: hour", &["- 5/- - 3600s requests -"]);
    check("x-ratelimit-limit: 5\nx-ratelimit-window: 10m", &["- 5/- - 600s requests -"]);
    check("x-ratelimit-limit: 5\nx-ratelimit-interval-milliseconds: 500", &["- 5/- - 500ms requests -"]);
    check("x-ratelimit-hourly: 5\nx-ratelimit-hourly-remaining: 1", &["hourly 5/1 - 3600s requests -"]);
    check("x-ratelimit-monthly: 5", &["monthly 5/- - - requests -"]);
    check("x-ratelimit-10-second: 5", &["10-second 5/- - 10s requests -"]);
    check("ratelimit-dailyremaining: 5", &["daily -/5 - 86400s requests -"]);
    check("x-ratelimit-limit-30-azure: 5", &["30-azure 5/- - 30s requests -"]);
    check("x-ratelimit-limit-5h: 5", &["5h 5/- - 18000s requests -"]);
    check("x-ratelimit-limit-gpt-4-tokens: 5", &["gpt-4-tokens 5/- - - tokens -"]);
    check(
        "x-ratelimit-userlimit: 500\nx-ratelimit-userremaining: 499\nx-ratelimit-clientlimit: 90\nx-post-rate-limit-limit: 7",
        &["user 500/499 - - requests -", "client 90/- - - requests -", "post 7/- - - requests -"],
    );
    check(
        "x-gate-ratelimit-requests-remain: 179\nx-gate-ratelimit-limit: 200\nx-gate-ratelimit-reset-timestamp: 1790000002",
        &["- 200/179 2s - requests -"],
    );
    check(
        "x-ratelimit-limit-requests-day: 9\nx-ratelimit-reset-requests-day: 44.8",
        &["requests-day 9/- 44.8s 86400s requests -"],
    );
    check("x-ratelimit-limit: unlimited\nx-ratelimit-remaining: -1\nx-ratelimit-cost: 5", &[]);
    check("x-ratelimit-requested-tokens: 5\nx-ratelimit-replenish-rate: 5\nx-ratelimited: 1", &[]);
    check("x-separate-limit-count: 4", &[]);
}

#[test]
fn names_and_scopes() {
    let scope =
        |lines: &str| hints(lines).quotas.first().map(|quota| (quota.name.clone().unwrap_or_default(), quota.scope));
    let route = |name: &str| Some((name.to_owned(), QuotaScope::Route));
    let key = |name: &str| Some((name.to_owned(), QuotaScope::Key));
    for kind in ["resource", "bucket", "category", "group", "action", "type"] {
        assert_eq!(scope(&format!("x-ratelimit-limit: 5\nx-ratelimit-{kind}: search")), route("search"));
    }
    assert_eq!(scope("x-ratelimit-limit: 5\nx-ratelimit-bucket: b\nx-ratelimit-name: n"), key("n"));
    assert_eq!(scope("x-method-rate-limit: 5:1"), route("method"));
    assert_eq!(scope("x-app-rate-limit: 5:1"), key("app"));
    assert_eq!(scope("x-ratelimit-limit-search: 5"), key("search"));
    check("x-read-ratelimit-limit: 5\nratelimit-limit: 9", &["read 5/- - - requests -", "- 9/- - - requests -"]);
    check("x-read-ratelimit-limit: 5", &["- 5/- - - requests -"]);
    check("x-ratelimit-limit: 5\nx-ratelimit-scope: user", &["- 5/- - - requests user"]);
}

#[test]
fn told_twice() {
    check("x-ratelimit-limit: 5\nratelimit-limit: 5\nratelimit-remaining: 2", &["- 5/2 - - requests -"]);
    check("x-ratelimit-limit: 5\nratelimit-limit: 6", &["- 5/- - - requests -", "- 6/- - - requests -"]);
    check(
        "x-ratelimit-remaining: 5\nx-ratelimit-reset: 30\nratelimit-remaining: 5\nratelimit-reset: 29",
        &["- -/5 29s - requests -"],
    );
    check(
        "ratelimit-limit: 5\nratelimit-remaining: 4\nx-ratelimit-limit-a: 5\nx-ratelimit-remaining-a: 4\nx-ratelimit-limit-b: 5\nx-ratelimit-remaining-b: 4",
        &["- 5/4 - - requests -", "a 5/4 - - requests -", "b 5/4 - - requests -"],
    );
}

#[test]
fn dialects() {
    check("x-recharge-limit: 3/40", &["- 40/37 - - requests -"]);
    check("x-acme-api-call-limit: 41/40", &["- 40/0 - - requests -"]);
    check(
        "sforce-limit-info: api-usage=25/5000; per-app-api-usage=17/250(appName=sample)",
        &["api-usage 5000/4975 - - requests -", "per-app-api-usage 250/233 - - requests -"],
    );
    check("x-rate-limit: key:ABC 5/50 reset=2m", &["key 50/45 120s - requests -"]);
    check("acme-ratelimit-search: total=5; remaining=2; resets=9", &["search 5/2 9s - requests -"]);
    check("x-ratelimit-limit: 5, 50\nx-ratelimit-used: 7, 8", &["- 5/0 - - requests -", "- 50/42 - - requests -"]);
    check("x-service-rate-limit: 5:1\nx-service-rate-limit-count: 2:1", &["service 5/3 - 1s requests -"]);
    check(
        "x-rate-limit: {\"limit\":5,\"remaining\":2,\"period\":60,\"until\":1790000005}",
        &["- 5/2 5s 60s requests -"],
    );
    check("x-page-usage: {\"call_count\":101,\"total_time\":5}", &["page 100/0 - - percent -"]);
    check("x-acme-rate-limits: 5:a;b:key, x:c:d, 7", &["a -/0 5s - requests key", "b -/0 5s - requests key"]);
    check_wait("x-sentry-rate-limits: 5::key, 9:error:key", 5000);
    check(
        "x-ms-ratelimit-remaining-resource: A/B3Min;107, A/C;5",
        &["A/B3Min -/107 - - requests -", "A/C -/5 - - requests -"],
    );
    check("x-appdaylimit-remaining: 5", &["appday -/5 - 86400s requests -"]);
    check("x-limit-per-hour: 5\nx-remaining-this-hour: 2", &["hour 5/2 - 3600s requests -"]);
    check("x-search-call-limit: 5\nx-search-call-remaining: 2", &["search 5/2 - - requests -"]);
    check("gw-ratelimit-reset: 1500", &["- -/- 1.5s - requests -"]);
    check("x-ratelimit-reset-requests: 1500", &["requests -/- 1500s - requests -"]);
    check(
        "x-ratelimit-reset-requests: 1500\nx-ratelimit-renewalperiod-requests: 60",
        &["requests -/- 1.5s 60s requests -"],
    );
    check("x-mbx-used-weight-1m: 5", &[]);
    check("anthropic-ratelimit-unified-5h-utilization: 0.07", &["unified-5h 100/93 - 18000s percent -"]);
}

#[test]
fn oversized_fields_are_ignored() {
    let many = |n: usize| vec!["\"a\";r=1"; n].join(", ");
    assert_eq!(hints(&format!("ratelimit: {}", many(64))).quotas.len(), 64);
    check(&format!("ratelimit: {}\nratelimit-policy: \"p\";q=1", many(65)), &["p 1/- - - requests -"]);
    check(&format!("ratelimit: {}\nratelimit: {}", many(40), many(40)), &[]);
    check(&format!("x-ratelimit-limit: 5;x={}\nx-ratelimit-remaining: 3", "x".repeat(9000)), &["- -/3 - - requests -"]);
    check(&format!("x-ratelimit-limit: {}", "1".repeat(65)), &[]);
    check("x-ratelimit-limit: 5\u{fc}", &[]);
}

#[test]
fn asked_wait_takes_the_exhausted_first() {
    let asked = |lines: &str| asked_wait(&hints(lines));
    assert_eq!(asked("retry-after: 1\nratelimit: \"a\";r=0;t=9"), Some(Duration::from_secs(1)));
    assert_eq!(
        asked("ratelimit: \"a\";r=0;t=9, \"b\";r=0;t=12, \"c\";t=50, \"d\";r=3;t=99"),
        Some(Duration::from_secs(12))
    );
    assert_eq!(asked("ratelimit: \"c\";t=50, \"d\";r=3;t=99"), Some(Duration::from_secs(50)));
    assert_eq!(asked("ratelimit: \"d\";r=3;t=99"), None);
}

proptest! {
    /// For any bytes every wait is finite and every number finite and not negative.
    #[test]
    fn any_bytes_are_read(
        lines in proptest::collection::vec((name(), proptest::collection::vec(any::<u8>(), 0..80)), 0..12),
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut map = HeaderMap::new();
        for (name, value) in &lines {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        }
        bounded(&read(StatusCode::TOO_MANY_REQUESTS, &map, Some(&body), SystemTime::UNIX_EPOCH));
    }

    /// The same for values that are nearly right.
    #[test]
    fn near_misses_are_read(lines in proptest::collection::vec((name(), "[-+\"0-9a-z;:,=/ .{}\\[\\]]{0,40}"), 0..12)) {
        let mut map = HeaderMap::new();
        for (name, value) in &lines {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        bounded(&read(StatusCode::OK, &map, None, SystemTime::UNIX_EPOCH));
    }
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "(x-)?(acme-)?(ratelimit|rate-limit|floodcontrol)(-(limit|remaining|reset|used|policy|minute|tokens|after|ms|window)){0,3}",
        "(x-)?retry-after(-ms)?|x-retry-in|date|age|x-app-usage|x-app-rate-limit|x-sentry-rate-limits|remaining-req",
    ]
}

fn bounded(hints: &Hints) {
    assert!(hints.retry_after.is_none_or(|wait| wait <= Duration::from_secs(1 << 31)));
    for quota in &hints.quotas {
        for number in [quota.limit, quota.remaining].into_iter().flatten() {
            assert!(number.is_finite() && number >= 0.0, "{quota:?}");
        }
    }
}
