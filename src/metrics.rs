//! What is counted and measured, through the `metrics` facade.
//!
//! | name | kind | labels |
//! | --- | --- | --- |
//! | `http.client.request.duration` | histogram, seconds | OpenTelemetry's: method, address, port, scheme, status, version, error.type |
//! | `abide.calls` | counter | `abide.stop`: why it ended |
//! | `abide.retries` | counter | |
//! | `abide.throttled` | counter: attempts answered 429 | |
//! | `abide.refused` | counter: calls that the limiter let not through | `abide.reason`: never, full, deadline, paused, store_lost, other |
//! | `abide.wait.duration` | histogram, seconds, one entry an attempt that waited | `abide.wait`: limiter, backoff, server |
//! | `abide.fleet.round_trip.duration` | histogram, seconds, one entry an exchange with a fleet's store | `abide.outcome`: answered, failed |
//! | `abide.limiter.left`, `.waiting`, `.in_flight`, `.paused` (seconds) | gauge, of the key that was used last | `.left`: `abide.unit` |
//!
//! All but the fleet's have `server.address`. The limiter key is no label: there may be a hundred thousand. Ask
//! [`Limiter::snapshot`](crate::Limiter::snapshot) for one.

use std::time::Duration;

use http::StatusCode;
use metrics::{Label, counter, gauge, histogram};
use reqwest::{Response, Url};

use crate::{
    Error, Key, Limiter, clock,
    history::{Attempt, History, Stop},
    limit::Refused,
};

/// Whom a request went to: the labels of its duration.
pub(crate) struct Target(Vec<Label>);

impl Target {
    pub(crate) fn of(url: &Url, method: &'static str) -> Self {
        let port = url.port_or_known_default().unwrap_or_default().to_string();
        Self(vec![
            Label::from_static_parts("http.request.method", method),
            Label::new("server.address", url.host_str().unwrap_or_default().to_owned()),
            Label::new("server.port", port),
            Label::new("url.scheme", url.scheme().to_owned()),
        ])
    }

    pub(crate) fn answered(mut self, took: Duration, status: StatusCode, version: Option<&'static str>) {
        self.0.push(Label::new("http.response.status_code", status.as_str().to_owned()));
        self.0.extend(version.map(|version| Label::from_static_parts("network.protocol.version", version)));
        if status.as_u16() >= 400 {
            self.0.push(Label::new("error.type", status.as_str().to_owned()));
        }
        histogram!("http.client.request.duration", self.0).record(took);
    }

    pub(crate) fn failed(mut self, took: Duration, error_type: &'static str) {
        self.0.push(Label::from_static_parts("error.type", error_type));
        histogram!("http.client.request.duration", self.0).record(took);
    }
}

/// The end of a call.
pub(crate) fn ended(host: &str, history: &History, result: &Result<Response, Error>) {
    let address = || Label::new("server.address", host.to_owned());
    counter!("abide.calls", vec![address(), Label::from_static_parts("abide.stop", stop(history.stop()))]).increment(1);
    let attempts = history.attempts();
    let retries = attempts.len().saturating_sub(1) as u64;
    if retries > 0 {
        counter!("abide.retries", vec![address()]).increment(retries);
    }
    let throttled = |attempt: &&Attempt| attempt.status() == Some(StatusCode::TOO_MANY_REQUESTS);
    let throttled = attempts.iter().filter(throttled).count() as u64;
    if throttled > 0 {
        counter!("abide.throttled", vec![address()]).increment(throttled);
    }
    for attempt in attempts {
        let waited = attempt.waited();
        for (cause, wait) in [("limiter", waited.limiter), ("backoff", waited.backoff), ("server", waited.server)] {
            if !wait.is_zero() {
                let cause = Label::from_static_parts("abide.wait", cause);
                histogram!("abide.wait.duration", vec![address(), cause]).record(wait);
            }
        }
    }
    if let Some(refused) = result.as_ref().err().and_then(Error::refused) {
        let reason = Label::from_static_parts("abide.reason", reason(refused));
        counter!("abide.refused", vec![address(), reason]).increment(1);
    }
}

/// What the limiter knows of the key, as the call ends.
pub(crate) fn limits(host: &str, limiter: &Limiter, key: &Key) {
    let Some(snapshot) = limiter.snapshot(key) else { return };
    let address = || Label::new("server.address", host.to_owned());
    for (unit, left) in &snapshot.left {
        gauge!("abide.limiter.left", vec![address(), Label::new("abide.unit", unit.to_string())]).set(*left as f64);
    }
    let paused = snapshot.paused_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(clock::now()));
    gauge!("abide.limiter.waiting", vec![address()]).set(snapshot.waiting as f64);
    gauge!("abide.limiter.in_flight", vec![address()]).set(snapshot.in_flight);
    gauge!("abide.limiter.paused", vec![address()]).set(paused);
}

fn reason(refused: &Refused) -> &'static str {
    if refused.is_never() {
        "never"
    } else if refused.is_full() {
        "full"
    } else if refused.is_deadline() {
        "deadline"
    } else if refused.is_paused() {
        "paused"
    } else if is_store_lost(refused) {
        "store_lost"
    } else {
        "other"
    }
}

#[cfg(feature = "redis")]
fn is_store_lost(refused: &Refused) -> bool {
    refused.is_store_lost()
}

#[cfg(not(feature = "redis"))]
fn is_store_lost(_: &Refused) -> bool {
    false
}

fn stop(stop: Stop) -> &'static str {
    match stop {
        Stop::Answered => "answered",
        Stop::NotRetryable => "not_retryable",
        Stop::NotIdempotent => "not_idempotent",
        Stop::NotReplayable => "not_replayable",
        Stop::MaxAttempts => "max_attempts",
        Stop::Deadline => "deadline",
        Stop::ServerWaitTooLong => "server_wait_too_long",
        Stop::BudgetSpent => "budget_spent",
        Stop::Refused => "refused",
        Stop::RedirectRefused => "redirect_refused",
        Stop::NotSent => "not_sent",
    }
}
