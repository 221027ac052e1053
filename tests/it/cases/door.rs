//! Ways into a call: the client, and the adapters that drive the same call.

use std::{future::Future, pin::Pin};

use abide::{CallOptions, Error, KeyScheme, Limiter, RequestBuilder, blocking, middleware::Abide, tower::AbideLayer};
use reqwest::{Body, Request, Response};
use reqwest_middleware::ClientWithMiddleware;
use tower::{Layer, Service, util::BoxCloneSyncService};

use super::{
    case::{AutoKey, CallCase, Config, KeySpec, ReadBody, RequestSpec},
    client,
    outcome::{Outcome, outcome},
};
use crate::support::{net::Network, record::TAG};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Client,
    Blocking,
    Middleware,
    /// Over reqwest's own service.
    Reqwest,
    /// Over a service of `http::Request`s.
    Tower,
}

/// A client behind a door.
pub(crate) enum Caller {
    Client(abide::Client),
    Blocking(blocking::Client),
    Middleware(ClientWithMiddleware),
    Reqwest(reqwest::Client, BoxCloneSyncService<Request, Response, Error>),
    Tower(BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Error>),
}

type Sending = Pin<Box<dyn Future<Output = Result<Response, Error>> + Send>>;

impl Door {
    pub(crate) const ADAPTERS: [Self; 4] = [Self::Blocking, Self::Middleware, Self::Reqwest, Self::Tower];

    /// Whether the case asks for nothing that only the client does.
    pub(crate) fn expresses(self, case: &CallCase) -> bool {
        let config = &case.config;
        let redirects = case.server.iter().any(|entry| entry.status.is_some_and(|status| (300..400).contains(&status)));
        let own =
            redirects || config.poll_202 || config.redirects.is_some() || !case.request.header_provider.is_empty();
        // Options come in extensions, which reqwest's own requests do not have.
        let extensions = !matches!(case.request.idempotency_key, KeySpec::Caller(false))
            || config.read_body.unwrap_or_default() == ReadBody::Buffer && case.server.iter().any(breaks_late);
        match self {
            Self::Client => true,
            // Nobody can drop a call that blocks.
            Self::Blocking => case.cancel_at_ms.is_none() && case.request.header_provider.is_empty(),
            Self::Middleware => !own,
            Self::Reqwest => !own && !extensions,
            // `ftp` and the like are for the service beneath.
            Self::Tower => !own,
        }
    }

    pub(crate) fn client(self, network: &Network, config: &Config) -> Result<Caller, String> {
        if self == Self::Client {
            return Ok(Caller::Client(client::client(network, config)?));
        }
        if self == Self::Blocking {
            return blocking_client(network, config).map(Caller::Blocking);
        }
        let (limiter, policy) = (limiter(config)?, client::policy(config)?);
        let names = config.sensitive_headers.iter().filter_map(|name| name.parse().ok()).collect::<Vec<_>>();
        let http = network.http().redirect(reqwest::redirect::Policy::none()).retry(reqwest::retry::never());
        let http = http.build().map_err(|error| error.to_string())?;
        let layer = AbideLayer::new(limiter.clone(), policy.clone()).sensitive_headers(names.clone());
        Ok(match self {
            Self::Middleware => {
                let abide = Abide::new(limiter, policy).sensitive_headers(names).key_scheme(KeyScheme::default());
                Caller::Middleware(reqwest_middleware::ClientBuilder::new(http).with(abide).build())
            }
            Self::Reqwest => Caller::Reqwest(http.clone(), BoxCloneSyncService::new(layer.layer(http))),
            _ => {
                let beneath = tower::service_fn(move |request: http::Request<Body>| {
                    let http = http.clone();
                    async move { http.execute(request.try_into()?).await.map(http::Response::<Body>::from) }
                });
                Caller::Tower(BoxCloneSyncService::new(layer.layer(beneath)))
            }
        })
    }
}

fn breaks_late(entry: &crate::support::script::Entry) -> bool {
    entry.fault.is_some() || entry.stall_body_after.is_some() || entry.body_rate_bps.is_some()
}

fn limiter(config: &Config) -> Result<Limiter, String> {
    let mut builder = Limiter::builder();
    if let Some(bucket) = config.limiter {
        builder = builder.quota(client::quota(bucket));
    }
    if let Some(concurrency) = config.concurrency {
        builder = builder.max_in_flight(concurrency);
    }
    builder.build().map_err(|error| error.to_string())
}

fn blocking_client(network: &Network, config: &Config) -> Result<blocking::Client, String> {
    let names = config.sensitive_headers.iter().filter_map(|name| name.parse().ok()).collect::<Vec<_>>();
    let mut builder = blocking::Client::builder()
        .http(network.http())
        .policy(client::policy(config)?)
        .limiter(limiter(config)?)
        .sensitive_headers(names);
    if let Some(redirects) = config.redirects {
        builder = builder.redirects(redirects);
    }
    builder.build().map_err(|error| error.to_string())
}

impl Caller {
    pub(crate) async fn warm_up(&self, url: &str) -> Result<Response, Error> {
        let spec: RequestSpec =
            serde_json::from_str(r#"{"method":"GET","idempotency_key":false,"body":"none"}"#).unwrap();
        self.send(url, &spec, ReadBody::Stream).await
    }

    pub(crate) async fn outcome(&self, case: &CallCase, url: &str) -> Outcome {
        let read_body = case.config.read_body.unwrap_or_default();
        outcome(self.send(url, &case.request, read_body), case.cancel_at_ms).await
    }

    fn send(&self, url: &str, spec: &RequestSpec, read_body: ReadBody) -> Sending {
        match self {
            Self::Client(client) => {
                let request: RequestBuilder = client::request(client, url, spec, read_body, 0).unwrap();
                Box::pin(request.send())
            }
            Self::Blocking(client) => {
                let request = blocking_request(client, url, spec, read_body);
                Box::pin(async move {
                    let sent = tokio::task::spawn_blocking(move || request.send());
                    sent.await.unwrap().map(Response::from)
                })
            }
            Self::Middleware(client) => {
                let mut request = client
                    .request(spec.method.parse().unwrap(), url)
                    .header(TAG, "0")
                    .with_extension(options(spec, read_body));
                for (name, value) in &spec.headers {
                    request = request.header(name, value);
                }
                if let Some(body) = client::sent_body(spec) {
                    request = request.body(body);
                }
                Box::pin(async move { request.send().await.map_err(own) })
            }
            Self::Reqwest(http, service) => {
                let request = plain(http, url, spec).build().unwrap();
                Box::pin(service.clone().call(request))
            }
            Self::Tower(service) => {
                let mut request = http::Request::builder().method(spec.method.as_str()).uri(url).header(TAG, "0");
                for (name, value) in &spec.headers {
                    request = request.header(name, value);
                }
                let mut request = request.body(client::sent_body(spec).unwrap_or_default()).unwrap();
                request.extensions_mut().insert(options(spec, read_body));
                let sent = service.clone().call(request);
                Box::pin(async move { sent.await.map(Response::from) })
            }
        }
    }
}

fn plain(http: &reqwest::Client, url: &str, spec: &RequestSpec) -> reqwest::RequestBuilder {
    let mut request = http.request(spec.method.parse().unwrap(), url).header(TAG, "0");
    for (name, value) in &spec.headers {
        request = request.header(name, value);
    }
    match client::sent_body(spec) {
        Some(body) => request.body(body),
        None => request,
    }
}

fn blocking_request(
    client: &blocking::Client,
    url: &str,
    spec: &RequestSpec,
    read_body: ReadBody,
) -> blocking::RequestBuilder {
    let mut request = client.request(spec.method.parse().unwrap(), url).header(TAG, "0");
    for (name, value) in &spec.headers {
        request = request.header(name, value);
    }
    if let Some(body) = client::sent_body(spec) {
        request = request.body(body);
    }
    request = match spec.idempotency_key {
        KeySpec::Caller(false) => request,
        KeySpec::Caller(true) => request.idempotency_key(client::callers_key(0)),
        KeySpec::Sdk(AutoKey::Auto) => request.auto_idempotency_key(),
    };
    if read_body == ReadBody::Buffer { request.buffered(client::BUFFER) } else { request }
}

fn options(spec: &RequestSpec, read_body: ReadBody) -> CallOptions {
    let options = match spec.idempotency_key {
        KeySpec::Caller(false) => CallOptions::new(),
        KeySpec::Caller(true) => CallOptions::new().idempotency_key(client::callers_key(0)),
        KeySpec::Sdk(AutoKey::Auto) => CallOptions::new().auto_idempotency_key(),
    };
    if read_body == ReadBody::Buffer { options.buffered(client::BUFFER) } else { options }
}

/// abide's error in reqwest-middleware's.
fn own(error: reqwest_middleware::Error) -> Error {
    match error {
        reqwest_middleware::Error::Middleware(error) => error.downcast().unwrap(),
        reqwest_middleware::Error::Reqwest(error) => unreachable!("not abide's: {error}"),
    }
}
