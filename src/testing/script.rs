//! Answers and faults in a given order.

use std::{fmt, io, sync::Arc, time::Duration, time::SystemTime};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use super::faults::Fault;

/// One answer of a script, to one request (or to several in a row).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use abide::testing::{Fault, Scripted};
///
/// let script = vec![
///     Scripted::fault(Fault::Reset),
///     Scripted::status(429).header("retry-after", "1"),
///     Scripted::status(200).body("done").delay(Duration::from_millis(20)),
/// ];
/// ```
#[derive(Clone)]
pub struct Scripted {
    pub(super) status: u16,
    headers: Vec<(String, Text)>,
    pub(super) body: Bytes,
    pub(super) delay: Duration,
    pub(super) fault: Option<Fault>,
    pub(super) body_end: BodyEnd,
    pub(super) body_rate: Option<u32>,
    pub(super) dated: bool,
    repeat: u32,
}

/// How the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    Whole,
    StallAfter(usize),
    ResetAfter(usize),
    CloseAfter(usize),
}

#[derive(Clone)]
enum Text {
    Fixed(String),
    Made(Arc<dyn Fn(SystemTime) -> String + Send + Sync>),
}

impl Scripted {
    /// An answer with an empty body. A status outside 100..=999 is an error of `start()`.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Bytes::new(),
            delay: Duration::ZERO,
            fault: None,
            body_end: BodyEnd::Whole,
            body_rate: None,
            dated: true,
            repeat: 1,
        }
    }

    /// A fault in an answer's place. Where it sends a head, that is a 200 with a body of 64 bytes.
    #[must_use]
    pub fn fault(fault: Fault) -> Self {
        Self { fault: Some(fault), body: Bytes::from_static(&[b'.'; 64]), ..Self::status(200) }
    }

    /// Adds a header; again under the same name: another line. An unreadable name or value is an error of `start()`.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), Text::Fixed(value.into())));
        self
    }

    /// Adds a header made from the server's clock when the answer goes out; what is no header value is left out.
    #[must_use]
    pub fn header_with(
        mut self,
        name: impl Into<String>,
        value: impl Fn(SystemTime) -> String + Send + Sync + 'static,
    ) -> Self {
        self.headers.push((name.into(), Text::Made(Arc::new(value))));
        self
    }

    /// The body; default: empty.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Wait before the head, or before the fault; default: none.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sends so many bytes of the body, then nothing more; the connection stays open.
    #[must_use]
    pub fn stall_body_after(mut self, bytes: usize) -> Self {
        self.body_end = BodyEnd::StallAfter(bytes);
        self
    }

    /// Sends so many bytes of the body, then resets the connection.
    #[must_use]
    pub fn reset_body_after(mut self, bytes: usize) -> Self {
        self.body_end = BodyEnd::ResetAfter(bytes);
        self
    }

    /// Promises the whole body, sends so many bytes of it and closes the connection.
    #[must_use]
    pub fn truncate_body_after(mut self, bytes: usize) -> Self {
        self.body_end = BodyEnd::CloseAfter(bytes);
        self
    }

    /// Bytes of the body a second; 0 is an error of `start()`. Default: all at once.
    #[must_use]
    pub fn body_rate(mut self, bytes_per_second: u32) -> Self {
        self.body_rate = Some(bytes_per_second);
        self
    }

    /// Leaves out `Date`; without this it is sent by the server's clock, unless [`header`](Self::header) names another.
    #[must_use]
    pub fn undated(mut self) -> Self {
        self.dated = false;
        self
    }

    /// Answers so many requests in a row; default 1, 0 takes the entry out.
    #[must_use]
    pub fn repeat(mut self, requests: u32) -> Self {
        self.repeat = requests;
        self
    }

    /// Its headers by the server's clock.
    pub(super) fn headers_at(&self, wall: SystemTime) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        self.headers.iter().filter_map(move |(name, text)| {
            let value = match text {
                Text::Fixed(text) => HeaderValue::from_str(text),
                Text::Made(make) => HeaderValue::from_str(&make(wall)),
            };
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value.ok()?))
        })
    }

    fn check(&self) -> Result<(), String> {
        if StatusCode::from_u16(self.status).is_err() {
            return Err(format!("script: status {} is outside 100..=999", self.status));
        }
        if self.body_rate == Some(0) {
            return Err("script: body_rate must be at least 1 byte a second".to_owned());
        }
        for (name, text) in &self.headers {
            let readable = match text {
                Text::Fixed(text) => HeaderValue::from_str(text).is_ok(),
                Text::Made(_) => true,
            };
            if !readable || HeaderName::from_bytes(name.as_bytes()).is_err() {
                return Err(format!("script: header {name:?} has an unreadable name or value"));
            }
        }
        Ok(())
    }
}

/// Without values of headers.
impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted")
            .field("status", &self.status)
            .field("fault", &self.fault)
            .field("body", &self.body.len())
            .field("delay", &self.delay)
            .field("repeat", &self.repeat)
            .finish_non_exhaustive()
    }
}

/// A checked script.
#[derive(Debug)]
pub(super) struct Script {
    /// With the number of requests answered up to and including each.
    entries: Vec<(u64, Scripted)>,
}

impl Script {
    pub(super) fn new(entries: Vec<Scripted>) -> io::Result<Self> {
        let mut total = 0;
        let mut checked = Vec::with_capacity(entries.len());
        for entry in entries {
            entry.check().map_err(|what| io::Error::new(io::ErrorKind::InvalidInput, what))?;
            total += u64::from(entry.repeat);
            checked.push((total, entry));
        }
        Ok(Self { entries: checked })
    }

    /// The answer to request number `n`, from 0; `None`: beyond the script.
    pub(super) fn get(&self, n: u64) -> Option<&Scripted> {
        let at = self.entries.partition_point(|&(end, _)| end <= n);
        self.entries.get(at).map(|(_, entry)| entry)
    }
}
