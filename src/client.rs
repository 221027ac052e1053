//! `Client`: the reqwest wrapper. Its calls are handed to `run.rs`.

use std::{
    fmt,
    future::Future,
    hash::{BuildHasher, RandomState},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use http::{HeaderMap, Method, header::AUTHORIZATION};
use rand::{SeedableRng, rngs::SmallRng};
use reqwest::{IntoUrl, Request, Response};

use crate::{
    ClientBuilder, Error, KeyBy, KeyScheme, Limiter, Observer, Policy, RequestBuilder,
    budget::Ledgers,
    error::BoxError,
    key_by::Credentials,
    outgoing::{HeadersWith, Options, Outgoing},
    run,
    transport::Transport,
};

/// An HTTP client that stays below the server's limit and retries only what is safe to repeat.
///
/// A drop-in for [`reqwest::Client`]: the same setters, the same response. Cheap to clone; clones share connections,
/// limits and retry budget.
///
/// # Examples
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let client = abide::Client::new();
/// let text = client.get("https://api.example.com/v1/things").send().await?.text().await?;
/// # let _ = text;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    in_place: Option<InPlace>,
    inner: Arc<Inner>,
}

/// What the clones of a client, or of an adapter, share.
pub(crate) struct Inner {
    pub(crate) defaults: HeaderMap,
    pub(crate) policy: Arc<Policy>,
    pub(crate) limiter: Limiter,
    pub(crate) key_by: KeyBy,
    pub(crate) scheme: KeyScheme,
    pub(crate) credentials: Credentials,
    pub(crate) redirects: u32,
    /// Redirects and 202 are asked after; adapters leave both to what is beneath them.
    pub(crate) follows: bool,
    /// The wrapped client adds headers of its own, which would go to any origin.
    pub(crate) bound: bool,
    pub(crate) headers_with: Option<HeadersWith>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) ledgers: Mutex<Ledgers>,
    pub(crate) chance: Mutex<SmallRng>,
}

/// What takes reqwest's place.
pub(crate) type InPlace = Arc<dyn Fn(Request) -> Answered + Send + Sync>;

type Answered = Pin<Box<dyn Future<Output = Result<Response, BoxError>> + Send>>;

/// Follows as many redirects as reqwest does.
pub(crate) const REDIRECTS: u32 = 10;

impl Client {
    /// A client with the defaults: see [`Client::builder`].
    ///
    /// # Panics
    /// As [`reqwest::Client::new`]: if TLS cannot be set up.
    #[expect(clippy::expect_used, reason = "as reqwest::Client::new, whose builder is the only thing that can fail")]
    pub fn new() -> Self {
        Self::builder().build().expect("the defaults are valid, and TLS can be set up")
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
        RequestBuilder::new(self.clone(), self.http.request(method, url))
    }

    /// Sends a request of reqwest's. A user name and password in its URL become `Authorization`, unless it has one.
    ///
    /// # Errors
    /// When there is no response to give. A response is never an error, whatever its status.
    ///
    /// # Cancel safety
    /// Dropping the future gives back permit, slot and retry budget; a request that was on the wire may be executed.
    pub async fn execute(&self, request: Request) -> Result<Response, Error> {
        let mut request = self.outgoing(request, Options::default())?;
        self.run(&mut request).await
    }

    /// The limiter, for a look or to share it.
    pub fn limiter(&self) -> &Limiter {
        &self.inner.limiter
    }

    /// The request of a call, for [`run`](Self::run).
    pub(crate) fn outgoing(&self, mut request: Request, options: Options) -> Result<Outgoing, Error> {
        if let Some(policy) = &options.policy {
            policy.check()?;
        }
        self.move_user(&mut request)?;
        Outgoing::new(&self.inner, request, options)
    }

    pub(crate) async fn run(&self, request: &mut Outgoing) -> Result<Response, Error> {
        run::run(&self.inner, request, self).await
    }

    /// A user name in the URL becomes a header, as reqwest makes it of a URL that it is given: RFC 9110 §4.2.4 forbids
    /// to send it as it is.
    fn move_user(&self, request: &mut Request) -> Result<(), Error> {
        if request.url().username().is_empty() && request.url().password().is_none() {
            return Ok(());
        }
        let moved = self.http.get(request.url().clone()).build().map_err(|error| Error::transport(error.into()))?;
        *request.url_mut() = moved.url().clone();
        if let Some(basic) = moved.headers().get(AUTHORIZATION) {
            request.headers_mut().entry(AUTHORIZATION).or_insert_with(|| basic.clone());
        }
        Ok(())
    }

    pub(crate) fn from_parts(http: reqwest::Client, in_place: Option<InPlace>, inner: Inner) -> Self {
        Self { http, in_place, inner: Arc::new(inner) }
    }

    /// The header that idempotency keys go in.
    #[cfg(feature = "bulk")]
    pub(crate) fn key_header(&self) -> &str {
        self.inner.scheme.name().as_str()
    }

    /// The idempotency key that these headers bring with them.
    #[cfg(feature = "bulk")]
    pub(crate) fn key_in(&self, headers: &HeaderMap) -> Option<String> {
        let scheme = &self.inner.scheme;
        let value = headers.get(scheme.name())?.to_str().ok()?;
        let is_it = |key: &&str| scheme.value(key).is_ok_and(|made| made == value);
        [value, value.trim_matches('"')].into_iter().find(is_it).map(str::to_owned)
    }

    /// How long a server remembers a key.
    #[cfg(feature = "bulk")]
    pub(crate) fn key_lifetime(&self) -> std::time::Duration {
        self.inner.scheme.good_for()
    }

    /// Headers of each request that does not set them itself.
    #[cfg(feature = "bulk")]
    pub(crate) fn defaults(&self) -> &HeaderMap {
        &self.inner.defaults
    }

    /// Whether a header shows who calls.
    #[cfg(feature = "bulk")]
    pub(crate) fn is_secret(&self, name: &http::HeaderName, value: &http::HeaderValue) -> bool {
        value.is_sensitive() || self.inner.credentials.has(name, value)
    }

    /// Of each call.
    #[cfg(feature = "bulk")]
    pub(crate) fn deadline(&self) -> Option<std::time::Duration> {
        self.inner.policy.whole()
    }

    /// The longest wait of the server's that is waited.
    #[cfg(feature = "bulk")]
    pub(crate) fn longest_wait(&self) -> std::time::Duration {
        self.inner.policy.longest_wait()
    }

    /// The limiter key of a request.
    #[cfg(feature = "bulk")]
    pub(crate) fn key_of(&self, request: &Request) -> crate::Key {
        let mut whole = Request::new(request.method().clone(), request.url().clone());
        *whole.headers_mut() = request.headers().clone();
        if self.move_user(&mut whole).is_err() {
            whole = Request::new(request.method().clone(), request.url().clone());
        }
        crate::outgoing::add_defaults(whole.headers_mut(), &self.inner.defaults);
        crate::key_by::key(&self.inner.key_by, &whole, &self.inner.credentials)
    }

    pub(crate) fn http(&self) -> &reqwest::Client {
        &self.http
    }
}

impl Transport for &Client {
    async fn send(&mut self, request: impl FnOnce() -> Request + Send) -> Result<Response, BoxError> {
        match &self.in_place {
            None => self.http.execute(request()).await.map_err(Into::into),
            Some(in_place) => in_place(request()).await,
        }
    }
}

impl Inner {
    /// The defaults around a client of reqwest's.
    pub(crate) fn around(http: &reqwest::Client) -> Self {
        Self { bound: adds_headers(http), ..Self::new() }
    }

    /// The defaults.
    pub(crate) fn new() -> Self {
        let scheme = KeyScheme::default();
        Self {
            bound: false,
            follows: true,
            defaults: HeaderMap::new(),
            policy: Arc::default(),
            limiter: Limiter::default(),
            key_by: KeyBy::default(),
            credentials: Credentials::new(Vec::new(), scheme.name().clone()),
            scheme,
            redirects: REDIRECTS,
            headers_with: None,
            observer: None,
            ledgers: Mutex::default(),
            chance: Mutex::new(SmallRng::seed_from_u64(any_seed())),
        }
    }

    pub(crate) fn observer(&self) -> Option<&dyn Observer> {
        self.observer.as_deref()
    }

    pub(crate) fn ledgers(&self) -> MutexGuard<'_, Ledgers> {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reseed(&mut self, seed: u64) {
        self.chance = Mutex::new(SmallRng::seed_from_u64(seed));
    }

    pub(crate) fn chance(&self) -> MutexGuard<'_, SmallRng> {
        self.chance.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A seed of the system's randomness, good for jitter: std takes it for its hash maps.
pub(crate) fn any_seed() -> u64 {
    RandomState::new().hash_one(())
}

/// Whether the client was built with default headers besides `accept` and `user-agent`. reqwest inserts them in every
/// send and has no accessor for them, so its `Debug` form is read; what cannot be read for certain is taken for a yes.
fn adds_headers(http: &reqwest::Client) -> bool {
    let text = format!("{http:?}");
    let Some((_, headers)) = text.split_once("default_headers: {").filter(|(_, headers)| !headers.contains('\\'))
    else {
        return true;
    };
    // Without a backslash every second piece is a quoted one: a name, or, after a colon, a value.
    let mut pieces = headers.split('"');
    let mut between = pieces.next().unwrap_or_default();
    while !between.contains('}') {
        let Some(quoted) = pieces.next() else {
            return true;
        };
        let is_name = !between.ends_with(": ");
        if is_name && quoted != "accept" && quoted != "user-agent" {
            return true;
        }
        between = pieces.next().unwrap_or_default();
    }
    false
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

/// Wraps a client as it is. What it does by itself goes uncounted: the redirects that it follows take no permit and
/// its own retries are sent without one. Build it with `redirect(Policy::none())` and `retry(retry::never())`, or
/// give its builder to [`ClientBuilder::http`], which does both.
impl From<reqwest::Client> for Client {
    fn from(http: reqwest::Client) -> Self {
        let inner = Inner::around(&http);
        Self::from_parts(http, None, inner)
    }
}

impl tower_service::Service<Request> for Client {
    type Response = Response;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let client = self.clone();
        Box::pin(async move { client.execute(request).await })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("policy", &self.inner.policy)
            .field("key_by", &self.inner.key_by)
            .field("key_scheme", &self.inner.scheme)
            .field("redirects", &self.inner.redirects)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn clients_are_shared_between_threads() {
        fn check<T: Clone + Send + Sync>() {}
        check::<Client>();
    }

    #[test]
    fn default_headers_of_the_wrapped_client_are_seen() {
        let with = |headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            let http = reqwest::Client::builder().default_headers(headers.collect()).build().unwrap();
            adds_headers(&http)
        };
        assert!(!with(&[]));
        assert!(!with(&[("user-agent", "ab"), ("accept", "}: x")]));
        assert!(with(&[("user-agent", "a}"), ("x-secret", "s")]));
        assert!(with(&[("user-agent", "a\\"), ("x-secret", "s")]));
        assert!(with(&[("x-secret", "s")]));
        assert!(with(&[("user-agent", "a"), ("x-secret", "s")]));
    }
}
