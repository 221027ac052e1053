//! What the limiter is told of an answer, and where a wait may still be found.
//!
//! Invariant: pure. A key is paused and taught by the fresh word of its own origin, and by nothing else.

use http::{StatusCode, header};
use reqwest::Response;

use crate::{Policy, Verdict, headers::Hints};

/// The hints that the limiter may act on; `None`: nothing of this answer.
pub(crate) fn to_limiter(response: &Response, hints: Hints, verdict: Verdict, home: bool) -> Option<Hints> {
    let status = response.status();
    let foreign_redirect = status.is_redirection() && !home;
    // 511 comes from a captive portal (RFC 6585 §6), an aged answer from a cache (draft 11 §7.3).
    if status == StatusCode::NETWORK_AUTHENTICATION_REQUIRED || foreign_redirect || is_cached(response) {
        return None;
    }
    let mut told = hints;
    match verdict {
        Verdict::Throttled => told.refused = true,
        Verdict::ThrottledFor(wait) => {
            told.refused = true;
            told.retry_after = Some(told.retry_after.map_or(wait, |named| named.max(wait)));
        }
        Verdict::Accept => {
            told.refused = false;
            told.retry_after = told.retry_after.filter(|_| pauses(status, &told));
        }
        _ => {}
    }
    Some(told)
}

/// The same for an answer whose body broke: its head was a refusal, or named a wait.
pub(crate) fn broken_to_limiter(hints: &Hints) -> Option<&Hints> {
    Some(hints).filter(|hints| hints.refused || hints.retry_after.is_some_and(|wait| !wait.is_zero()))
}

/// Whether the wait of an accepted answer is for the key: on a redirect, or on a success that also tells a quota that
/// is used up. 201 and 202 speak of their own resource; some services send a wait with every good answer.
fn pauses(status: StatusCode, hints: &Hints) -> bool {
    let spent = hints.quotas.iter().any(|quota| quota.remaining == Some(0.0));
    status.is_redirection() || status.is_success() && !matches!(status.as_u16(), 201 | 202) && spent
}

fn is_cached(response: &Response) -> bool {
    response
        .headers()
        .get(header::AGE)
        .is_some_and(|age| age.as_bytes().iter().any(|digit| (b'1'..=b'9').contains(digit)))
}

/// Whether a small error body may name the wait that the head does not.
pub(crate) fn may_be_in_body(response: &Response, hints: &Hints, policy: &Policy) -> bool {
    let status = response.status().as_u16();
    if !matches!(status, 403 | 429 | 503) || hints.retry_after.is_some() {
        return false;
    }
    // GitHub's secondary limit is told in words, whatever the content type.
    status == 403 && policy.is_rate_limit_403() || is_json(response)
}

fn is_json(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| {
        kind.split(';').next().is_some_and(|kind| kind.trim().to_ascii_lowercase().ends_with("json"))
    })
}
