//! Which header of a response told what, for people who wonder.

use std::time::SystemTime;

use http::{
    HeaderMap, HeaderName, StatusCode,
    header::{AGE, DATE},
};

use super::{
    Hints,
    date::Clock,
    family,
    value::{self, Plain},
};

/// What [`explain`] finds.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// What the response says, as [`read`](super::read) has it.
    pub hints: Hints,
    /// The wait to keep before a retry, should the answer count as throttled: the one named, else the longest reset of
    /// an exhausted quota, else of those that do not tell what is left.
    pub asked_wait: Option<std::time::Duration>,
    /// The headers that had a part in it, in order.
    pub readings: Vec<Reading>,
    /// Whether the wait was named by the body.
    pub wait_in_body: bool,
    /// Headers whose names look like limits or waits and that told nothing.
    pub not_understood: Vec<HeaderName>,
}

/// How one header was read.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Reading {
    /// Its name.
    pub header: HeaderName,
    /// What it says on its own, with the response's clock.
    pub hints: Hints,
    /// How its value was read, where it is a time.
    pub how: Option<&'static str>,
}

/// Reads a response as [`read`](super::read) does and tells which header had which part in it.
///
/// It reads the response once more for each header, so it is for people, not for the request path.
#[must_use]
pub fn explain(status: StatusCode, headers: &HeaderMap, body: Option<&[u8]>, received: SystemTime) -> Explanation {
    let hints = super::read(status, headers, body, received);
    let mut explanation = Explanation {
        asked_wait: super::asked_wait(&hints),
        wait_in_body: hints.retry_after.is_some()
            && super::read(status, headers, None, received).retry_after != hints.retry_after,
        ..Explanation::default()
    };
    for name in headers.keys().filter(|name| looks_like_limit(name.as_str())).take(super::MAX_LINES) {
        let alone = super::read(status, &only(headers, name), None, received);
        let without = super::read(status, &all_but(headers, name), body, received);
        if says_something(&alone) || without != hints {
            explanation.readings.push(Reading {
                header: name.clone(),
                hints: alone,
                how: how(headers, name, received),
            });
        } else if !MARKERS.contains(&name.as_str()) {
            explanation.not_understood.push(name.clone());
        }
    }
    explanation.hints = hints;
    explanation
}

/// Known to say nothing that could be read.
const MARKERS: [&str; 8] = [
    "x-envoy-ratelimited",
    "stripe-rate-limited-reason",
    "x-ratelimit-global",
    "x-ratelimit-nearlimit",
    "ratelimit-reason",
    "x-ratelimit-bypass",
    "x-ratelimit-whitelisted",
    "x-ratelimit-abusepenalty-active",
];

fn looks_like_limit(name: &str) -> bool {
    family::interest(name).is_some() || name.contains("throttl") || name.contains("used-weight")
}

fn says_something(hints: &Hints) -> bool {
    hints.retry_after.is_some() || hints.should_retry.is_some() || !hints.quotas.is_empty()
}

/// The lines of one header and the clock.
fn only(headers: &HeaderMap, name: &HeaderName) -> HeaderMap {
    headers.iter().filter(|(other, _)| *other == name || *other == DATE || *other == AGE).map(owned).collect()
}

fn all_but(headers: &HeaderMap, name: &HeaderName) -> HeaderMap {
    headers.iter().filter(|(other, _)| *other != name).map(owned).collect()
}

fn owned((name, value): (&HeaderName, &http::HeaderValue)) -> (HeaderName, http::HeaderValue) {
    (name.clone(), value.clone())
}

fn how(headers: &HeaderMap, name: &HeaderName, received: SystemTime) -> Option<&'static str> {
    let text = headers.get(name)?.as_bytes().trim_ascii();
    let name = name.as_str();
    let is_time = ["retry", "reset", "next", "after", "until"].iter().any(|word| name.contains(word));
    let millis = ["-ms", "-milliseconds"].iter().any(|end| name.ends_with(end));
    let plain = if millis || matches!(name, "x-amz-retry-after" | "gw-ratelimit-reset") {
        Plain::Millis
    } else {
        Plain::Seconds
    };
    is_time.then(|| value::describe(text, &Clock::new(headers, received), plain)).flatten()
}
