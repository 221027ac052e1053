//! What the adapters share: their settings, and the way of one call through them. No rule lives here.

use std::{fmt, sync::Arc, time::Duration};

use http::HeaderName;
use reqwest::{Request, Response};

use crate::{
    Error, Key, KeyBy, KeyScheme, Limiter, Observer, Policy, Unit,
    client::Inner,
    key_by::Credentials,
    outgoing::{KeyFrom, Options, Outgoing},
    run,
    transport::Transport,
};

/// What one request through an adapter overrides: put it into the extensions of the request.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use abide::{CallOptions, http};
///
/// let mut request = http::Request::post("https://api.example.com/v1/charges").body("amount=100")?;
/// request.extensions_mut().insert(CallOptions::new().idempotency_key("order-7").deadline(Duration::from_secs(20)));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "it holds only for the request whose extensions it is in"]
pub struct CallOptions(Options);

impl CallOptions {
    /// Overrides nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`RequestBuilder::idempotency_key`](crate::RequestBuilder::idempotency_key).
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.0.idempotency_key = Some(KeyFrom::Caller(key.into()));
        self
    }

    /// As [`RequestBuilder::auto_idempotency_key`](crate::RequestBuilder::auto_idempotency_key).
    pub fn auto_idempotency_key(mut self) -> Self {
        self.0.idempotency_key = Some(KeyFrom::Chance);
        self
    }

    /// The caller vouches: safe to repeat, whatever the method.
    pub fn idempotent(mut self) -> Self {
        self.0.idempotent = true;
        self
    }

    /// Requests that this one counts for. Default 1; zero takes nothing of the quota.
    pub fn cost(self, cost: u32) -> Self {
        self.units(Unit::Requests, cost)
    }

    /// Units of a kind that this request uses. A kind that is not stated is not charged, except one request.
    pub fn units(mut self, unit: Unit, units: u32) -> Self {
        self.0.state(unit, units);
        self
    }

    /// The limiter key, in place of the adapter's [`KeyBy`].
    pub fn key(mut self, key: impl Into<Key>) -> Self {
        self.0.key = Some(key.into());
        self
    }

    /// How long this call may take, limiter waits and retries included.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.0.deadline = Some(deadline);
        self
    }

    /// The rules of this call.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.0.policy = Some(Arc::new(policy));
        self
    }

    /// As [`RequestBuilder::buffered`](crate::RequestBuilder::buffered).
    pub fn buffered(mut self, limit: usize) -> Self {
        self.0.buffered = Some(limit);
        self
    }
}

/// The settings of an adapter. Its clones share limiter and retry budget.
#[derive(Clone)]
pub(crate) struct Adapter {
    settings: Settings,
    inner: Arc<Inner>,
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) limiter: Limiter,
    pub(crate) policy: Arc<Policy>,
    pub(crate) key_by: KeyBy,
    pub(crate) scheme: KeyScheme,
    pub(crate) sensitive: Vec<HeaderName>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Adapter {
    pub(crate) fn new(limiter: Limiter, policy: Policy) -> Self {
        let settings = Settings {
            limiter,
            policy: Arc::new(policy),
            key_by: KeyBy::default(),
            scheme: KeyScheme::default(),
            sensitive: Vec::new(),
            observer: None,
        };
        Self { inner: settings.inner(), settings }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self.inner = self.settings.inner();
        self
    }

    /// One call; `once`: its body is with the transport, which has it only once.
    pub(crate) async fn run(
        &self,
        request: Request,
        options: Option<CallOptions>,
        once: bool,
        transport: impl Transport,
    ) -> Result<Response, Error> {
        let options = options.unwrap_or_default().0;
        options.policy.as_ref().unwrap_or(&self.settings.policy).check()?;
        let mut request = Outgoing::new(&self.inner, request, options)?;
        if once {
            request.send_once();
        }
        run::run(&self.inner, &mut request, transport).await
    }
}

impl Settings {
    fn inner(&self) -> Arc<Inner> {
        Arc::new(Inner {
            limiter: self.limiter.clone(),
            policy: Arc::clone(&self.policy),
            key_by: self.key_by.clone(),
            credentials: Credentials::new(self.sensitive.clone(), self.scheme.name().clone()),
            scheme: self.scheme.clone(),
            observer: self.observer.clone(),
            follows: false,
            ..Inner::new()
        })
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter")
            .field("policy", &self.settings.policy)
            .field("key_by", &self.settings.key_by)
            .field("key_scheme", &self.settings.scheme)
            .finish_non_exhaustive()
    }
}

/// The setters that all adapters have, for a type with a field `adapter`.
macro_rules! setters {
    () => {
        /// Which calls share a limit. Default: those with the same origin and credential.
        pub fn key_by(self, key_by: crate::KeyBy) -> Self {
            self.map(|settings| settings.key_by = key_by)
        }

        /// How the service takes idempotency keys. Default: [`KeyScheme::default`](crate::KeyScheme::default).
        pub fn key_scheme(self, scheme: crate::KeyScheme) -> Self {
            self.map(|settings| settings.scheme = scheme)
        }

        /// Credential headers besides the built-in ones: part of the limiter key, never printed.
        pub fn sensitive_headers(self, names: impl IntoIterator<Item = http::HeaderName>) -> Self {
            self.map(|settings| settings.sensitive.extend(names))
        }

        /// Told of each decision. `tracing` spans and events are emitted anyway.
        pub fn observer(self, observer: impl crate::Observer) -> Self {
            self.map(|settings| settings.observer = Some(std::sync::Arc::new(observer)))
        }

        fn map(mut self, change: impl FnOnce(&mut crate::adapter::Settings)) -> Self {
            self.adapter = self.adapter.with(change);
            self
        }
    };
}
pub(crate) use setters;
