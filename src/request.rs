//! `RequestBuilder`: reqwest's setters, and what one request may override.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Version};
use reqwest::{Body, Request, Response, multipart};
use serde::Serialize;

use crate::{
    Client, Error, Key, Policy, Unit,
    error::BoxError,
    outgoing::{KeyFrom, Options},
};

/// One request in the making. reqwest's own setters under their own names, and what abide adds.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let client = abide::Client::new();
/// let response = client
///     .post("https://api.example.com/v1/charges")
///     .bearer_auth("token")
///     .body("amount=100")
///     .auto_idempotency_key()
///     .deadline(Duration::from_secs(20))
///     .send()
///     .await?;
/// # let _ = response;
/// # Ok(())
/// # }
/// ```
#[must_use = "send() sends it"]
pub struct RequestBuilder {
    client: Client,
    request: reqwest::RequestBuilder,
    options: Options,
}

impl RequestBuilder {
    pub(crate) fn new(client: Client, request: reqwest::RequestBuilder) -> Self {
        Self { client, request, options: Options::default() }
    }

    /// From a client and a request of reqwest's.
    pub fn from_parts(client: Client, request: Request) -> Self {
        let request = reqwest::RequestBuilder::from_parts(client.http().clone(), request);
        Self::new(client, request)
    }

    /// Adds a header.
    pub fn header<K, V>(self, name: K, value: V) -> Self
    where
        HeaderName: TryFrom<K>,
        <HeaderName as TryFrom<K>>::Error: Into<http::Error>,
        HeaderValue: TryFrom<V>,
        <HeaderValue as TryFrom<V>>::Error: Into<http::Error>,
    {
        self.map(|request| request.header(name, value))
    }

    /// Adds headers, in place of those of the same name.
    pub fn headers(self, headers: HeaderMap) -> Self {
        self.map(|request| request.headers(headers))
    }

    /// HTTP basic authentication.
    pub fn basic_auth<U: fmt::Display, P: fmt::Display>(self, username: U, password: Option<P>) -> Self {
        self.map(|request| request.basic_auth(username, password))
    }

    /// HTTP bearer authentication.
    pub fn bearer_auth<T: fmt::Display>(self, token: T) -> Self {
        self.map(|request| request.bearer_auth(token))
    }

    /// The body. Bytes and text can be sent again; a stream is sent once: see [`body_with`](Self::body_with).
    pub fn body<T: Into<Body>>(self, body: T) -> Self {
        self.map(|request| request.body(body))
    }

    /// reqwest's own timeout, for each attempt, to the end of the body. See [`deadline`](Self::deadline) for the call.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.map(|request| request.timeout(timeout))
    }

    /// A multipart form. If its length is known and at most 1 MiB it is collected, so that it can be sent again.
    pub fn multipart(self, form: multipart::Form) -> Self {
        self.map(|request| request.multipart(form))
    }

    /// Adds to the query of the URL.
    pub fn query<T: Serialize + ?Sized>(self, query: &T) -> Self {
        self.map(|request| request.query(query))
    }

    /// HTTP version.
    pub fn version(self, version: Version) -> Self {
        self.map(|request| request.version(version))
    }

    /// A form as the body.
    pub fn form<T: Serialize + ?Sized>(self, form: &T) -> Self {
        self.map(|request| request.form(form))
    }

    /// JSON as the body.
    pub fn json<T: Serialize + ?Sized>(self, json: &T) -> Self {
        self.map(|request| request.json(json))
    }

    /// The caller's idempotency key, sent by the client's [`KeyScheme`](crate::KeyScheme): makes the call retryable.
    ///
    /// Printable ASCII, else an error of `send()`. The same on all attempts; a new payment needs a new key.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.options.idempotency_key = Some(KeyFrom::Caller(key.into()));
        self
    }

    /// A UUIDv4 as the idempotency key, made once per call. Only for servers that honour it.
    pub fn auto_idempotency_key(mut self) -> Self {
        self.options.idempotency_key = Some(KeyFrom::Chance);
        self
    }

    /// The caller vouches: safe to repeat, whatever the method.
    pub fn idempotent(mut self) -> Self {
        self.options.idempotent = true;
        self
    }

    /// Requests that this one counts for. Default 1; zero takes nothing of the quota.
    pub fn cost(self, cost: u32) -> Self {
        self.units(Unit::Requests, cost)
    }

    /// Units of a kind that this request uses. A kind that is not stated is not charged, except one request.
    pub fn units(mut self, unit: Unit, units: u32) -> Self {
        self.options.state(unit, units);
        self
    }

    /// The limiter key, in place of the client's [`KeyBy`](crate::KeyBy).
    pub fn key(mut self, key: impl Into<Key>) -> Self {
        self.options.key = Some(key.into());
        self
    }

    /// How long this call may take, limiter waits and retries included, in place of the policy's deadline. Zero: it
    /// ends before anything is sent.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = Some(deadline);
        self
    }

    /// The rules of this call, in place of the client's. What makes no sense is an error of `send()`.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.options.policy = Some(Arc::new(policy));
        self
    }

    /// Reads the body, at most so many bytes, inside the attempt, so that a broken body is retried. Default: it is
    /// handed over as it comes.
    ///
    /// A longer one is handed over as it comes, and the history notes
    /// [`BufferLimit`](crate::Note::BufferLimit).
    pub fn buffered(mut self, limit: usize) -> Self {
        self.options.buffered = Some(limit);
        self
    }

    /// A stream that can be made again: called once per attempt.
    pub fn body_with(mut self, body: impl Fn() -> Body + Send + Sync + 'static) -> Self {
        self.options.body_with = Some(Arc::new(body));
        self
    }

    /// The last touch before attempt n (from 1), after [`headers_with`](Self::headers_with): a signature, say.
    ///
    /// It must not change scheme, host, port or the idempotency header (`is_builder`, nothing sent).
    pub fn on_attempt(mut self, touch: impl Fn(&mut Request, u32) + Send + Sync + 'static) -> Self {
        self.options.on_attempt = Some(Arc::new(touch));
        self
    }

    /// Fresh headers for attempt n (from 1), after the client's: see
    /// [`ClientBuilder::headers_with`](crate::ClientBuilder::headers_with).
    pub fn headers_with<F, Fut>(mut self, headers: F) -> Self
    where
        F: Fn(u32) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<HeaderMap, BoxError>> + Send + 'static,
    {
        self.options.headers_with = Some(Arc::new(move |number| Box::pin(headers(number))));
        self
    }

    /// The request alone, without what abide adds.
    ///
    /// # Errors
    /// `is_builder`: a URL, header or body that makes no sense.
    pub fn build(self) -> Result<Request, Error> {
        self.request.build().map_err(|error| Error::transport(error.into()))
    }

    /// A copy; `None` if the body is a stream.
    pub fn try_clone(&self) -> Option<Self> {
        let request = self.request.try_clone()?;
        Some(Self { client: self.client.clone(), request, options: self.options.clone() })
    }

    /// Sends it: waits for a permit, retries what is safe to repeat, and gives the last response.
    ///
    /// # Errors
    /// When there is no response to give: see [`Error`]. A response is never an error, whatever its status.
    ///
    /// # Cancel safety
    /// Dropping the future gives back permit, slot and retry budget; a request that was on the wire may be executed.
    pub async fn send(self) -> Result<Response, Error> {
        let Self { client, request, options } = self;
        let request = request.build().map_err(|error| Error::transport(error.into()))?;
        let mut request = client.outgoing(request, options)?;
        client.run(&mut request).await
    }

    fn map(self, change: impl FnOnce(reqwest::RequestBuilder) -> reqwest::RequestBuilder) -> Self {
        Self { request: change(self.request), ..self }
    }
}

impl fmt::Debug for RequestBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // reqwest's own form prints the query.
        f.debug_struct("RequestBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}
