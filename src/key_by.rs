//! Which calls share a limit: the limiter key of a request.

use std::{fmt, sync::Arc};

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION},
};
use reqwest::{Request, Url};
use url::Position;

use crate::Key;

type With = dyn Fn(&Request) -> Key + Send + Sync;

/// Which calls share a limit. Default: origin and credential, because limits are per API key.
///
/// Fixed once per hop, from the request as `send()` or `execute()` got it, with default headers. What `headers_with`
/// and `on_attempt` set is never part of it.
#[derive(Clone, Default)]
pub struct KeyBy(By);

#[derive(Clone, Default)]
enum By {
    Origin,
    #[default]
    OriginAndCredential,
    Client,
    With(Arc<With>),
}

#[expect(non_upper_case_globals, reason = "they read like the variants that they stand for")]
impl KeyBy {
    /// Scheme, host and port.
    pub const Origin: Self = Self(By::Origin);
    /// Scheme, host, port, and a hash of the credential headers.
    pub const OriginAndCredential: Self = Self(By::OriginAndCredential);
    /// One limit for all calls of the client.
    pub const Client: Self = Self(By::Client);

    /// The caller's own key.
    pub fn with(key: impl Fn(&Request) -> Key + Send + Sync + 'static) -> Self {
        Self(By::With(Arc::new(key)))
    }
}

impl fmt::Debug for KeyBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            By::Origin => "Origin",
            By::OriginAndCredential => "OriginAndCredential",
            By::Client => "Client",
            By::With(_) => "With",
        })
    }
}

/// Headers that show who calls, besides values marked sensitive: they make the key, and stay on their origin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials {
    more: Vec<HeaderName>,
    /// The idempotency header: secret, but not who calls.
    except: Option<HeaderName>,
}

/// By convention, not by a standard: AWS API Gateway's, Azure's, OpenStack's and GitLab's.
static CUSTOM: [HeaderName; 4] = [
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-auth-token"),
    HeaderName::from_static("private-token"),
];

impl Credentials {
    pub(crate) fn new(more: Vec<HeaderName>, except: HeaderName) -> Self {
        Self { more, except: Some(except) }
    }

    pub(crate) fn has(&self, name: &HeaderName, value: &HeaderValue) -> bool {
        let named = value.is_sensitive()
            || *name == AUTHORIZATION
            || *name == COOKIE
            || *name == PROXY_AUTHORIZATION
            || CUSTOM.contains(name)
            || self.more.contains(name);
        named && self.except.as_ref() != Some(name)
    }

    fn of<'a>(&self, headers: &'a HeaderMap) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
        headers.iter().filter(|(name, value)| self.has(name, value))
    }
}

/// The limiter key of a request.
pub(crate) fn key(by: &KeyBy, request: &Request, credentials: &Credentials) -> Key {
    match &by.0 {
        By::Client => Key::from(""),
        By::With(key) => key(request),
        By::Origin => by_origin(request.url()),
        By::OriginAndCredential => {
            let mut found = credentials.of(request.headers());
            match (found.next(), found.next()) {
                (None, _) => by_origin(request.url()),
                (Some(only), None) => by_both(request.url(), |text| write(text, only)),
                // In one order, whatever order they were set in.
                _ => by_both(request.url(), |text| {
                    let mut found: Vec<_> = credentials.of(request.headers()).collect();
                    found.sort_by_key(|(name, value)| (name.as_str(), value.as_bytes()));
                    found.into_iter().for_each(|pair| write(text, pair));
                }),
            }
        }
    }
}

fn by_origin(url: &Url) -> Key {
    match origin(url) {
        Some(origin) => Key::from(origin),
        None => by_both(url, |_| {}),
    }
}

fn by_both(url: &Url, credentials: impl FnOnce(&mut String)) -> Key {
    let mut text = String::with_capacity(128);
    match origin(url) {
        Some(origin) => text.push_str(origin),
        None => text.push_str(&url.origin().ascii_serialization()),
    }
    credentials(&mut text);
    Key::from(text)
}

/// What stands before the path, if there is no user name or password in it; a default port is never written out.
fn origin(url: &Url) -> Option<&str> {
    let plain = url.username().is_empty() && url.password().is_none();
    plain.then(|| &url[..Position::BeforePath])
}

/// Bytes that are no text are kept apart as Latin-1.
fn write(text: &mut String, (name, value): (&HeaderName, &HeaderValue)) {
    text.push('\n');
    text.push_str(name.as_str());
    text.push(':');
    text.extend(value.as_bytes().iter().map(|byte| char::from(*byte)));
}

/// Scheme, host and port are the same.
pub(crate) fn same_origin(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host_str() == other.host_str()
        && one.port_or_known_default() == other.port_or_known_default()
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn request(url: &str, headers: &[(&'static str, &'static str)]) -> Request {
        let mut request = Request::new(Method::GET, url.parse().unwrap());
        for (name, value) in headers {
            request.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        request
    }

    #[track_caller]
    fn check(same: bool, one: &Request, other: &Request) {
        let credentials = Credentials::new(vec![], HeaderName::from_static("idempotency-key"));
        let key = |request| key(&KeyBy::OriginAndCredential, request, &credentials);
        assert_eq!(key(one) == key(other), same);
    }

    #[test]
    fn the_key_is_origin_and_credential() {
        let plain = request("https://h/a", &[]);
        check(true, &plain, &request("https://h:443/b?c", &[("accept", "x")]));
        check(true, &plain, &request("https://user:pass@h/", &[("idempotency-key", "1")]));
        check(false, &plain, &request("https://h:444/a", &[]));
        check(false, &plain, &request("http://h/a", &[]));
        check(false, &plain, &request("https://h/a", &[("x-api-key", "1")]));
        let one = request("https://h/a", &[("x-api-key", "1"), ("authorization", "b")]);
        check(true, &one, &request("https://h/a", &[("authorization", "b"), ("x-api-key", "1")]));
        check(false, &one, &request("https://h/a", &[("authorization", "b"), ("x-api-key", "2")]));
    }
}
