//! Secrets wherever a user can put one, and every output searched for them.
//!
//! What may show them, and is not searched: reqwest's own `Request` and `Response` (their `Debug` is reqwest's), an
//! error that the caller's own `headers_with` returns, and the path of a URL.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
    task::{self, Poll},
};

use abide::{
    Backoff, CallOptions, Client, ClientBuilder, Error, Event, History, Key, KeyBy, Limiter, NonIdempotent, Policy,
    Quota, RequestBuilder, ResponseExt,
    bulk::{Bulk, Job},
    http::{self, HeaderMap, HeaderName, HeaderValue, header},
    middleware::Abide,
    reqwest::{self, Response, Url},
    tower::AbideLayer,
};
use futures_util::{StreamExt, stream};
use reqwest_middleware::{Middleware, Next};
use tower::{Layer as _, ServiceExt};
use tracing_subscriber::layer::SubscriberExt;

use crate::{
    memory::{Net, status},
    support::{
        clock::ms,
        net::Network,
        planted::{Secrets, Traced, forms, story},
        script::{Entry, Fault},
    },
    telemetry::Book,
};

/// A client full of secrets, and all that it says.
struct Stage {
    secrets: Secrets,
    client: Client,
    said: Arc<Mutex<String>>,
    traced: Traced,
    measured: Book,
}

const OWN: HeaderName = HeaderName::from_static("x-own");

fn policy() -> Policy {
    Policy::default().no_budget().backoff(Backoff::none()).max_attempts(2).attempt_timeout(ms(2000))
}

impl Stage {
    fn new(http: reqwest::ClientBuilder, also: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Self {
        let mut secrets = Secrets::default();
        let said = Arc::new(Mutex::new(String::new()));
        let (heard, tenant, fresh) = (Arc::clone(&said), secrets.plant("KeyBy::with"), secrets.plant("headers_with"));
        let mut marked = HeaderValue::from_str(&secrets.plant("a sensitive default")).unwrap();
        marked.set_sensitive(true);
        let defaults = HeaderMap::from_iter([
            (HeaderName::from_static("x-default"), value(&secrets.plant("default_headers"))),
            (HeaderName::from_static("x-marked"), marked),
        ]);
        let builder = Client::builder()
            .http(http)
            .policy(policy())
            .default_headers(defaults)
            .sensitive_headers([OWN])
            .key_by(KeyBy::with(move |_| Key::from(format!("tenant {tenant}"))))
            .headers_with(move |_| {
                let fresh = value(&fresh);
                async move { Ok(HeaderMap::from_iter([(HeaderName::from_static("x-fresh"), fresh)])) }
            })
            .observer(move |event: &Event| heard.lock().unwrap().push_str(&forms(event)));
        let builder = also(builder);
        said.lock().unwrap().push_str(&forms(&builder));
        let client = builder.build().unwrap();
        Self { secrets, client, said, traced: Traced::default(), measured: Book::default() }
    }

    /// A request with a secret in each place that it has; who calls is told by variant 0 to 2.
    fn request(&mut self, url: &str, who: usize) -> RequestBuilder {
        let mut plant = |place| self.secrets.plant(place);
        let mut url = Url::parse(url).unwrap();
        url.set_query(Some(&format!("{}&token={}", plant("a bare query"), plant("a query"))));
        url.set_fragment(Some(&plant("a fragment")));
        if who == 0 {
            url.set_username(&plant("a user name")).unwrap();
            url.set_password(Some(&plant("a password"))).unwrap();
        }
        let attempt = value(&plant("on_attempt"));
        let request = self
            .client
            .post(url)
            .query(&[("more", plant("query()"))])
            .header("cookie", plant("cookie"))
            .header("x-api-key", plant("x-api-key"))
            .header(OWN, plant("sensitive_headers"))
            .idempotency_key(plant("idempotency_key"))
            .on_attempt(move |request, _| drop(request.headers_mut().insert("private-token", attempt.clone())))
            .body(plant("body"));
        match who {
            0 => request,
            1 => request.bearer_auth(plant("bearer_auth")),
            _ => request.basic_auth(plant("basic_auth: user"), Some(plant("basic_auth: password"))),
        }
    }

    /// Sends it, and searches all that anybody is told of it.
    async fn play(&mut self, scene: &str, request: RequestBuilder) -> Result<Response, Error> {
        let _traced = tracing::subscriber::set_default(tracing_subscriber::registry().with(self.traced.clone()));
        let _measured = metrics::set_default_local_recorder(&self.measured);
        let asked = forms(&request);
        let result = request.send().await;
        let told = match &result {
            Ok(response) => forms(response.history()),
            Err(error) => {
                let facts = format!("{:?} {:?} {:?}", error.url().map(Url::as_str), error.status(), error.refused());
                story(error) + &facts + &forms(error.history())
            }
        };
        let limiter = self.client.limiter();
        let state = forms(&self.client) + &forms(limiter) + &forms(&policy());
        if history_of(&result).attempts().iter().any(|attempt| attempt.elapsed() > ms(0)) {
            // There is something to search.
            let (said, traced) = (self.said.lock().unwrap().clone(), self.traced.0.lock().unwrap().clone());
            assert!(
                said.contains("Sent {") && traced.contains("url.full=") && traced.contains("message=sent"),
                "{traced}"
            );
            assert!(self.measured.0.lock().unwrap().join("").contains("http.client.request.duration"), "{scene}");
        }
        let text = [asked, told, state, self.said.lock().unwrap().clone(), self.traced.0.lock().unwrap().clone()];
        let text = text.join("\n") + &self.measured.0.lock().unwrap().join("\n");
        self.secrets.assert_hidden(scene, &text);
        result
    }
}

fn history_of(result: &Result<Response, Error>) -> &History {
    match result {
        Ok(response) => response.history(),
        Err(error) => error.history(),
    }
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap()
}

/// Every secret but the key of the limiter, what is never sent, and the proxy's.
#[track_caller]
fn assert_sent(secrets: &Secrets, text: &str) {
    for (place, secret) in &secrets.0 {
        let coded = ["a user name", "a password", "basic_auth: user", "basic_auth: password"];
        if !["KeyBy::with", "a fragment"].contains(place) && !coded.contains(place) {
            assert!(text.contains(secret.as_str()), "the secret of {place} was not even sent: {text}");
        }
    }
}

fn seen(network: &Network, host: &str) -> String {
    let seen = network.seen();
    let here = seen.iter().filter(|seen| seen.host == host).map(|seen| &seen.request);
    here.map(|request| format!("{request:?} {}\n", String::from_utf8_lossy(&request.body))).collect()
}

#[tokio::test]
async fn answers_show_no_secret() {
    for who in 0..3 {
        for status in [200, 302, 401, 404, 429, 503] {
            let mut entry = Entry::with_body(status, "plain");
            entry.headers.push(("retry-after".into(), if status == 429 { "1000" } else { "0" }.into()));
            let network = Network::with(&[entry.clone(), entry]).await;
            let mut stage = Stage::new(network.http(), |builder| builder);
            let request = stage.request(network.url(), who);
            let response = stage.play(&format!("{status} to {who}"), request).await.unwrap();
            assert_eq!(response.status().as_u16(), status);
            assert_sent(&stage.secrets, &seen(&network, "a"));
            assert!(seen(&network, "a").contains("authorization"), "the request tells who calls");
        }
    }
}

#[tokio::test]
async fn failures_show_no_secret() {
    let faults = [
        Fault::ResetBeforeResponse,
        Fault::CloseBeforeResponse,
        Fault::ResetMidBody,
        Fault::Stall,
        Fault::TlsUnknownCa,
        Fault::TlsWrongHost,
        Fault::ResetInTlsHandshake,
        Fault::DnsNxdomain,
        Fault::H2RefusedStream,
        Fault::H2GoawayCalm,
    ];
    for fault in faults {
        for who in 0..3 {
            let network = Network::with(&[Entry::fault(fault), Entry::fault(fault)]).await;
            let mut stage = Stage::new(network.http(), |builder| builder);
            let request = stage.request(network.url(), who).deadline(ms(250)).buffered(4096);
            let error = stage.play(&format!("{fault:?} to {who}"), request).await.unwrap_err();
            assert!(!error.history().attempts().is_empty(), "{error:?}");
        }
    }
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut stage = Stage::new(reqwest::Client::builder().no_proxy(), |builder| builder);
    let request = stage.request(&format!("http://{nobody}/"), 0);
    assert!(stage.play("nobody listens", request).await.unwrap_err().is_connect());
}

#[tokio::test]
async fn proxies_and_what_they_refuse_show_no_secret() {
    // A proxy that nobody is at, one that refuses plain requests and tunnels, one that is no URL.
    let network = Network::with(&[Entry::status(407), Entry::status(407)]).await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (address, url) in [
        (format!("{nobody}"), "http://h.example/"),
        (format!("{nobody}"), "https://h.example/"),
        (network.url()[7..].trim_end_matches('/').to_owned(), "http://h.example/"),
        (network.url()[7..].trim_end_matches('/').to_owned(), "https://h.example/"),
    ] {
        let mut held = Secrets::default();
        let (user, password) = (held.plant("a proxy's user"), held.plant("a proxy's password"));
        let proxy = reqwest::Proxy::all(format!("http://{user}:{password}@{address}")).unwrap();
        let mut stage = Stage::new(reqwest::Client::builder().proxy(proxy), |builder| builder);
        stage.secrets.0.append(&mut held.0);
        let request = stage.request(url, 1).deadline(ms(2000));
        let _ = stage.play(&format!("{url} by {address}"), request).await;
    }
}

#[tokio::test]
async fn refusals_and_mistakes_show_no_secret() {
    let unsent = |http: reqwest::ClientBuilder| http.no_proxy();
    let never = |builder: ClientBuilder| builder.quota(Quota::window(2, ms(1000)));
    let mut stage = Stage::new(unsent(reqwest::Client::builder()), never);
    let request = stage.request("http://h.example/", 0).cost(50);
    let error = stage.play("a cost that never fits", request).await.unwrap_err();
    assert!(error.refused().unwrap().is_never());

    let text = stage.secrets.plant("a key's text");
    let (limiter, key) = (stage.client.limiter().clone(), Key::from(text.as_str()));
    let held = limiter.try_acquire(&key, 1).unwrap();
    let waiting = limiter.acquire(&key, 2, None);
    let refused = limiter.try_acquire(&key, 2).unwrap_err();
    let snapshot = limiter.snapshot(&key).unwrap();
    let mut text = forms(&held) + &forms(&waiting) + &forms(&refused) + &refused.to_string() + &forms(&snapshot);
    text += &(forms(&key) + &key.to_string() + &forms(&limiter));
    stage.secrets.assert_hidden("the limiter", &text);

    // Requests that make no sense: each shows what is wrong with it, not with what value.
    let mut plant = |place| stage.secrets.plant(place);
    let client = &stage.client;
    let urls = [
        format!("ftp://{}:{}@h.example/?{}", plant("ftp: user"), plant("ftp: password"), plant("ftp: query")),
        format!("http://[{}", plant("no host")),
        format!("{}?{}", plant("a relative URL"), plant("a relative URL's query")),
        format!("http://h.example:{}/?{}", plant("a port"), plant("a port's query")),
        format!("mailto:me@h.example?{}", plant("mailto")),
    ];
    let mut requests: Vec<RequestBuilder> = urls.iter().map(|url| client.get(url)).collect();
    let url = format!("http://{}:{}@h.example/?{}", plant("user"), plant("password"), plant("query"));
    requests.push(client.post(&url).header("authorization", format!("{}\n", plant("a broken header"))));
    requests.push(client.post(&url).header(format!("{} ", plant("a broken name")), "x"));
    requests.push(client.post(&url).idempotency_key(format!("{}\n", plant("a broken key"))));
    requests.push(client.post(&url).bearer_auth(format!("{}\n", plant("a broken token"))));
    let elsewhere = plant("on_attempt: elsewhere");
    requests.push(client.get(&url).on_attempt(move |request, _| {
        *request.url_mut() = Url::parse(&format!("http://other.example/?{elsewhere}")).unwrap();
    }));
    let (key, other) = (plant("a key that changes"), value(&plant("the other key")));
    requests.push(client.post(&url).idempotency_key(key).on_attempt(move |request, _| {
        request.headers_mut().insert("idempotency-key", other.clone());
    }));
    requests.push(client.get(&url).policy(Policy::default().max_attempts(0)));
    for (number, request) in requests.into_iter().enumerate() {
        let error = stage.play(&format!("mistake {number}"), request).await.unwrap_err();
        assert!(error.is_builder(), "mistake {number}: {error:?}");
    }

    // And clients that make none.
    let mut plant = |place| stage.secrets.plant(place);
    let key = [(HeaderName::from_static("idempotency-key"), value(&plant("a shared key")))];
    let mistakes = [
        Client::builder().default_headers(HeaderMap::from_iter(key)),
        Client::builder().user_agent(format!("{}\n", plant("a broken user agent"))),
        Client::builder().default_headers(HeaderMap::from_iter([(OWN, value(&plant("a default")))])).headroom(2.0),
    ];
    for builder in mistakes {
        let text = forms(&builder);
        let error = builder.build().unwrap_err();
        stage.secrets.assert_hidden("a client", &(text + &story(&error)));
    }
}

#[tokio::test]
async fn another_origin_gets_no_secret() {
    for who in 0..3 {
        for status in [301, 302, 303] {
            let mut hop = Entry::status(status);
            hop.headers.push(("location".into(), "{{origin:b}}/there".into()));
            let network = Network::with(&[hop, Entry { host: Some("b".into()), ..Entry::status(200) }]).await;
            let mut stage = Stage::new(network.http(), |builder| builder);
            let request = stage.request(network.url(), who);
            let scene = format!("{status} to {who}");
            let response = stage.play(&scene, request).await.unwrap();
            assert_eq!((response.status().as_u16(), network.seen().len()), (200, 2));
            assert_sent(&stage.secrets, &seen(&network, "a"));
            let there = seen(&network, "b");
            stage.secrets.assert_hidden(&format!("the second origin, {scene}"), &there);
            assert!(!there.contains("authorization") && !there.contains("referer"), "{there}");
        }
    }
}

#[tokio::test]
async fn encryption_is_not_given_up() {
    let net = Net::new([status(302).header("location", "http://h.example/there"), status(200)]);
    let client = net.client().build().unwrap();
    let response = client.get("https://h.example/").header("x-plain", "p").send().await.unwrap();
    assert_eq!((response.status().as_u16(), net.count()), (302, 1));
}

/// What is beneath a layer; its `Debug` form is reqwest's.
#[derive(Clone, Debug)]
struct Plain(reqwest::Client);

impl tower::Service<http::Request<reqwest::Body>> for Plain {
    type Response = http::Response<reqwest::Body>;
    type Error = reqwest::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, reqwest::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), reqwest::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<reqwest::Body>) -> Self::Future {
        let http = self.0.clone();
        Box::pin(async move { http.execute(request.try_into()?).await.map(Into::into) })
    }
}

/// A middleware beneath, which wraps the error, as some do.
struct Wrapping {
    twice: bool,
}

impl Middleware for Wrapping {
    fn handle<'a, 'b, 'c, 'f>(
        &'a self,
        request: reqwest::Request,
        extensions: &'b mut http::Extensions,
        next: Next<'c>,
    ) -> Pin<Box<dyn Future<Output = reqwest_middleware::Result<Response>> + Send + 'f>>
    where
        'a: 'f,
        'b: 'f,
        'c: 'f,
    {
        use reqwest_middleware::Error;
        Box::pin(async move {
            next.run(request, extensions).await.map_err(|error| match error {
                Error::Reqwest(error) if !self.twice => Error::middleware(error),
                error => Error::middleware(error),
            })
        })
    }
}

#[tokio::test]
async fn adapters_show_no_secret() {
    let mut secrets = Secrets::default();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut url = Url::parse(&format!("http://{nobody}/")).unwrap();
    url.set_query(Some(&secrets.plant("a query")));
    url.set_username(&secrets.plant("a user name")).unwrap();
    let defaults = HeaderMap::from_iter([(header::AUTHORIZATION, value(&secrets.plant("reqwest's defaults")))]);
    let http = || reqwest::Client::builder().no_proxy().default_headers(defaults.clone()).build().unwrap();
    let options = CallOptions::new().idempotency_key(secrets.plant("CallOptions"));
    let mut text = forms(&options);

    let policy = || policy().retry_non_idempotent(NonIdempotent::WhenUnsent);
    let layer = AbideLayer::new(Limiter::default(), policy());
    let service = layer.layer(Plain(http()));
    text += &(forms(&layer) + &forms(&service));
    let request = http::Request::post(url.as_str()).header("cookie", secrets.plant("cookie"));
    let mut request = request.body(reqwest::Body::from(secrets.plant("body"))).unwrap();
    request.extensions_mut().insert(options.clone());
    let error = service.oneshot(request).await.unwrap_err();
    assert!(error.is_connect(), "{error:?}");
    text += &story(&error);

    let middleware = Abide::new(Limiter::default(), policy());
    text += &forms(&middleware);
    for twice in [false, true] {
        let http = reqwest_middleware::ClientBuilder::new(http());
        let client = http.with(middleware.clone()).with(Wrapping { twice }).build();
        let error = client.post(url.clone()).with_extension(options.clone()).send().await.unwrap_err();
        let found = abide::middleware::error(&error).unwrap();
        assert!(found.is_connect() && found.history().attempts().len() == 2, "{found:?}");
        text += &(story(&error) + &story(found));
    }
    secrets.assert_hidden("adapters", &text);
}

#[test]
fn calls_that_block_show_no_secret() {
    let far = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut secrets = Secrets::default();
    let mut answer = Entry::with_body(200, &secrets.plant("the answer's body"));
    answer.headers.push(("set-cookie".into(), secrets.plant("set-cookie")));
    let script = [answer.clone(), Entry::fault(Fault::ResetBeforeResponse), Entry::status(404), answer];
    let network = far.block_on(Network::with(&script));
    let defaults = HeaderMap::from_iter([(header::AUTHORIZATION, value(&secrets.plant("default_headers")))]);
    let builder = abide::blocking::Client::builder().http(network.http()).default_headers(defaults);
    let mut text = forms(&builder);
    let client = builder.build().unwrap();
    let url = format!("{}?{}", network.url(), secrets.plant("a query"));
    for _ in 0..4 {
        let request = client.post(&url).header("cookie", secrets.plant("cookie")).body(secrets.plant("body"));
        text += &(forms(&client) + &forms(&request));
        let read = request.send().and_then(|response| {
            text += &(forms(&response) + &forms(response.history()));
            response.error_for_status()?.json::<u8>()
        });
        text += &story(&read.unwrap_err());
    }
    assert_eq!(network.seen().len(), 4);
    secrets.assert_hidden("blocking", &text);
}

#[tokio::test]
async fn classifiers_and_bulk_show_no_secret() {
    let mut secrets = Secrets::default();
    let answer = status(404).header("set-cookie", secrets.plant("set-cookie")).body(secrets.plant("the answer's body"));
    let net = Net::new([answer]);
    let said = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&said);
    let classify = move |answer: &abide::Answer<'_>| {
        heard.lock().unwrap().push_str(&forms(answer));
        None
    };
    let client = net.client().policy(Policy::default().classify(classify)).build().unwrap();
    let url = Url::parse(&format!("http://h.example/?{}", secrets.plant("a query"))).unwrap();
    let mut request = reqwest::Request::new(http::Method::POST, url);
    request.headers_mut().insert(header::AUTHORIZATION, value(&secrets.plant("authorization")));
    *request.body_mut() = Some(secrets.plant("body").into());
    let job = Job::new("id", request).idempotency_key(secrets.plant("idempotency_key"));
    let bulk = Bulk::new(client);
    let mut text = forms(&job) + &forms(&bulk);
    let mut run = bulk.run(stream::iter([job]));
    text += &forms(&run);
    while let Some(outcome) = run.next().await {
        text += &forms(&outcome);
    }
    text += &(run.report() + &said.lock().unwrap());
    assert!(text.contains("set-cookie"), "the classifier was asked");
    secrets.assert_hidden("bulk", &text);
}
