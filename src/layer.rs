//! For tower: the same call over any HTTP client that is a service.
//!
//! ```
//! use abide::{Limiter, Policy, Quota, ResponseExt, http, tower::AbideLayer};
//! use tower::{Service, ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), abide::BoxError> {
//! # let inner = tower::service_fn(|_: http::Request<String>| async {
//! #     Ok::<_, std::io::Error>(http::Response::new(String::from("hello")))
//! # });
//! let limiter = Limiter::builder().quota(Quota::per_second(100)).build()?;
//! let mut client = ServiceBuilder::new().layer(AbideLayer::new(limiter, Policy::default())).service(inner);
//!
//! let request = http::Request::get("https://api.example.com/v1/things").body(String::new())?;
//! let response = client.ready().await?.call(request).await?;
//! assert_eq!(response.history().attempts().len(), 1);
//! # Ok(())
//! # }
//! ```

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{header::HOST, request::Parts};
use reqwest::{Body, Request, Response, Url};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    Error, Limiter, Policy,
    adapter::{Adapter, setters},
    body,
    error::BoxError,
    replay::Kept,
    transport::Transport,
};

pub use crate::replay::{Buffered, Cloned, Known, Replay};

/// The body of a response: what was read of it, then the rest. It holds the call's slot of
/// [`max_in_flight`](crate::LimiterBuilder::max_in_flight) until it is read or dropped.
pub type ResponseBody = Body;

/// Puts a service below the server's limit: each attempt takes a permit of the limiter, and what is safe to repeat is
/// retried by the policy.
///
/// The service takes `http::Request<B>` for any `B`, or reqwest's own requests. Its clones share the limiter and the
/// retry budget. Its error is [`abide::Error`](Error), with the service's own as its
/// [`source()`](std::error::Error::source); the [`History`](crate::History) is in the extensions of the response.
///
/// | body of the request | is sent again |
/// | --- | --- |
/// | bytes of a known type ([`Known`], the default) | yes |
/// | [`clone_bodies`](Self::clone_bodies) | yes |
/// | [`buffer_bodies`](Self::buffer_bodies), up to the limit | yes |
/// | any other | no, [`NotReplayable`](crate::Stop::NotReplayable) |
///
/// [`CallOptions`](crate::CallOptions) come in the extensions of an `http::Request`; reqwest's own requests have none.
///
/// Redirects and the results of a 202 are not asked after: that is for the service beneath, or the caller. A request
/// without a host in its URI is keyed by its `host` header, else as `localhost`.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing before it is put over a service"]
pub struct AbideLayer<R = Known> {
    adapter: Adapter,
    replay: R,
}

impl AbideLayer {
    /// With this limiter and these rules. A policy that makes no sense is an error of each call.
    pub fn new(limiter: Limiter, policy: Policy) -> Self {
        Self { adapter: Adapter::new(limiter, policy), replay: Known }
    }
}

impl<R> AbideLayer<R> {
    /// Bodies are cloned for each attempt.
    pub fn clone_bodies(self) -> AbideLayer<Cloned> {
        AbideLayer { adapter: self.adapter, replay: Cloned }
    }

    /// Bodies of at most so many bytes are read before the first attempt, and sent again from there; `make` turns them
    /// into what the service takes. A longer one goes on as a stream, once.
    pub fn buffer_bodies<B>(
        self,
        limit: usize,
        make: impl Fn(Body) -> B + Send + Sync + 'static,
    ) -> AbideLayer<Buffered<B>> {
        AbideLayer { adapter: self.adapter, replay: Buffered { limit, make: Arc::new(make) } }
    }

    setters!();
}

impl<S, R: Clone> Layer<S> for AbideLayer<R> {
    type Service = AbideService<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        AbideService { inner, adapter: self.adapter.clone(), replay: self.replay.clone() }
    }
}

/// A service below the server's limit; made by [`AbideLayer`].
///
/// It is always ready: a call waits in the limiter's queue, then for the service beneath, each attempt anew.
#[derive(Clone)]
pub struct AbideService<S, R = Known> {
    inner: S,
    adapter: Adapter,
    replay: R,
}

/// The call under way.
///
/// # Cancel safety
/// Dropping it gives back permit, slot and retry budget; a request that was on the wire may be executed.
pub type ResponseFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

impl<S, R, B, A> Service<http::Request<B>> for AbideService<S, R>
where
    S: Service<http::Request<B>, Response = http::Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    R: Replay<B>,
    B: Send + 'static,
    A: http_body::Body<Data: Into<Bytes>, Error: Into<BoxError>> + Send + 'static,
{
    type Response = http::Response<ResponseBody>;
    type Error = Error;
    type Future = ResponseFuture<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let Self { inner, adapter, replay } = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = replay.keep(body).await.map_err(Error::transport)?;
            let (template, options) = (template(&parts)?, parts.extensions.get().cloned());
            let once = body.is_once();
            let response = adapter.run(template, options, once, Through { inner, parts, body }).await?;
            Ok(response.into())
        })
    }
}

impl<S, R> Service<Request> for AbideService<S, R>
where
    S: Service<Request, Response = Response> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = Error;
    type Future = ResponseFuture<Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (adapter, inner) = (self.adapter.clone(), self.inner.clone());
        Box::pin(async move { adapter.run(request, None, false, Whole(inner)).await })
    }
}

/// What the limiter key and the rules are drawn from: the request without its body.
fn template(parts: &Parts) -> Result<Request, Error> {
    let host = || parts.headers.get(HOST).and_then(|host| host.to_str().ok());
    let authority = parts.uri.authority().map(|authority| authority.as_str()).or_else(host).unwrap_or("localhost");
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let url = Url::parse(&format!("{}://{authority}{path}", parts.uri.scheme_str().unwrap_or("http")))
        .map_err(|error| Error::builder("the URI of the request must make a URL").with_source(error))?;
    let mut template = Request::new(parts.method.clone(), url);
    *template.headers_mut() = parts.headers.clone();
    Ok(template)
}

/// A service of `http::Request`s beneath.
struct Through<S, B> {
    inner: S,
    parts: Parts,
    body: Kept<B>,
}

impl<S, B, A> Transport for Through<S, B>
where
    S: Service<http::Request<B>, Response = http::Response<A>> + Send,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Send,
    A: http_body::Body<Data: Into<Bytes>, Error: Into<BoxError>> + Send + 'static,
{
    async fn ready(&mut self) -> Result<(), BoxError> {
        poll_fn(|cx| self.inner.poll_ready(cx)).await.map_err(Into::into)
    }

    async fn send(&mut self, request: impl FnOnce() -> Request + Send) -> Result<Response, BoxError> {
        let mut sent = http::Request::new(self.body.take().ok_or("the body was sent already")?);
        *sent.method_mut() = self.parts.method.clone();
        *sent.uri_mut() = self.parts.uri.clone();
        *sent.version_mut() = self.parts.version;
        *sent.headers_mut() = std::mem::take(request().headers_mut());
        *sent.extensions_mut() = self.parts.extensions.clone();
        let response = self.inner.call(sent).await.map_err(Into::into)?;
        Ok(response.map(body::erase).into())
    }
}

/// A service of reqwest's own requests beneath.
struct Whole<S>(S);

impl<S> Transport for Whole<S>
where
    S: Service<Request, Response = Response> + Send,
    S::Future: Send,
    S::Error: Into<BoxError>,
{
    async fn ready(&mut self) -> Result<(), BoxError> {
        poll_fn(|cx| self.0.poll_ready(cx)).await.map_err(Into::into)
    }

    async fn send(&mut self, request: impl FnOnce() -> Request + Send) -> Result<Response, BoxError> {
        self.0.call(request()).await.map_err(Into::into)
    }
}

impl<S, R> fmt::Debug for AbideService<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is beneath may show its default headers, as reqwest's client does.
        f.debug_struct("AbideService").field("adapter", &self.adapter).finish_non_exhaustive()
    }
}
