//! The same for scripts: calls that block.
//!
//! ```no_run
//! let client = abide::blocking::Client::new();
//! let text = client.get("https://api.example.com/v1/things").send()?.text()?;
//! println!("{text}");
//! # Ok::<(), abide::Error>(())
//! ```
//!
//! The client has one thread, which ends with its last clone, response and body; there the connections live between
//! calls, so that a server's closing of one is seen in time. A call blocks the thread that makes it, wherever blocking
//! is allowed: in `main`, on threads, in tokio's `spawn_blocking`. In an async function it is an error, `is_builder`:
//! that is what [`abide::Client`](crate::Client) is for.

use std::{
    fmt,
    future::Future,
    io::{self, Read, Write},
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use reqwest::{Body, IntoUrl, Request, Url, multipart};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{runtime::Handle, sync::oneshot, task::coop};

use crate::{
    Error, History, Key, KeyBy, KeyScheme, Limiter, Observer, Policy, Quota, ResponseExt, Unit, error::BoxError,
};

/// A client whose calls block. Cheap to clone, and shared between threads.
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
    home: Home,
}

impl Client {
    /// A client with the defaults: see [`Client::builder`].
    ///
    /// # Panics
    /// If TLS cannot be set up, or no thread can be started.
    #[expect(clippy::expect_used, reason = "as reqwest's, whose builder and thread are all that can fail")]
    pub fn new() -> Self {
        Self::builder().build().expect("the defaults are valid, and a thread can be started")
    }

    /// A client with settings of your own.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// GET.
    pub fn get<U: IntoUrl>(&self, url: U) -> RequestBuilder {
        self.request(Method::GET, url)
    }

    /// POST: sent once, unless it has an idempotency key.
    pub fn post<U: IntoUrl>(&self, url: U) -> RequestBuilder {
        self.request(Method::POST, url)
    }

    /// PUT.
    pub fn put<U: IntoUrl>(&self, url: U) -> RequestBuilder {
        self.request(Method::PUT, url)
    }

    /// PATCH: sent once, unless it has an idempotency key.
    pub fn patch<U: IntoUrl>(&self, url: U) -> RequestBuilder {
        self.request(Method::PATCH, url)
    }

    /// DELETE.
    pub fn delete<U: IntoUrl>(&self, url: U) -> RequestBuilder {
        self.request(Method::DELETE, url)
    }

    /// HEAD.
    pub fn head<U: IntoUrl>(&self, url: U) -> RequestBuilder {
        self.request(Method::HEAD, url)
    }

    /// Any method. A URL that makes no sense is an error of `send()`.
    pub fn request<U: IntoUrl>(&self, method: Method, url: U) -> RequestBuilder {
        RequestBuilder { request: self.client.request(method, url), home: self.home.clone() }
    }

    /// Sends a request of reqwest's.
    ///
    /// # Errors
    /// When there is no response to give. A response is never an error, whatever its status.
    pub fn execute(&self, request: Request) -> Result<Response, Error> {
        self.home.wait(self.client.execute(request))?.map(|response| Response::new(response, &self.home))
    }

    /// The limiter, for a look or to share it.
    pub fn limiter(&self) -> &Limiter {
        self.client.limiter()
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

/// Setters that do as those of the same name elsewhere.
macro_rules! setters {
    ($field:ident, $of:literal: $($name:ident($($value:ident: $kind:ty),*);)*) => {
        $(
            #[doc = concat!("As [`", $of, "::", stringify!($name), "`](crate::", $of, "::", stringify!($name), ").")]
            pub fn $name(mut self, $($value: $kind),*) -> Self {
                self.$field = self.$field.$name($($value),*);
                self
            }
        )*
    };
}

/// The settings of a [`Client`]: those of [`abide::ClientBuilder`](crate::ClientBuilder).
#[derive(Debug, Default)]
#[must_use = "build() makes the client"]
pub struct ClientBuilder {
    client: crate::ClientBuilder,
}

impl ClientBuilder {
    setters! { client, "ClientBuilder":
        http(http: reqwest::ClientBuilder);
        default_headers(headers: HeaderMap);
        policy(policy: Policy);
        quota(quota: Quota);
        headroom(share: f64);
        max_in_flight(requests: u32);
        limiter(limiter: Limiter);
        key_by(key_by: KeyBy);
        key_scheme(scheme: KeyScheme);
        redirects(redirects: u32);
        sensitive_headers(names: impl IntoIterator<Item = HeaderName>);
        observer(observer: impl Observer);
    }

    /// As [`ClientBuilder::fleet`](crate::ClientBuilder::fleet); the fleet's task stays on the runtime that connected it,
    /// which must run as long as the limits are to be shared.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use abide::{Quota, blocking::Client, fleet::Fleet};
    ///
    /// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    /// let fleet = runtime.block_on(Fleet::redis("redis://127.0.0.1:6379").name("crawler").connect())?;
    /// let client = Client::builder().quota(Quota::per_second(100)).fleet(fleet).build()?;
    /// client.get("https://api.example.com/v1/things").send()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn fleet(mut self, fleet: crate::fleet::Fleet) -> Self {
        self.client = self.client.fleet(fleet);
        self
    }

    /// As [`ClientBuilder::user_agent`](crate::ClientBuilder::user_agent).
    pub fn user_agent<V>(mut self, value: V) -> Self
    where
        V: TryInto<HeaderValue>,
        V::Error: Into<http::Error>,
    {
        self.client = self.client.user_agent(value);
        self
    }

    /// As [`ClientBuilder::headers_with`](crate::ClientBuilder::headers_with), without a future.
    pub fn headers_with(
        mut self,
        headers: impl Fn(u32) -> Result<HeaderMap, BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.client = self.client.headers_with(move |attempt| std::future::ready(headers(attempt)));
        self
    }

    /// Checks the settings, starts the client's thread and makes the client.
    ///
    /// # Errors
    /// `is_builder`: a setting makes no sense, or no thread can be started. Or TLS cannot be set up.
    pub fn build(self) -> Result<Client, Error> {
        Ok(Client { client: self.client.build()?, home: Home::start()? })
    }
}

/// With settings that only it has.
impl From<crate::ClientBuilder> for ClientBuilder {
    fn from(client: crate::ClientBuilder) -> Self {
        Self { client }
    }
}

/// One request in the making: the setters of [`abide::RequestBuilder`](crate::RequestBuilder).
#[must_use = "send() sends it"]
pub struct RequestBuilder {
    request: crate::RequestBuilder,
    home: Home,
}

impl RequestBuilder {
    setters! { request, "RequestBuilder":
        headers(headers: HeaderMap);
        basic_auth(username: impl fmt::Display, password: Option<impl fmt::Display>);
        bearer_auth(token: impl fmt::Display);
        body(body: impl Into<Body>);
        timeout(timeout: Duration);
        multipart(form: multipart::Form);
        query(query: &(impl Serialize + ?Sized));
        version(version: Version);
        form(form: &(impl Serialize + ?Sized));
        json(json: &(impl Serialize + ?Sized));
        idempotency_key(key: impl Into<String>);
        auto_idempotency_key();
        idempotent();
        cost(cost: u32);
        units(unit: Unit, units: u32);
        key(key: impl Into<Key>);
        deadline(deadline: Duration);
        policy(policy: Policy);
        buffered(limit: usize);
        body_with(body: impl Fn() -> Body + Send + Sync + 'static);
        on_attempt(touch: impl Fn(&mut Request, u32) + Send + Sync + 'static);
    }

    /// As [`RequestBuilder::header`](crate::RequestBuilder::header).
    pub fn header<K, V>(mut self, name: K, value: V) -> Self
    where
        HeaderName: TryFrom<K>,
        <HeaderName as TryFrom<K>>::Error: Into<http::Error>,
        HeaderValue: TryFrom<V>,
        <HeaderValue as TryFrom<V>>::Error: Into<http::Error>,
    {
        self.request = self.request.header(name, value);
        self
    }

    /// As [`RequestBuilder::headers_with`](crate::RequestBuilder::headers_with), without a future.
    pub fn headers_with(
        mut self,
        headers: impl Fn(u32) -> Result<HeaderMap, BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.request = self.request.headers_with(move |attempt| std::future::ready(headers(attempt)));
        self
    }

    /// The request alone, without what abide adds.
    ///
    /// # Errors
    /// `is_builder`: a URL, header or body that makes no sense.
    pub fn build(self) -> Result<Request, Error> {
        self.request.build()
    }

    /// A copy; `None` if the body is a stream.
    pub fn try_clone(&self) -> Option<Self> {
        Some(Self { request: self.request.try_clone()?, home: self.home.clone() })
    }

    /// Sends it: waits for a permit, retries what is safe to repeat, and gives the last response.
    ///
    /// # Errors
    /// When there is no response to give: see [`Error`]. A response is never an error, whatever its status. In an async
    /// context: `is_builder`, and nothing is sent.
    pub fn send(self) -> Result<Response, Error> {
        let Self { request, home } = self;
        home.wait(request.send())?.map(|response| Response::new(response, &home))
    }
}

impl fmt::Debug for RequestBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)
    }
}

/// A response whose body blocks; it can be read as an [`io::Read`].
pub struct Response {
    response: reqwest::Response,
    home: Home,
    read: Bytes,
}

impl Response {
    fn new(response: reqwest::Response, home: &Home) -> Self {
        Self { response, home: home.clone(), read: Bytes::new() }
    }

    /// Status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// HTTP version.
    pub fn version(&self) -> Version {
        self.response.version()
    }

    /// Headers.
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Where it came from, after redirects.
    pub fn url(&self) -> &Url {
        self.response.url()
    }

    /// Of the body, if that is known.
    pub fn content_length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// A 4xx or 5xx as an error.
    ///
    /// # Errors
    /// `is_status`; its history is that of the call.
    pub fn error_for_status(self) -> Result<Self, Error> {
        match self.response.error_for_status_ref() {
            Ok(_) => Ok(self),
            Err(error) => Err(Error::transport(error.into()).with_history(self.history().clone())),
        }
    }

    /// The body as text, by the charset that it names.
    ///
    /// # Errors
    /// The body broke off: `is_body`.
    pub fn text(self) -> Result<String, Error> {
        self.whole(reqwest::Response::text)
    }

    /// The body.
    ///
    /// # Errors
    /// The body broke off: `is_body`.
    pub fn bytes(self) -> Result<Bytes, Error> {
        self.whole(reqwest::Response::bytes)
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// The body broke off: `is_body`; or is not the JSON that was hoped for: `is_decode`.
    pub fn json<T: DeserializeOwned>(self) -> Result<T, Error> {
        self.whole(reqwest::Response::json)
    }

    /// Copies the body, piece by piece; how many bytes.
    ///
    /// # Errors
    /// The body broke off, or the writer failed.
    pub fn copy_to(&mut self, writer: &mut (impl Write + ?Sized)) -> io::Result<u64> {
        io::copy(self, writer)
    }

    fn whole<T, Fut>(self, read: impl FnOnce(reqwest::Response) -> Fut) -> Result<T, Error>
    where
        Fut: Future<Output = reqwest::Result<T>>,
    {
        let history = self.history().clone();
        let read = self.home.wait(read(self.response))?;
        read.map_err(|error| Error::body(error.into()).with_history(history))
    }
}

impl ResponseExt for Response {
    fn history(&self) -> &History {
        self.response.history()
    }
}

/// The response for async code; its body needs a runtime of your own from then on.
impl From<Response> for reqwest::Response {
    fn from(response: Response) -> Self {
        response.response
    }
}

impl Read for Response {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.read.is_empty() && !buffer.is_empty() {
            let next = self.home.wait(self.response.chunk()).map_err(io::Error::other)?;
            match next.map_err(|error| io::Error::other(error.without_url()))? {
                Some(piece) => self.read = piece,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.read.len());
        self.read.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A value may be a session's cookie.
        let names: Vec<_> = self.headers().keys().collect();
        f.debug_struct("Response").field("status", &self.status()).field("headers", &names).finish_non_exhaustive()
    }
}

/// The thread where connections live; ends with its last clone.
#[derive(Clone)]
struct Home {
    handle: Handle,
    _end: Arc<oneshot::Sender<()>>,
}

impl Home {
    fn start() -> Result<Self, Error> {
        let failed = |error: io::Error| Error::builder("the client's thread must start").with_source(error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (handle, (end, ended)) = (runtime.handle().clone(), oneshot::channel());
        let live = move || drop(runtime.block_on(ended));
        thread::Builder::new().name("abide".into()).spawn(live).map_err(failed)?;
        Ok(Self { handle, _end: Arc::new(end) })
    }

    /// Blocks this thread; the timers and sockets of the future are the home's.
    fn wait<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        if is_polling() {
            return Err(Error::builder("a blocking call in async code: use abide::Client, or spawn_blocking"));
        }
        Ok(self.handle.block_on(future))
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Home")
    }
}

/// Whether this thread is polling a future of tokio's, where blocking is not allowed.
///
/// tokio does not tell, and panics instead. But it gives each poll a budget and none to threads that may block: so it
/// is spent, and given back.
fn is_polling() -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    let mut spent = Vec::new();
    while spent.len() < MOST_BUDGET && Handle::try_current().is_ok() {
        match coop::poll_proceed(&mut cx) {
            Poll::Ready(unit) => spent.push(unit),
            Poll::Pending => break,
        }
    }
    let polling = (1..MOST_BUDGET).contains(&spent.len());
    // Each gives back what was there before it.
    while spent.pop().is_some() {}
    polling
}

/// More than the budget of any poll: it is counted in a byte.
const MOST_BUDGET: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_told_from_threads_that_may_block() {
        assert!(!is_polling());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            assert!(is_polling() && is_polling());
            assert!(coop::has_budget_remaining());
            assert!(tokio::spawn(async { is_polling() }).await.unwrap());
            assert!(!tokio::task::spawn_blocking(is_polling).await.unwrap());
        });
        let _entered = runtime.enter();
        assert!(!is_polling());
    }
}
