//! `ClientBuilder`: the settings of a client.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header::USER_AGENT};

use crate::{
    Client, Error, KeyBy, KeyScheme, Limiter, LimiterBuilder, Observer, Policy, Quota,
    client::{InPlace, Inner, REDIRECTS},
    error::BoxError,
    key_by::Credentials,
    outgoing::HeadersWith,
};

/// The settings of a [`Client`]. Everything has a default fit for production.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use abide::{Client, Policy, Quota};
///
/// let client = Client::builder()
///     .user_agent("example/1.0")
///     .quota(Quota::per_minute(600))
///     .policy(Policy::default().deadline(Duration::from_secs(30)))
///     .build()?;
/// # let _ = client;
/// # Ok::<(), abide::Error>(())
/// ```
#[must_use = "build() makes the client"]
pub struct ClientBuilder {
    http: Option<reqwest::ClientBuilder>,
    in_place: Option<InPlace>,
    defaults: HeaderMap,
    user_agent: Option<Result<HeaderValue, Error>>,
    policy: Policy,
    limits: Limits,
    key_by: KeyBy,
    scheme: KeyScheme,
    redirects: u32,
    sensitive: Vec<HeaderName>,
    headers_with: Option<HeadersWith>,
    observer: Option<Arc<dyn Observer>>,
    seed: Option<u64>,
}

enum Limits {
    Own(LimiterBuilder, bool),
    Shared(Limiter, bool),
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            http: None,
            in_place: None,
            defaults: HeaderMap::new(),
            user_agent: None,
            policy: Policy::default(),
            limits: Limits::Own(Limiter::builder(), false),
            key_by: KeyBy::default(),
            scheme: KeyScheme::default(),
            redirects: REDIRECTS,
            sensitive: Vec::new(),
            headers_with: None,
            observer: None,
            seed: None,
        }
    }
}

impl ClientBuilder {
    /// Transport settings. abide turns reqwest's redirects and retries off and does both itself, so that each request
    /// on the wire takes a permit.
    ///
    /// Default headers set here (besides accept and user-agent) go to every origin that reqwest asks; such a client
    /// therefore follows no redirect to another one. Give them to [`default_headers`](Self::default_headers).
    /// Unset: reqwest's defaults with a connect timeout of 10 s and a read timeout of 60 s.
    pub fn http(mut self, http: reqwest::ClientBuilder) -> Self {
        self.http = Some(http);
        self
    }

    /// Headers for each request that does not set them itself. They stay on the origin that a call was meant for:
    /// after a redirect to another one only accept and accept-language go along.
    pub fn default_headers(mut self, headers: HeaderMap) -> Self {
        self.defaults.extend(headers);
        self
    }

    /// The user-agent header; goes everywhere. A value that is no header value is an error of `build()`.
    pub fn user_agent<V>(mut self, value: V) -> Self
    where
        V: TryInto<HeaderValue>,
        V::Error: Into<http::Error>,
    {
        self.user_agent = Some(value.try_into().map_err(|error| {
            let error: http::Error = error.into();
            Error::builder("user_agent must be a header value").with_source(error)
        }));
        self
    }

    /// The rules of each call that brings none of its own. Default: [`Policy::default`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// A limit of the server's, known beforehand. Once per quota: all of them hold for every key, taken together or not
    /// at all. Default: none; what servers advertise is learned either way.
    pub fn quota(self, quota: Quota) -> Self {
        self.limits(|limits| limits.quota(quota))
    }

    /// The share of an advertised limit that is left unused, from 0 to below 1. Default 0.02; a configured quota is
    /// used as written.
    pub fn headroom(self, share: f64) -> Self {
        self.limits(|limits| limits.headroom(share))
    }

    /// Requests of one key under way at once, until the body of the response is read or dropped. Default: no bound;
    /// zero is an error of `build()`.
    pub fn max_in_flight(self, requests: u32) -> Self {
        self.limits(|limits| limits.max_in_flight(requests))
    }

    /// Keeps the limits of each key together with all processes of a fleet. Default: no fleet.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn fleet(self, fleet: crate::fleet::Fleet) -> Self {
        self.limits(|limits| limits.fleet(fleet))
    }

    /// Shares a limiter with other clients. Its own settings hold: quota, headroom, max_in_flight and fleet of this
    /// builder are then an error of `build()`.
    pub fn limiter(mut self, limiter: Limiter) -> Self {
        let set = matches!(self.limits, Limits::Own(_, true) | Limits::Shared(_, true));
        self.limits = Limits::Shared(limiter, set);
        self
    }

    /// Which calls share a limit. Default: those with the same origin and credential.
    pub fn key_by(mut self, key_by: KeyBy) -> Self {
        self.key_by = key_by;
        self
    }

    /// How the service takes idempotency keys. Default: [`KeyScheme::default`].
    pub fn key_scheme(mut self, scheme: KeyScheme) -> Self {
        self.scheme = scheme;
        self
    }

    /// Redirects followed in one call. Default 10; zero: none is.
    pub fn redirects(mut self, redirects: u32) -> Self {
        self.redirects = redirects;
        self
    }

    /// Credential headers besides the built-in ones: part of the limiter key, dropped on a change of origin, never
    /// printed. Built in are `Authorization`, `Proxy-Authorization`, `Cookie`, `X-Api-Key`, `Api-Key`, `X-Auth-Token`,
    /// `PRIVATE-TOKEN` and every value marked sensitive.
    pub fn sensitive_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.sensitive.extend(names);
        self
    }

    /// Fresh headers for attempt n (from 1), in place of those of the same name: asked after the limiter's grant, so
    /// that they do not age in the queue. Only for the origin that the call was meant for.
    ///
    /// If it fails nothing is sent. It must not set the idempotency header (`is_builder`, nothing sent).
    pub fn headers_with<F, Fut>(mut self, headers: F) -> Self
    where
        F: Fn(u32) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<HeaderMap, BoxError>> + Send + 'static,
    {
        self.headers_with = Some(Arc::new(move |number| Box::pin(headers(number))));
        self
    }

    /// Takes reqwest's place, for tests in memory under paused time.
    #[cfg(feature = "testing")]
    #[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
    pub fn transport<F, Fut>(mut self, transport: F) -> Self
    where
        F: Fn(reqwest::Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<reqwest::Response, BoxError>> + Send + 'static,
    {
        self.in_place = Some(Arc::new(move |request| Box::pin(transport(request))));
        self
    }

    /// Makes the jitter of this client repeatable, for tests.
    #[cfg(feature = "testing")]
    #[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Told of each decision. `tracing` events are emitted anyway, target `abide`, level debug.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Checks the settings and makes the client.
    ///
    /// # Errors
    /// `is_builder`: a setting makes no sense; the message names it and its bound. Or TLS cannot be set up.
    pub fn build(self) -> Result<Client, Error> {
        self.policy.check()?;
        let limiter = match self.limits {
            Limits::Own(limits, _) => limits.build()?,
            Limits::Shared(limiter, false) => limiter,
            Limits::Shared(_, true) => {
                return Err(Error::builder(
                    "quota, headroom, max_in_flight and fleet belong to the limiter that is shared",
                ));
            }
        };
        let mut defaults = self.defaults;
        if defaults.contains_key(self.scheme.name()) {
            // IETF draft-ietf-httpapi-idempotency-key-header-06 §2: a key is never used again for another request.
            return Err(Error::builder(
                "default_headers must not hold the idempotency header: all calls would share a key",
            ));
        }
        if let Some(user_agent) = self.user_agent {
            defaults.insert(USER_AGENT, user_agent?);
        }
        for name in &self.sensitive {
            defaults.get_mut(name).into_iter().for_each(|value| value.set_sensitive(true));
        }
        let http = self.http.unwrap_or_else(http_defaults);
        let http = http.redirect(reqwest::redirect::Policy::none()).retry(reqwest::retry::never()).build();
        let http = http.map_err(|error| Error::transport(error.into()))?;
        let mut inner = Inner::around(&http);
        if let Some(seed) = self.seed {
            inner.reseed(seed);
        }
        let inner = Inner {
            defaults,
            policy: Arc::new(self.policy),
            limiter,
            key_by: self.key_by,
            credentials: Credentials::new(self.sensitive, self.scheme.name().clone()),
            scheme: self.scheme,
            redirects: self.redirects,
            headers_with: self.headers_with,
            observer: self.observer,
            ..inner
        };
        Ok(Client::from_parts(http, self.in_place, inner))
    }

    fn limits(mut self, change: impl FnOnce(LimiterBuilder) -> LimiterBuilder) -> Self {
        self.limits = match self.limits {
            Limits::Own(limits, _) => Limits::Own(change(limits), true),
            Limits::Shared(limiter, _) => Limits::Shared(limiter, true),
        };
        self
    }
}

/// reqwest has neither by itself: a host that is gone would be waited for by the system's patience, which is minutes,
/// and one that falls silent for ever.
fn http_defaults() -> reqwest::ClientBuilder {
    reqwest::Client::builder().connect_timeout(Duration::from_secs(10)).read_timeout(Duration::from_secs(60))
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("policy", &self.policy)
            .field("key_by", &self.key_by)
            .field("key_scheme", &self.scheme)
            .field("redirects", &self.redirects)
            .finish_non_exhaustive()
    }
}
