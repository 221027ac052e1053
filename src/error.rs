//! One opaque error with predicates.

use std::{error::Error as StdError, fmt, time::Duration};

use http::StatusCode;
use reqwest::Url;

use crate::{
    history::{Attempt, History, Stop},
    limit::Refused,
    sent::{self, Cause, SentState},
};

/// Any error.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why there is no response to give: what went wrong, and the [history](Self::history) of the call.
///
/// A last *response* is never turned into an error. `Display` names no query, header value or key.
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    source: Option<BoxError>,
    url: Option<Url>,
    history: History,
}

#[derive(Debug)]
enum Kind {
    /// A setting or a request that makes no sense; nothing was sent.
    Builder(Box<str>),
    /// `headers_with` failed; nothing was sent.
    Headers,
    /// The limiter let nothing through.
    Refused(Refused),
    /// The transport failed.
    Failed(Cause, SentState),
}

impl Error {
    /// A setting or a request that makes no sense; nothing was sent.
    pub(crate) fn builder(what: impl Into<Box<str>>) -> Self {
        Self::new(Kind::Builder(what.into()), None)
    }

    /// The store of a fleet cannot be reached.
    #[cfg(feature = "redis")]
    pub(crate) fn store(store: &str, why: &str) -> Self {
        let source = std::io::Error::new(std::io::ErrorKind::NotConnected, format!("the store {store}: {why}"));
        Self::new(Kind::Failed(Cause::Connect, SentState::NotSent), Some(source.into()))
    }

    pub(crate) fn headers(source: BoxError) -> Self {
        Self::new(Kind::Headers, Some(source))
    }

    pub(crate) fn limited(refused: Refused) -> Self {
        Self::new(Kind::Refused(refused), None)
    }

    /// Ours, without a source: a timer of the call ran out.
    pub(crate) fn cut(cause: Cause, sent: SentState) -> Self {
        Self::new(Kind::Failed(cause, sent), None)
    }

    /// What the transport reports. The URL of a `reqwest::Error` loses user name, password and query.
    pub(crate) fn transport(source: BoxError) -> Self {
        let (cause, sent) = sent::read(&*source);
        let source = match source.downcast::<reqwest::Error>() {
            Ok(mut error) => {
                error.url_mut().map(strip);
                error
            }
            Err(source) => source,
        };
        Self::new(Kind::Failed(cause, sent), Some(source))
    }

    /// A body that broke after the head.
    pub(crate) fn body(source: BoxError) -> Self {
        let mut error = Self::transport(source);
        if let Kind::Failed(_, sent) = &mut error.0.kind {
            *sent = SentState::Sent;
        }
        error
    }

    fn new(kind: Kind, source: Option<BoxError>) -> Self {
        Self(Box::new(Inner { kind, source, url: None, history: History::default() }))
    }

    pub(crate) fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    pub(crate) fn with_url(mut self, url: &Url) -> Self {
        let mut url = url.clone();
        strip(&mut url);
        self.0.url = Some(url);
        self
    }

    pub(crate) fn with_history(mut self, history: History) -> Self {
        self.0.history = history;
        self
    }

    /// What happened in the call before it failed.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// What went wrong with the last attempt; `None` if nothing was sent because of a setting or the limiter.
    pub fn cause(&self) -> Option<Cause> {
        match self.0.kind {
            Kind::Failed(cause, _) => Some(cause),
            _ => None,
        }
    }

    /// How far the last attempt got, its redirects included.
    pub fn sent(&self) -> SentState {
        self.0.history.attempts().last().map_or_else(|| self.at_last(), Attempt::sent)
    }

    /// How far the last request got.
    fn at_last(&self) -> SentState {
        match self.0.kind {
            Kind::Failed(_, sent) => sent,
            _ => SentState::NotSent,
        }
    }

    /// The limiter's refusal, if that is why there is no response.
    pub fn refused(&self) -> Option<&Refused> {
        match &self.0.kind {
            Kind::Refused(refused) => Some(refused),
            _ => None,
        }
    }

    /// The status of the last answer in the call, if there was any.
    pub fn status(&self) -> Option<StatusCode> {
        let answered = self.0.history.attempts().iter().rev().find_map(|attempt| attempt.status());
        answered.or_else(|| self.reqwest().and_then(reqwest::Error::status))
    }

    /// Where the request went, without user name, password and query.
    pub fn url(&self) -> Option<&Url> {
        self.0.url.as_ref().or_else(|| self.reqwest().and_then(reqwest::Error::url))
    }

    /// The wait that the server asked for last.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.history.asked_wait()
    }

    /// A setting or a request that makes no sense; nothing was sent.
    pub fn is_builder(&self) -> bool {
        matches!(self.0.kind, Kind::Builder(_) | Kind::Failed(Cause::Invalid, _))
    }

    /// The attempt timed out, or the deadline cut it off, or the transport's own timeout did.
    pub fn is_timeout(&self) -> bool {
        let ours = matches!(self.0.kind, Kind::Failed(Cause::Timeout | Cause::Deadline, _));
        ours || self.reqwest().is_some_and(reqwest::Error::is_timeout)
    }

    /// The call ended because of its deadline.
    pub fn is_deadline(&self) -> bool {
        let refused = self.refused().is_some_and(Refused::is_deadline);
        refused || self.cause() == Some(Cause::Deadline) || self.0.history.stop() == Stop::Deadline
    }

    /// The limiter let nothing through.
    pub fn is_throttled(&self) -> bool {
        self.refused().is_some()
    }

    /// There was no connection: DNS, TCP or TLS.
    pub fn is_connect(&self) -> bool {
        matches!(self.cause(), Some(Cause::Connect | Cause::Dns { .. } | Cause::Tls))
    }

    /// The host name could not be looked up.
    pub fn is_dns(&self) -> bool {
        matches!(self.cause(), Some(Cause::Dns { .. }))
    }

    /// The server's certificate is not trusted, or the handshake was refused.
    pub fn is_tls(&self) -> bool {
        self.cause() == Some(Cause::Tls)
    }

    /// The connection was closed or reset before the answer was complete.
    pub fn is_reset(&self) -> bool {
        self.cause() == Some(Cause::Reset)
    }

    /// HTTP/2: the server refused the stream unread.
    pub fn is_refused_stream(&self) -> bool {
        self.cause() == Some(Cause::RefusedStream)
    }

    /// A body broke: the request's, or the response's after its head.
    pub fn is_body(&self) -> bool {
        let broken = matches!(self.0.kind, Kind::Failed(_, SentState::Sent));
        broken || self.cause() == Some(Cause::RequestBody) || self.reqwest().is_some_and(reqwest::Error::is_body)
    }

    /// The request could not be sent or was not answered.
    pub fn is_request(&self) -> bool {
        self.reqwest().is_some_and(reqwest::Error::is_request)
    }

    /// The response could not be decoded.
    pub fn is_decode(&self) -> bool {
        self.cause() == Some(Cause::Decode)
    }

    /// A redirect of the wrapped client failed; abide itself hands over the 3xx instead.
    pub fn is_redirect(&self) -> bool {
        self.reqwest().is_some_and(reqwest::Error::is_redirect)
    }

    /// Made from a status; abide itself hands over the response instead.
    pub fn is_status(&self) -> bool {
        self.reqwest().is_some_and(reqwest::Error::is_status)
    }

    fn reqwest(&self) -> Option<&reqwest::Error> {
        self.0.source.as_ref()?.downcast_ref()
    }
}

fn strip(url: &mut Url) {
    url.set_query(None);
    url.set_fragment(None);
    if !url.username().is_empty() || url.password().is_some() {
        // Fails only for URLs that cannot have them.
        let _ = url.set_username("");
        let _ = url.set_password(None);
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Error");
        debug.field("kind", &self.0.kind);
        if let Some(url) = &self.0.url {
            debug.field("url", &url.as_str());
        }
        if let Some(source) = &self.0.source {
            debug.field("source", source);
        }
        debug.field("history", &self.0.history).finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.kind {
            Kind::Builder(what) => f.write_str(what)?,
            Kind::Headers => f.write_str("headers_with failed, nothing was sent")?,
            Kind::Refused(refused) if refused.is_never() => f.write_str("refused: the cost can never fit the quota")?,
            Kind::Refused(refused) if refused.is_full() => f.write_str("refused: too many calls wait already")?,
            Kind::Refused(refused) if refused.is_deadline() => f.write_str("no permit before the deadline")?,
            #[cfg(feature = "redis")]
            Kind::Refused(refused) if refused.is_store_lost() => f.write_str("refused: the fleet's store is away")?,
            Kind::Refused(_) => f.write_str("refused by the limiter")?,
            Kind::Failed(cause, _) => cause.fmt(f)?,
        }
        match &self.0.url {
            Some(url) => write!(f, " for {url}"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_and_debug_name_no_secret_of_the_url() {
        let url = Url::parse("https://user:pass@h.example/p?token=secret#s").unwrap();
        let error = Error::cut(Cause::Timeout, SentState::Unknown).with_url(&url);
        let text = format!("{error} {error:?}");
        for secret in ["user", "pass", "token", "secret"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert_eq!(error.to_string(), "attempt timed out for https://h.example/p");
        assert!(error.is_timeout() && !error.is_deadline());
    }
}
