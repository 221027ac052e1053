//! Where an answer points, and whether it is followed.
//!
//! Invariant: pure. Rules: RFC 9110 §15.4, RFC 10008 for QUERY. One that is not followed is handed over as it is.

use http::{HeaderMap, HeaderName, Method, StatusCode, header};
use reqwest::Url;

use crate::{call::Onward, headers::Hints, key_by::same_origin};

/// The next request of the same attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) url: Url,
    pub(crate) method: Method,
    pub(crate) keeps_body: bool,
    pub(crate) is_poll: bool,
}

/// The request that was answered, and what the client allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From<'a> {
    pub(crate) method: &'a Method,
    pub(crate) url: &'a Url,
    pub(crate) replayable: bool,
    /// Redirects that are left.
    pub(crate) left: u32,
    /// What was asked before in this call.
    pub(crate) visited: &'a [(Method, Url)],
    /// Another origin may be asked.
    pub(crate) leaves: bool,
    /// It may be executed again without its key, or was not executed yet.
    pub(crate) unkeyed: bool,
    /// The answer sets a cookie, so that the same question may have another answer.
    pub(crate) sets_cookie: bool,
}

/// Where a redirect points.
pub(crate) fn redirect(status: StatusCode, headers: &HeaderMap, from: From<'_>) -> (Onward, Option<Hop>) {
    let Some(location) =
        headers.get(header::LOCATION).filter(|_| matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308))
    else {
        return (Onward::No, None);
    };
    let Some(url) = location.to_str().ok().and_then(|text| resolve(from.url, text)) else {
        return (Onward::Refuse, None);
    };
    let (method, keeps_body) = rewritten(status, from.method);
    let hop = Hop { url, method, keeps_body, is_poll: false };
    if is_taken(&hop, from) { (Onward::Follow, Some(hop)) } else { (Onward::Refuse, None) }
}

/// Where the result of a 202 is asked for; `polling`: this was such a question already.
pub(crate) fn poll(headers: &HeaderMap, hints: &Hints, polling: bool, from: From<'_>) -> (Onward, Option<Hop>) {
    if hints.retry_after.is_none() && !polling {
        return (Onward::No, None);
    }
    let told = STATUS_URLS.iter().find_map(|name| headers.get(name));
    let url = match told.map(|value| value.to_str().ok().and_then(|text| resolve(from.url, text))) {
        Some(Some(url)) if same_origin(&url, from.url) && is_clean(&url) => url,
        None if from.method == Method::GET => from.url.clone(),
        _ => return (Onward::No, None),
    };
    (Onward::Poll, Some(Hop { url, method: Method::GET, keeps_body: false, is_poll: true }))
}

/// Where a long-running operation tells its state: microsoft/api-guidelines, azure/Guidelines.md, 2026-10.
static STATUS_URLS: [HeaderName; 3] =
    [HeaderName::from_static("operation-location"), HeaderName::from_static("azure-asyncoperation"), header::LOCATION];

/// The target, with the fragment of what was asked if it tells none (RFC 9110 §10.2.2).
fn resolve(from: &Url, location: &str) -> Option<Url> {
    let mut url = from.join(location).ok()?;
    if url.fragment().is_none() {
        url.set_fragment(from.fragment());
    }
    Some(url)
}

/// Method of the next request, and whether it carries the body.
fn rewritten(status: StatusCode, method: &Method) -> (Method, bool) {
    let to_get = match status.as_u16() {
        303 => *method != Method::GET && *method != Method::HEAD,
        301 | 302 => *method == Method::POST,
        _ => false,
    };
    if to_get { (Method::GET, false) } else { (method.clone(), true) }
}

fn is_taken(hop: &Hop, from: From<'_>) -> bool {
    let downgrade = from.url.scheme() == "https" && hop.url.scheme() != "https";
    let again = |(method, url): &(Method, Url)| *method == hop.method && *url == hop.url;
    let loops =
        !from.sets_cookie && (again(&(from.method.clone(), from.url.clone())) || from.visited.iter().any(again));
    let sendable = !hop.keeps_body || from.replayable;
    // The key stays on its origin, so that elsewhere the method would be executed a second time.
    let unkeyed = from.unkeyed || hop.method != *from.method;
    let allowed = from.leaves && unkeyed || same_origin(&hop.url, from.url);
    from.left > 0 && !downgrade && !loops && sendable && allowed && (is_clean(&hop.url) || is_own(&hop.url, from.url))
}

fn is_clean(url: &Url) -> bool {
    // RFC 9110 §4.2.4: a user name in a Location is not to be trusted.
    matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none()
}

/// The user name is the caller's own: a relative Location keeps it.
fn is_own(url: &Url, from: &Url) -> bool {
    same_origin(url, from) && url.username() == from.username() && url.password() == from.password()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[track_caller]
    fn check(status: u16, method: &str, location: &'static str, expected: Option<(&str, &str, bool)>) {
        let url = Url::parse("https://h/a?q#f").unwrap();
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let visited = [(Method::GET, Url::parse("https://h/seen").unwrap())];
        let from = From {
            method: &method,
            url: &url,
            replayable: true,
            left: 1,
            visited: &visited,
            leaves: true,
            unkeyed: true,
            sets_cookie: false,
        };
        let headers = HeaderMap::from_iter([(header::LOCATION, HeaderValue::from_static(location))]);
        let (_, hop) = redirect(StatusCode::from_u16(status).unwrap(), &headers, from);
        let found = hop.as_ref().map(|hop| (hop.method.as_str(), hop.url.as_str(), hop.keeps_body));
        assert_eq!(found, expected, "{status} {method} {location}");
    }

    #[test]
    fn methods_and_bodies_follow_the_status() {
        check(307, "POST", "/b", Some(("POST", "https://h/b#f", true)));
        check(308, "PUT", "https://i/b#g", Some(("PUT", "https://i/b#g", true)));
        check(301, "POST", "b", Some(("GET", "https://h/b#f", false)));
        check(302, "PUT", "b", Some(("PUT", "https://h/b#f", true)));
        check(302, "QUERY", "b", Some(("QUERY", "https://h/b#f", true)));
        check(303, "QUERY", "b", Some(("GET", "https://h/b#f", false)));
        check(303, "HEAD", "b", Some(("HEAD", "https://h/b#f", true)));
        check(304, "GET", "b", None);
    }

    #[test]
    fn redirects_that_are_not_to_be_trusted_are_not_taken() {
        check(302, "GET", "http://h/b", None);
        check(302, "GET", "https://user@h/b", None);
        check(302, "GET", "ftp://h/b", None);
        check(302, "GET", "/a?q", None);
        check(302, "GET", "https://h/seen#", Some(("GET", "https://h/seen#", true)));
        check(302, "GET", "https://h:bad/", None);
    }
}
