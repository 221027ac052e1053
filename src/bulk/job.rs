//! What goes into a run: a request and who it is.

use std::fmt;

use reqwest::Request;
use serde_json::value::RawValue;

use super::{claim::Claim, hash};
use crate::{Key, Unit, outgoing::is_repeatable};

/// One row of a run.
///
/// # Examples
///
/// ```
/// use abide::{bulk::Job, http::Method, reqwest::{Request, Url}};
///
/// let request = Request::new(Method::GET, Url::parse("https://api.example.com/v1/things/7")?);
/// let job = Job::new("thing-7", request).cost(2);
/// # let _ = job;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a job does nothing unless it is run"]
pub struct Job {
    pub(super) id: String,
    pub(super) line: Option<u64>,
    pub(super) request: Result<Request, String>,
    pub(super) units: Vec<(Unit, u32)>,
    pub(super) key: Option<Key>,
    pub(super) idempotency_key: Option<String>,
    pub(super) meta: Option<Box<RawValue>>,
    /// Of the input's first row.
    pub(super) head: Option<u64>,
    /// It is of a stream.
    pub(super) claim: Option<Claim>,
}

impl Job {
    /// A request and the name that its outcome bears. Names should differ within a run.
    ///
    /// A body that is a stream is sent once and is in no later round.
    pub fn new(id: impl Into<String>, request: Request) -> Self {
        Self::with(id.into(), Ok(request))
    }

    /// A row that cannot be sent: its outcome is a failure that says why.
    pub fn invalid(id: impl Into<String>, why: impl Into<String>) -> Self {
        Self::with(id.into(), Err(why.into()))
    }

    fn with(id: String, request: Result<Request, String>) -> Self {
        Self {
            id,
            line: None,
            request,
            units: Vec::new(),
            key: None,
            idempotency_key: None,
            meta: None,
            head: None,
            claim: None,
        }
    }

    /// Its place in the input, from 1; each place once. Default: counted by the run. It is what a resumed run knows the
    /// row by.
    pub fn line(self, line: u64) -> Self {
        Self { line: Some(line), ..self }
    }

    /// Requests that this one counts for. Default 1.
    pub fn cost(self, cost: u32) -> Self {
        self.units(Unit::Requests, cost)
    }

    /// Units of a kind that it uses: see [`RequestBuilder::units`](crate::RequestBuilder::units).
    pub fn units(mut self, unit: Unit, units: u32) -> Self {
        self.units.push((unit, units));
        self
    }

    /// The limiter key, in place of the client's [`KeyBy`](crate::KeyBy).
    pub fn key(self, key: impl Into<Key>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Its own idempotency key, in place of one that the run derives.
    pub fn idempotency_key(self, key: impl Into<String>) -> Self {
        Self { idempotency_key: Some(key.into()), ..self }
    }

    /// Anything; handed through to the outcome as it is.
    pub fn meta(self, meta: Box<RawValue>) -> Self {
        Self { meta: Some(meta), ..self }
    }

    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its request; an error says why it cannot be sent.
    ///
    /// # Errors
    /// The reason given to [`invalid`](Self::invalid).
    pub fn request(&self) -> Result<&Request, &str> {
        self.request.as_ref().map_err(String::as_str)
    }

    pub(super) fn read_from(self, head: u64) -> Self {
        Self { head: Some(head), ..self }
    }

    /// It is of a stream, which waits to be told what becomes of it.
    #[cfg(feature = "redis")]
    pub(super) fn claimed(self, claim: Claim) -> Self {
        Self { claim: Some(claim), ..self }
    }

    /// Tells its input from others; of the first row that a run gets.
    pub(super) fn input(&self) -> u64 {
        self.head.unwrap_or_else(|| hash(self.id.as_bytes()))
    }

    /// Safe to repeat without a key.
    pub(super) fn is_idempotent(&self) -> bool {
        self.request.as_ref().is_ok_and(|request| is_repeatable(request.method(), request.headers()))
    }

    /// Safe to repeat, by its method or by a key of its own or in its headers.
    pub(super) fn is_repeatable(&self, key_header: &str) -> bool {
        let carries = |request: &Request| request.headers().contains_key(key_header);
        self.is_idempotent() || self.idempotency_key.is_some() || self.request.as_ref().is_ok_and(carries)
    }

    /// Bytes that it keeps in memory, roughly.
    pub(super) fn weight(&self) -> usize {
        let body = self.request.as_ref().ok().and_then(|request| request.body()?.as_bytes());
        let meta = self.meta.as_ref().map_or(0, |meta| meta.get().len());
        512 + self.id.len() + meta + body.map_or(0, <[u8]>::len)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The request may hold secrets.
        f.debug_struct("Job").field("id", &self.id).field("line", &self.line).finish_non_exhaustive()
    }
}
