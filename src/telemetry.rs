//! Spans and metrics by OpenTelemetry's conventions for HTTP clients (semantic-conventions 1.44, «HTTP spans», «HTTP
//! metrics»): an internal span for the call, a client span for each request on the wire.
//!
//! No span holds a user name, a value of a query, a header or a body. They cost nothing while nobody listens.

use std::future::Future;

use http::{StatusCode, Version};
use reqwest::{Request, Response, Url};
use tokio::time::Instant;
use tracing::{Instrument, Span, field::Empty, instrument::Instrumented};

use crate::{
    Error, Key,
    history::{History, Stop},
    sent::Cause,
};

/// The span of a whole call: waits, attempts, hops. It has no attribute of HTTP clients, which belong to the attempts.
pub(crate) fn call(key: Key) -> Span {
    tracing::info_span!(
        target: "abide",
        "abide.call",
        otel.kind = "internal",
        abide.key = %key,
        abide.attempts = Empty,
        abide.stop = Empty,
        error.r#type = Empty,
        otel.status_code = Empty,
    )
}

/// The end of a call; one that is dropped has none, and is no error.
pub(crate) fn ended(span: &Span, host: Option<&str>, history: &History, result: &Result<Response, Error>) {
    #[cfg(feature = "metrics")]
    crate::metrics::ended(host.unwrap_or_default(), history, result);
    let _ = host;
    if span.is_disabled() {
        return;
    }
    span.record("abide.attempts", history.attempts().len());
    span.record("abide.stop", tracing::field::debug(history.stop()));
    match result {
        Ok(response) => failed_by(span, response.status()),
        Err(error) => fail(span, error_type(error)),
    }
}

/// One request on the wire, from the commit to the head of its answer.
pub(crate) struct Sending {
    span: Span,
    #[cfg(feature = "metrics")]
    started: Instant,
    #[cfg(feature = "metrics")]
    target: crate::metrics::Target,
}

impl Sending {
    /// `before`: requests that the call has sent so far.
    pub(crate) fn start(request: &Request, before: u32) -> Self {
        let url = request.url();
        let (name, known) = method(request);
        let span = tracing::info_span!(
            target: "abide",
            "http.client.request",
            otel.name = if known == "_OTHER" { "HTTP" } else { name },
            otel.kind = "client",
            http.request.method = known,
            http.request.method_original = Empty,
            http.request.resend_count = Empty,
            http.response.status_code = Empty,
            server.address = url.host_str().unwrap_or_default(),
            server.port = url.port_or_known_default().unwrap_or_default(),
            url.full = redacted(url),
            network.protocol.version = Empty,
            error.r#type = Empty,
            otel.status_code = Empty,
        );
        if !span.is_disabled() {
            if before > 0 {
                span.record("http.request.resend_count", before);
            }
            if known == "_OTHER" {
                span.record("http.request.method_original", name);
            }
        }
        Self {
            span,
            #[cfg(feature = "metrics")]
            started: crate::clock::now(),
            #[cfg(feature = "metrics")]
            target: crate::metrics::Target::of(url, known),
        }
    }

    pub(crate) fn within<F: Future>(&self, sending: F) -> Instrumented<F> {
        sending.instrument(self.span.clone())
    }

    pub(crate) fn answered(self, response: &Response, received: Instant) {
        #[cfg(feature = "metrics")]
        {
            let (status, version) = (response.status(), version(response.version()));
            self.target.answered(received.saturating_duration_since(self.started), status, version);
        }
        let _ = received;
        if !self.span.is_disabled() {
            self.span.record("http.response.status_code", response.status().as_u16());
            if let Some(version) = version(response.version()) {
                self.span.record("network.protocol.version", version);
            }
            failed_by(&self.span, response.status());
        }
    }

    pub(crate) fn failed(self, error: &Error) {
        #[cfg(feature = "metrics")]
        self.target.failed(crate::clock::now().saturating_duration_since(self.started), error_type(error));
        if !self.span.is_disabled() {
            fail(&self.span, error_type(error));
        }
    }
}

/// On the client a 4xx is an error, too.
fn failed_by(span: &Span, status: StatusCode) {
    if status.as_u16() >= 400 {
        fail(span, status.as_str());
    }
}

fn fail(span: &Span, error_type: &str) {
    span.record("error.type", error_type);
    span.record("otel.status_code", "ERROR");
}

/// Few words, so that they can be counted.
pub(crate) fn error_type(error: &Error) -> &'static str {
    if error.refused().is_some_and(|refused| !refused.is_deadline()) {
        return "abide.throttled";
    }
    match error.cause() {
        None if error.history().stop() == Stop::Deadline => "abide.deadline_exceeded",
        None if error.is_builder() => "abide.invalid",
        None => "abide.not_sent",
        Some(Cause::Connect) => "connect",
        Some(Cause::Dns { .. }) => "dns",
        Some(Cause::Tls) => "tls",
        Some(Cause::RefusedStream) => "refused_stream",
        Some(Cause::Reset) => "reset",
        Some(Cause::Timeout) => "timeout",
        Some(Cause::Deadline) => "abide.deadline_exceeded",
        Some(Cause::Invalid) => "abide.invalid",
        Some(Cause::RequestBody) => "request_body",
        Some(Cause::Decode) => "decode",
        Some(Cause::Other) => "_OTHER",
    }
}

/// As it is, and as the conventions count it: RFC 9110, RFC 5789 and RFC 10008 are known.
fn method(request: &Request) -> (&str, &'static str) {
    let name = request.method().as_str();
    let known = ["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "TRACE", "CONNECT", "QUERY"];
    (name, known.into_iter().find(|known| *known == name).unwrap_or("_OTHER"))
}

fn version(version: Version) -> Option<&'static str> {
    Some(match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_11 => "1.1",
        Version::HTTP_2 => "2",
        Version::HTTP_3 => "3",
        _ => return None,
    })
}

/// The URL without its fragment; user name, password and the values of the query are hidden, the names stay.
fn redacted(url: &Url) -> String {
    const HIDDEN: &str = "REDACTED";
    let mut shown = url.clone();
    shown.set_fragment(None);
    if !url.username().is_empty() || url.password().is_some() {
        // Fails only for URLs that cannot have them.
        let _ = shown.set_username(HIDDEN);
        let _ = shown.set_password(Some(HIDDEN));
    }
    if let Some(query) = url.query() {
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, _)) => format!("{name}={HIDDEN}"),
            // It may be a value without a name.
            None => HIDDEN.to_owned(),
        });
        shown.set_query(Some(&pairs.collect::<Vec<_>>().join("&")));
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_show_no_secret() {
        #[track_caller]
        fn check(url: &str, shown: &str) {
            assert_eq!(redacted(&url.parse().unwrap()), shown);
        }
        check("https://h/p", "https://h/p");
        check("https://user:pass@h/p#f", "https://REDACTED:REDACTED@h/p");
        check("https://user@h/", "https://REDACTED:REDACTED@h/");
        check("https://h/?sig=a&Sig=&b", "https://h/?sig=REDACTED&Sig=REDACTED&REDACTED");
        check("https://h/?", "https://h/?REDACTED");
    }
}
