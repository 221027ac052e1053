//! What a call came to, in the words of the cases.

use std::{error::Error, future::Future};

use abide::ResponseExt;
use http::HeaderMap;
use tokio::time::Instant;
use tokio_rustls::rustls::Error as TlsError;

use crate::support::clock;

/// What a call came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// `status:N` or `error:…`.
    pub(crate) what: String,
    /// Why it ended, as the history names it.
    pub(crate) stop: String,
    /// All that the chain of errors tells of the cause.
    pub(crate) causes: Vec<&'static str>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// What the server last asked for.
    pub(crate) asked_ms: Option<f64>,
    pub(crate) attempts: Vec<AttemptTold>,
    /// The error in full, for whoever reads a failure.
    pub(crate) story: String,
    pub(crate) ended: Option<Instant>,
}

/// One attempt of the history.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttemptTold {
    pub(crate) status: Option<u16>,
    /// How abide names what went wrong.
    pub(crate) error: Option<String>,
}

/// Sends, reads the body, and tells what came of it; dropped after `cancel_at_ms`.
pub(crate) async fn outcome(
    call: impl Future<Output = Result<reqwest::Response, abide::Error>>,
    cancel_at_ms: Option<u64>,
) -> Outcome {
    let whole = tell(call);
    let mut outcome = match cancel_at_ms {
        None => whole.await,
        Some(at) => tokio::time::timeout(clock::ms(at), whole).await.unwrap_or_else(|_| cancelled()),
    };
    outcome.ended = Some(clock::now());
    outcome
}

fn cancelled() -> Outcome {
    Outcome { what: "error:cancelled".into(), stop: "Cancelled".into(), ..Outcome::default() }
}

async fn tell(call: impl Future<Output = Result<reqwest::Response, abide::Error>>) -> Outcome {
    let response = match call.await {
        Ok(response) => response,
        Err(error) => return failed(&error),
    };
    let mut told = told(response.history());
    told.what = format!("status:{}", response.status().as_u16());
    told.headers = response.headers().clone();
    match response.bytes().await {
        Ok(body) => told.body = body.to_vec(),
        // Only a body that streams can still break here: nothing repeats that.
        Err(error) => {
            told.what = "error:not_retryable".into();
            (told.causes, told.story) = chain(&error);
        }
    }
    told
}

fn told(history: &abide::History) -> Outcome {
    let attempt = |attempt: &abide::Attempt| AttemptTold {
        status: attempt.status().map(|status| status.as_u16()),
        error: attempt.error().map(|cause| format!("{cause:?}")),
    };
    Outcome {
        stop: format!("{:?}", history.stop()),
        asked_ms: history.asked_wait().map(clock::as_ms),
        attempts: history.attempts().iter().map(attempt).collect(),
        ..Outcome::default()
    }
}

fn failed(error: &abide::Error) -> Outcome {
    let mut told = told(error.history());
    let kind = if error.is_deadline() {
        "deadline"
    } else if ["MaxAttempts", "BudgetSpent"].iter().any(|stop| told.stop.starts_with(stop)) {
        "exhausted"
    } else if told.stop.starts_with("Refused") {
        "refused"
    } else {
        "not_retryable"
    };
    told.what = format!("error:{kind}");
    told.asked_ms = error.retry_after().map(clock::as_ms).or(told.asked_ms);
    (told.causes, told.story) = chain(error);
    if error.is_builder() {
        told.causes.push("invalid_request");
    }
    if error.is_timeout() {
        told.causes.push("attempt_timeout");
    }
    told
}

/// The causes that a chain of errors names, and its text.
fn chain(error: &(dyn Error + 'static)) -> (Vec<&'static str>, String) {
    let mut causes = Vec::new();
    let mut story = format!("{error} ({error:?})");
    let mut next = Some(error);
    while let Some(error) = next {
        causes_of(error, &mut causes);
        story.push_str(&format!(" < {error}"));
        next = error.source();
    }
    (causes, story)
}

fn causes_of(error: &(dyn Error + 'static), causes: &mut Vec<&'static str>) {
    use std::io::ErrorKind;

    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        match error.kind() {
            ErrorKind::ConnectionReset => causes.push("reset"),
            ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => causes.push("close"),
            ErrorKind::ConnectionRefused => causes.push("connect"),
            _ => {}
        }
        if let Some(inner) = error.get_ref() {
            causes_of(inner, causes);
        }
    }
    if let Some(error) = error.downcast_ref::<h2::Error>() {
        match error.reason() {
            _ if error.is_go_away() => causes.push("h2_goaway"),
            Some(h2::Reason::REFUSED_STREAM) => causes.push("h2_refused_stream"),
            Some(_) => causes.push("reset"),
            None => {}
        }
    }
    if error.is::<TlsError>() {
        causes.push("tls");
    }
    let text = error.to_string();
    if text.contains("failed to lookup address") {
        causes.push("dns");
    }
    if text.contains("connection closed before message completed") || text.contains("end of file before message") {
        causes.push("close");
    }
    if text.contains("error reading a body") || text.contains("error decoding response body") {
        causes.push("body");
    }
}

/// The word above that a case's `cause` stands for.
pub(crate) fn cause_word(cause: &str) -> Option<&'static str> {
    Some(match cause {
        "reset" | "connection_reset" => "reset",
        "close" | "closed" | "eof" | "incomplete" | "connection_closed" => "close",
        "attempt_timeout" | "timeout" => "attempt_timeout",
        "invalid_request" => "invalid_request",
        "tls" => "tls",
        "dns" => "dns",
        "connect" => "connect",
        "body" => "body",
        "h2_refused_stream" => "h2_refused_stream",
        "h2_goaway" | "h2_goaway_unprocessed" | "h2_goaway_calm" => "h2_goaway",
        _ => return None,
    })
}

/// Whether a history's `error` is what a case's cause, or the name of a fault, stands for.
pub(crate) fn error_fits(cause: &str, error: &str) -> bool {
    let names = match cause {
        "stall" => "Timeout",
        "reset_before_response" | "reset_mid_body" | "close_before_response" | "close_keepalive" => "Reset",
        _ => match cause_word(cause) {
            Some("reset" | "close" | "body") => "Reset",
            Some("attempt_timeout") => "Timeout",
            Some("invalid_request") => "Invalid",
            Some("tls") => "Tls",
            Some("dns") => "Dns",
            Some("connect") => "Connect",
            Some(_) => "RefusedStream",
            None => return false,
        },
    };
    error.starts_with(names)
}

/// Whether a history's `stop` is what a case's `reason` stands for; none when the reason is not known.
pub(crate) fn reason_fits(reason: &str, stop: &str) -> Option<bool> {
    let stops: &[&str] = match reason {
        "deadline" => &["Deadline"],
        "exhausted" | "max_attempts" => &["MaxAttempts"],
        "not_retryable" => &["NotRetryable", "Answered", "NotIdempotent", "NotReplayable"],
        "not_idempotent" => &["NotIdempotent"],
        "not_replayable" => &["NotReplayable"],
        "server_wait" | "max_server_wait" | "server_wait_too_long" => &["ServerWaitTooLong"],
        "budget" | "budget_spent" => &["BudgetSpent"],
        "redirect" | "redirects" | "redirect_refused" | "too_many_redirects" => &["RedirectRefused"],
        "refused" => &["Refused"],
        "cancelled" => &["Cancelled"],
        _ => return None,
    };
    Some(stops.iter().any(|wanted| stop.starts_with(wanted)))
}
