//! For reqwest-middleware: the same call as one of its middlewares.
//!
//! ```no_run
//! use abide::{Limiter, Policy, ResponseExt, middleware::Abide};
//! use reqwest_middleware::ClientBuilder;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let http = abide::reqwest::Client::builder().retry(abide::reqwest::retry::never()).build()?;
//! let client = ClientBuilder::new(http).with(Abide::new(Limiter::default(), Policy::default())).build();
//! let response = client.get("https://api.example.com/v1/things").send().await?;
//! println!("{} attempts", response.history().attempts().len());
//! # Ok(())
//! # }
//! ```

use std::{fmt, future::Future, pin::Pin};

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next};

use crate::{
    CallOptions, Error, Limiter, Policy, Verdict,
    adapter::{Adapter, setters},
    error::BoxError,
    transport::Transport,
};

pub use reqwest_middleware;
#[cfg(feature = "reqwest-retry")]
pub use {reqwest_retry, retry_policies};

#[cfg(feature = "reqwest-retry")]
type Strategy = std::sync::Arc<dyn crate::retry::Judge>;

/// Puts a client below the server's limit: each attempt takes a permit of the limiter, and what is safe to repeat is
/// retried by the policy. The middlewares after it see each attempt, those before it the call.
///
/// The [`History`](crate::History) is in the extensions of the response. An error is [`abide::Error`](Error) inside
/// `reqwest_middleware::Error::Middleware`: see [`error`]. Redirects are reqwest's, and uncounted; the results of a 202
/// are not asked after. [`CallOptions`] come by `RequestBuilder::with_extension`.
#[derive(Clone)]
#[must_use = "a middleware does nothing before a client has it"]
pub struct Abide {
    adapter: Adapter,
    #[cfg(feature = "reqwest-retry")]
    strategy: Option<Strategy>,
}

impl Abide {
    /// With this limiter and these rules. A policy that makes no sense is an error of each call.
    pub fn new(limiter: Limiter, policy: Policy) -> Self {
        Self {
            adapter: Adapter::new(limiter, policy),
            #[cfg(feature = "reqwest-retry")]
            strategy: None,
        }
    }

    /// What a result means is said by a strategy of reqwest-retry's, where the policy's own classifiers say nothing: it
    /// takes the place of the default, except that a throttle stays one, and that it never makes an unsafe call
    /// repeated.
    #[cfg(feature = "reqwest-retry")]
    #[cfg_attr(docsrs, doc(cfg(feature = "reqwest-retry")))]
    pub fn strategy<T>(mut self, strategy: T) -> Self
    where
        T: reqwest_retry::RetryableStrategy + Send + Sync + 'static,
    {
        self.strategy = Some(std::sync::Arc::new(strategy));
        self
    }

    setters!();
}

impl Middleware for Abide {
    fn handle<'a, 'b, 'c, 'f>(
        &'a self,
        request: Request,
        extensions: &'b mut Extensions,
        next: Next<'c>,
    ) -> Pin<Box<dyn Future<Output = reqwest_middleware::Result<Response>> + Send + 'f>>
    where
        'a: 'f,
        'b: 'f,
        'c: 'f,
    {
        Box::pin(async move {
            let options = extensions.get::<CallOptions>().cloned();
            let rest = Rest { extensions, next, middleware: self, word: None };
            self.adapter.run(request, options, false, rest).await.map_err(reqwest_middleware::Error::middleware)
        })
    }
}

/// The error of the call, with its history, if [`Abide`] made it.
///
/// # Examples
///
/// ```no_run
/// # async fn run(client: reqwest_middleware::ClientWithMiddleware) {
/// if let Err(error) = client.get("https://api.example.com").send().await
///     && let Some(error) = abide::middleware::error(&error)
/// {
///     println!("gave up after {} attempts", error.history().attempts().len());
/// }
/// # }
/// ```
pub fn error(error: &reqwest_middleware::Error) -> Option<&Error> {
    match error {
        reqwest_middleware::Error::Middleware(error) => error.downcast_ref(),
        reqwest_middleware::Error::Reqwest(_) => None,
    }
}

/// The middlewares after this one, and reqwest.
struct Rest<'a, 'n> {
    extensions: &'a mut Extensions,
    next: Next<'n>,
    #[cfg_attr(not(feature = "reqwest-retry"), expect(dead_code, reason = "its strategy is all that is asked for"))]
    middleware: &'a Abide,
    word: Option<Verdict>,
}

impl Transport for Rest<'_, '_> {
    async fn send(&mut self, request: impl FnOnce() -> Request + Send) -> Result<Response, BoxError> {
        self.word = None;
        let result = self.next.clone().run(request(), self.extensions).await;
        #[cfg(feature = "reqwest-retry")]
        {
            self.word = self.middleware.strategy.as_ref().map(|strategy| strategy.judge(&result));
        }
        result.map_err(source)
    }

    fn word(&self) -> Option<Verdict> {
        self.word
    }
}

/// The error beneath; reqwest's own is found also where a middleware wrapped it, so that its URL loses its secrets.
fn source(error: reqwest_middleware::Error) -> BoxError {
    match error {
        reqwest_middleware::Error::Reqwest(error) => error.into(),
        reqwest_middleware::Error::Middleware(error) => match error.downcast::<reqwest::Error>() {
            Ok(error) => error.into(),
            Err(error) => match error.downcast::<reqwest_middleware::Error>() {
                Ok(error) => source(error),
                Err(error) => error.into(),
            },
        },
    }
}

impl fmt::Debug for Abide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Abide").field("adapter", &self.adapter).finish_non_exhaustive()
    }
}
