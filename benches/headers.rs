//! Reading a response head: nanoseconds of one `headers::read`, the best of many rounds.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]

use std::{
    hint::black_box,
    time::{Duration, Instant, SystemTime},
};

use abide::{
    headers,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
};

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

const TRIO: [(&str, &str); 3] =
    [("x-ratelimit-limit", "5000"), ("x-ratelimit-remaining", "4920"), ("x-ratelimit-reset", "1790003600")];

const DRAFT_11: [(&str, &str); 2] =
    [("ratelimit-policy", "\"default\";q=100;w=60"), ("ratelimit", "\"default\";r=50;t=30")];

fn main() {
    println!("| head | ns | goal |\n| --- | --- | --- |");
    row("12 plain headers", &[], 150);
    row("+ the X-RateLimit trio", &TRIO, 600);
    row("+ draft 11", &DRAFT_11, 900);
}

fn row(what: &str, more: &[(&'static str, &'static str)], goal: u32) {
    let lines = PLAIN.iter().chain(more);
    let head: HeaderMap =
        lines.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect();
    println!("| {what} | {:.0} | {goal} |", best(&head));
}

/// The best of rounds: what else runs on the machine only ever adds.
#[expect(clippy::disallowed_methods, reason = "a bench measures real time")]
fn best(head: &HeaderMap) -> f64 {
    const READS: u32 = 20_000;
    let received = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
    let rounds = (0..60).map(|_| {
        let start = Instant::now();
        for _ in 0..READS {
            black_box(headers::read(StatusCode::OK, black_box(head), None, received));
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(READS)
    });
    rounds.fold(f64::INFINITY, f64::min)
}
