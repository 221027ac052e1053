//! What a failure of the transport means: how far the request got, and what went wrong.
//!
//! The only place that knows the error types of reqwest, hyper, h2 and rustls. Told apart by type; text is read in
//! one table, because the system's resolver tells nothing else.

use std::{error::Error as StdError, fmt, io};

/// How far a request got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SentState {
    /// No byte of it was processed: no connection, or a stream that the server refused unread.
    NotSent,
    /// It may have been processed.
    Unknown,
    /// It was answered.
    Sent,
}

/// What went wrong in an attempt that has no usable answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// No connection: refused, unreachable, or it broke during the handshake.
    Connect,
    /// The host name could not be looked up.
    Dns {
        /// The resolver says that it may work later.
        temporary: bool,
    },
    /// The server's certificate is not trusted, or no common TLS version or cipher.
    Tls,
    /// HTTP/2: the stream was refused, or not covered by a GOAWAY (RFC 9113 §6.8, §8.7).
    RefusedStream,
    /// The connection was closed or reset.
    Reset,
    /// The attempt took too long.
    Timeout,
    /// The deadline of the call came.
    Deadline,
    /// The request makes no sense: bad URL, unknown scheme.
    Invalid,
    /// The body of the request could not be produced.
    RequestBody,
    /// The response could not be decoded.
    Decode,
    /// Anything else.
    Other,
}

impl Cause {
    /// Whether another attempt may mend it.
    pub(crate) fn is_passing(self) -> bool {
        matches!(
            self,
            Self::Connect | Self::Dns { temporary: true } | Self::RefusedStream | Self::Reset | Self::Timeout
        )
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "no connection",
            Self::Dns { .. } => "host name not found",
            Self::Tls => "certificate or handshake refused",
            Self::RefusedStream => "stream refused unread",
            Self::Reset => "connection closed before the answer was complete",
            Self::Timeout => "attempt timed out",
            Self::Deadline => "deadline of the call reached",
            Self::Invalid => "invalid request",
            Self::RequestBody => "request body failed",
            Self::Decode => "response could not be decoded",
            Self::Other => "transport failed",
        })
    }
}

/// The resolver's words for "try later": `EAI_AGAIN` of glibc and musl, and `WSATRY_AGAIN`. No type tells it.
const TEMPORARY_DNS: [&str; 2] = ["Temporary failure", "Try again"];

/// What went wrong, and how far the request got. What is not recognised is `Unknown`, never `NotSent`.
pub(crate) fn read(error: &(dyn StdError + 'static)) -> (Cause, SentState) {
    use SentState::{NotSent, Unknown};
    if let Some(error) = find(error, &mut |error| error.downcast_ref::<reqwest::Error>().map(of_reqwest)).flatten() {
        return error;
    }
    if let Some(found) = find(error, &mut of_legacy) {
        return found;
    }
    match find(error, &mut |error| of_stream(error).or_else(|| of_connection(error))) {
        Some(found) => found,
        None if is_refused(error) => (Cause::Connect, NotSent),
        None => (Cause::Other, Unknown),
    }
}

fn of_reqwest(error: &reqwest::Error) -> Option<(Cause, SentState)> {
    use SentState::{NotSent, Unknown};
    let found = if error.is_builder() {
        (Cause::Invalid, NotSent)
    } else if error.is_dns() {
        (Cause::Dns { temporary: says(error, &TEMPORARY_DNS) }, NotSent)
    } else if error.is_connect() {
        let tls = find(error, &mut is_tls).is_some();
        (if tls { Cause::Tls } else { Cause::Connect }, NotSent)
    } else if error.is_timeout() {
        (Cause::Timeout, Unknown)
    } else if error.is_decode() {
        // A body that breaks off while it is decompressed is a reset, not bad data.
        find(error, &mut of_connection).unwrap_or((Cause::Decode, Unknown))
    } else {
        return None;
    };
    Some(found)
}

/// hyper-util's own client, beneath a layer: whether it had a connection.
#[cfg(feature = "tower")]
fn of_legacy(error: &(dyn StdError + 'static)) -> Option<(Cause, SentState)> {
    let error = error.downcast_ref::<hyper_util::client::legacy::Error>().filter(|error| error.is_connect())?;
    let tls = find(error, &mut is_tls).is_some();
    Some((if tls { Cause::Tls } else { Cause::Connect }, SentState::NotSent))
}

#[cfg(not(feature = "tower"))]
fn of_legacy(_: &(dyn StdError + 'static)) -> Option<(Cause, SentState)> {
    None
}

#[cfg(feature = "http2")]
fn of_stream(error: &(dyn StdError + 'static)) -> Option<(Cause, SentState)> {
    let error = error.downcast_ref::<h2::Error>()?;
    let refused = error.reason() == Some(h2::Reason::REFUSED_STREAM) && error.is_reset();
    // h2 gives a GOAWAY of the peer only to the streams that it does not cover, and to those not yet begun.
    let uncovered = error.is_go_away() && error.is_remote();
    Some(match refused && error.is_remote() || uncovered {
        true => (Cause::RefusedStream, SentState::NotSent),
        false => (Cause::Reset, SentState::Unknown),
    })
}

#[cfg(not(feature = "http2"))]
fn of_stream(_: &(dyn StdError + 'static)) -> Option<(Cause, SentState)> {
    None
}

fn of_connection(error: &(dyn StdError + 'static)) -> Option<(Cause, SentState)> {
    let reset = (Cause::Reset, SentState::Unknown);
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        if error.is_user() {
            return Some((Cause::RequestBody, SentState::Unknown));
        }
        let closed = error.is_incomplete_message() || error.is_closed() || error.is_canceled();
        return closed.then_some(reset);
    }
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    let error = error.downcast_ref::<io::Error>()?;
    let closed =
        matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof);
    closed.then_some(reset)
}

fn is_refused(error: &(dyn StdError + 'static)) -> bool {
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    find(error, &mut |error| error.downcast_ref().filter(|error| refused(error)).map(drop)).is_some()
}

#[cfg(any(feature = "rustls", feature = "rustls-no-provider"))]
fn is_tls(error: &(dyn StdError + 'static)) -> Option<()> {
    use rustls::Error::{
        AlertReceived, InvalidCertRevocationList, InvalidCertificate, NoCertificatesPresented, PeerIncompatible,
        UnsupportedNameType,
    };
    let error = error.downcast_ref::<rustls::Error>()?;
    let refused = matches!(
        error,
        InvalidCertificate(_)
            | InvalidCertRevocationList(_)
            | NoCertificatesPresented
            | UnsupportedNameType
            | PeerIncompatible(_)
            | AlertReceived(_)
    );
    refused.then_some(())
}

#[cfg(not(any(feature = "rustls", feature = "rustls-no-provider")))]
fn is_tls(_: &(dyn StdError + 'static)) -> Option<()> {
    None
}

/// The first answer along the chain of sources. An `io::Error` hides what it wraps from `source()`: looked into.
fn find<T>(
    error: &(dyn StdError + 'static),
    look: &mut dyn FnMut(&(dyn StdError + 'static)) -> Option<T>,
) -> Option<T> {
    if let Some(found) = look(error) {
        return Some(found);
    }
    if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        return find(inner, look);
    }
    find(error.source()?, look)
}

fn says(error: &(dyn StdError + 'static), words: &[&str]) -> bool {
    let has = |error: &(dyn StdError + 'static)| {
        let text = error.to_string();
        words.iter().any(|word| text.contains(word)).then_some(())
    };
    find(error, &mut { has }).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(error: impl StdError + 'static, cause: Cause, sent: SentState) {
        assert_eq!(read(&error), (cause, sent));
    }

    #[test]
    fn errors_that_are_not_recognised_may_have_been_sent() {
        check(io::Error::other("?"), Cause::Other, SentState::Unknown);
        check(fmt::Error, Cause::Other, SentState::Unknown);
    }

    #[test]
    fn closed_connections_may_have_been_sent_and_refused_ones_were_not() {
        check(io::Error::from(io::ErrorKind::ConnectionReset), Cause::Reset, SentState::Unknown);
        check(io::Error::other(io::Error::from(io::ErrorKind::BrokenPipe)), Cause::Reset, SentState::Unknown);
        check(io::Error::from(io::ErrorKind::ConnectionRefused), Cause::Connect, SentState::NotSent);
    }

    #[cfg(feature = "http2")]
    #[test]
    fn a_local_reset_of_h2_may_have_been_sent() {
        check(h2::Error::from(h2::Reason::REFUSED_STREAM), Cause::Reset, SentState::Unknown);
    }
}
