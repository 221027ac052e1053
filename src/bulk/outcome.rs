//! What comes out of a run: one outcome a row, and the line that it is written as.

use std::{fmt, io, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header::SET_COOKIE};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::value::RawValue;

use super::base64;
use crate::{Attempt, Cause, Error, SentState};

/// What one row came to. Its `Debug` form shows no header value, body or key.
#[derive(Clone)]
#[non_exhaustive]
pub struct Outcome {
    /// The name of the job.
    pub id: String,
    /// Its place in the input, from 1.
    pub line: u64,
    /// Of the last answer; `None`: there is none.
    pub status: Option<StatusCode>,
    /// Of the last answer.
    pub headers: HeaderMap,
    /// Of the last answer; up to 64 MiB, a longer one is an error of the kind `body`.
    pub body: Bytes,
    /// Why there is no answer, or why the row is given up.
    pub error: Option<Failure>,
    /// Attempts in all rounds.
    pub attempts: u32,
    /// Attempts that were refused for their rate.
    pub throttled: u32,
    /// From its first start to its end, waits included.
    pub elapsed: Duration,
    /// For the limiter, for the server and in backoff, in all rounds.
    pub waited: Duration,
    /// The last attempts, at most 20.
    pub history: Vec<Attempt>,
    /// The idempotency key that it was sent with.
    pub idempotency_key: Option<String>,
    /// As the job had it.
    pub meta: Option<Box<RawValue>>,
    /// Its place in a stream; `None`: it came from elsewhere.
    pub entry: Option<String>,
    /// It failed, but may have been executed, and to send it again is not safe: it has no key, and its method is not
    /// idempotent.
    pub maybe_executed: bool,
}

/// Why a row has no answer, or is given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Failure {
    /// In one word: `deadline timeout connect dns tls reset throttled refused invalid body unknown other`.
    pub kind: &'static str,
    /// In a sentence, without query, header values or keys.
    pub message: String,
}

/// The kind of a row whose fate in an earlier run is not known.
pub(super) const UNKNOWN: &str = "unknown";

impl Failure {
    pub(super) fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What the error of a call means for a row.
    pub(super) fn of(error: &Error) -> Self {
        let kind = match error.cause() {
            _ if error.is_builder() => "invalid",
            _ if error.is_deadline() => "deadline",
            _ if error.is_throttled() => "refused",
            Some(Cause::Timeout) => "timeout",
            Some(Cause::Connect) => "connect",
            Some(Cause::Dns { .. }) => "dns",
            Some(Cause::Tls) => "tls",
            Some(Cause::Reset | Cause::RefusedStream) => "reset",
            Some(Cause::RequestBody | Cause::Decode) => "body",
            _ => "other",
        };
        let mut message = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            // The outer ones of reqwest repeat the URL; the innermost says what happened.
            source = cause.source();
            if source.is_none() && !message.contains(&cause.to_string()) {
                message = format!("{message}: {cause}");
            }
        }
        Self::new(kind, message)
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("id", &self.id)
            .field("line", &self.line)
            .field("status", &self.status)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .field("error", &self.error)
            .field("attempts", &self.attempts)
            .field("throttled", &self.throttled)
            .field("elapsed", &self.elapsed)
            .field("waited", &self.waited)
            .field("history", &self.history)
            .finish_non_exhaustive()
    }
}

impl Outcome {
    /// A 2xx or a 304, and nothing went wrong after it.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        let good = |status: StatusCode| status.is_success() || status == StatusCode::NOT_MODIFIED;
        self.error.is_none() && self.status.is_some_and(good)
    }

    /// An earlier run claimed it and did not finish, and it may not be repeated: it was not sent again, and has no line
    /// in the results.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.kind == UNKNOWN)
    }

    /// Whether an attempt got through to where it may have been executed, and failed all the same: a 4xx refused it.
    pub(super) fn went_through(&self) -> bool {
        let refused = |status: StatusCode| status.is_client_error() || status.is_redirection();
        let went = |attempt: &Attempt| attempt.sent() != SentState::NotSent && !attempt.status().is_some_and(refused);
        !self.is_ok() && self.history.iter().any(went)
    }

    /// Appends its line to `lines`: one JSON object, with its line feed. No control character stands in it as it is.
    pub fn write_line(&self, lines: &mut Vec<u8>) {
        let from = lines.len();
        // A Vec takes everything, and no map here has a key that is no string.
        if self.write_to(lines).is_err() {
            lines.truncate(from);
        }
    }

    /// The same, piece by piece: the line is never there as a whole.
    pub(super) fn write_to(&self, to: &mut impl io::Write) -> io::Result<()> {
        serde_json::to_writer(Tame(&mut *to), &self.line_form())?;
        to.write_all(b"\n")
    }

    fn line_form(&self) -> Line<'_> {
        let text = std::str::from_utf8(&self.body).ok();
        let body = text.filter(|_| self.status.is_some() && !self.body.is_empty());
        Line {
            id: &self.id,
            line: self.line,
            status: self.status.map(|status| status.as_u16()),
            ok: self.is_ok(),
            attempts: self.attempts,
            elapsed_ms: millis(self.elapsed),
            waited_ms: millis(self.waited),
            headers: self.status.map(|_| Headers(&self.headers)),
            body,
            body_base64: text.is_none().then_some(Base64(&self.body)),
            error: self.error.as_ref(),
            idempotency_key: self.idempotency_key.as_deref(),
            meta: self.meta.as_deref(),
            entry: self.entry.as_deref(),
            maybe_executed: self.maybe_executed.then_some(true),
            throttled: (self.throttled > 0).then_some(self.throttled),
            history: (self.attempts > 1).then(|| self.history.iter().map(Past::of).collect()),
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    id: &'a str,
    line: u64,
    status: Option<u16>,
    ok: bool,
    attempts: u32,
    elapsed_ms: f64,
    waited_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Headers<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<Base64<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    maybe_executed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    throttled: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<Past>>,
}

/// One attempt of several.
#[derive(Serialize)]
struct Past {
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    waited_ms: f64,
    elapsed_ms: f64,
}

impl Past {
    fn of(attempt: &Attempt) -> Self {
        Self {
            status: attempt.status().map(|status| status.as_u16()),
            error: attempt.error().map(|cause| cause.to_string()),
            waited_ms: millis(attempt.waited().total()),
            elapsed_ms: millis(attempt.elapsed()),
        }
    }
}

struct Base64<'a>(&'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Base64<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A multiple of three: no padding within.
        self.0.chunks(3 * 1024).try_for_each(|chunk| f.write_str(&base64(chunk)))
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.keys_len()))?;
        for name in self.0.keys() {
            // A session's cookie is a credential.
            if name == SET_COOKIE {
                map.serialize_entry(name.as_str(), "***")?;
                continue;
            }
            let values: Vec<_> =
                self.0.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
            map.serialize_entry(name.as_str(), &values.join(", "))?;
        }
        map.end()
    }
}

/// Milliseconds with three decimals.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// Writes what terminals obey as escapes; takes JSON in pieces that are text each, as serde_json writes it.
struct Tame<W>(W);

impl<W: io::Write> io::Write for Tame<W> {
    fn write(&mut self, json: &[u8]) -> io::Result<usize> {
        self.write_all(json).map(|()| json.len())
    }

    fn write_all(&mut self, json: &[u8]) -> io::Result<()> {
        // The first bytes of all that is escaped.
        if !json.iter().any(|byte| matches!(byte, 0x7f | 0xc2 | 0xd8 | 0xe2 | 0xef)) {
            return self.0.write_all(json);
        }
        let (json, mut from) = (String::from_utf8_lossy(json), 0);
        for (at, found) in json.match_indices(is_obeyed) {
            self.0.write_all(&json.as_bytes()[from..at])?;
            for letter in found.chars() {
                write!(self.0, "\\u{:04x}", u32::from(letter))?;
            }
            from = at + found.len();
        }
        self.0.write_all(&json.as_bytes()[from..])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// DEL and C1 controls (serde writes those below as escapes), and characters that turn, hide or break text.
fn is_obeyed(letter: char) -> bool {
    matches!(
        letter,
        '\u{7f}'..='\u{9f}'
            | '\u{ad}'
            | '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Outcome {
        /// For a test.
        pub(in crate::bulk) fn blank() -> Self {
            Self {
                id: String::new(),
                line: 1,
                status: None,
                headers: HeaderMap::new(),
                body: Bytes::new(),
                error: None,
                attempts: 0,
                throttled: 0,
                elapsed: Duration::ZERO,
                waited: Duration::ZERO,
                history: Vec::new(),
                idempotency_key: None,
                meta: None,
                entry: None,
                maybe_executed: false,
            }
        }
    }

    #[test]
    fn a_line_is_one_json_object_without_controls() {
        let outcome = Outcome {
            id: "a\u{9b}31m\n\u{202e}".into(),
            line: 3,
            status: Some(StatusCode::OK),
            headers: [(SET_COOKIE, "secret".parse().unwrap())].into_iter().collect(),
            body: Bytes::from_static(b"\xff\x00"),
            attempts: 1,
            elapsed: Duration::from_micros(1500),
            meta: RawValue::from_string(r#"{"b":1,"a":2}"#.into()).ok(),
            ..Outcome::blank()
        };
        let mut lines = Vec::new();
        outcome.write_line(&mut lines);
        let text = String::from_utf8(lines).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"id":"a\u009b31m\n\u202e","line":3,"status":200,"ok":true,"attempts":1,"elapsed_ms":1.5,"waited_ms":0.0,"#,
                r#""headers":{"set-cookie":"***"},"body_base64":"/wA=","meta":{"b":1,"a":2}}"#,
                "\n"
            )
        );
    }
}
