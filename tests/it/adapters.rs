//! What adapters do besides the behaviour cases.

use std::{error::Error as _, sync::Arc, time::Duration};

use abide::{
    Backoff, CallOptions, Limiter, NonIdempotent, Policy, Quota, ResponseExt, Stop,
    http::{self, Request, Response},
    middleware::{self, Abide},
    testing::{Fault, Scripted, Server},
    tower::AbideLayer,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use reqwest_retry::{Retryable, RetryableStrategy};
use tower::{Layer, Service, ServiceExt};

fn policy() -> Policy {
    Policy::default().backoff(Backoff::none()).no_budget()
}

async fn script(entries: Vec<Scripted>) -> Server {
    Server::builder().script(entries).start().await.unwrap()
}

#[tokio::test]
async fn hyper_is_a_service_beneath() {
    let server = script(vec![Scripted::status(503), Scripted::fault(Fault::Reset), Scripted::status(200)]).await;
    let hyper: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let mut client = AbideLayer::new(Limiter::default(), policy()).layer(hyper);
    let request = Request::put(server.url()).body(Full::from("body")).unwrap();
    let response = client.ready().await.unwrap().call(request).await.unwrap();
    assert_eq!((response.status().as_u16(), response.history().attempts().len()), (200, 3));
    assert_eq!(response.history().stop(), Stop::Answered);
    response.into_body().collect().await.unwrap();
    let bodies: Vec<_> = server.recorded().iter().map(|request| request.body.clone()).collect();
    assert_eq!(bodies, ["body"; 3]);
}

#[tokio::test]
async fn the_error_beneath_is_the_source() {
    let hyper: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let layer = AbideLayer::new(Limiter::default(), policy().retry_non_idempotent(NonIdempotent::WhenUnsent));
    let request = Request::post("http://127.0.0.1:1/").body(Full::default()).unwrap();
    let error = layer.layer(hyper).oneshot(request).await.unwrap_err();
    assert!(error.is_connect(), "{error:?}");
    assert_eq!((error.history().attempts().len(), error.history().stop()), (4, Stop::MaxAttempts));
    assert!(error.source().unwrap().is::<hyper_util::client::legacy::Error>());
}

#[tokio::test(start_paused = true)]
async fn clones_share_one_limiter() {
    let limiter = Limiter::builder().quota(Quota::bucket(1, Duration::from_secs(1))).build().unwrap();
    let beneath = tower::service_fn(|_: Request<()>| async { Ok::<_, std::io::Error>(Response::new(String::new())) });
    let one = AbideLayer::new(limiter, policy()).layer(beneath);
    let started = tokio::time::Instant::now();
    for client in [one.clone(), one.clone(), one] {
        client.oneshot(Request::get("http://h/").body(()).unwrap()).await.unwrap();
    }
    assert_eq!(started.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn bodies_are_sent_again_as_the_layer_is_told() {
    #[derive(Clone)]
    struct Own(&'static str);
    let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&calls);
    let beneath = tower::service_fn(move |request: Request<Own>| {
        seen.lock().unwrap().push(request.body().0);
        async { Ok::<_, std::io::Error>(Response::builder().status(503).body(String::new()).unwrap()) }
    });
    let put = || Request::put("/relative").header("host", "h").body(Own("x")).unwrap();
    let layer = AbideLayer::new(Limiter::default(), policy());
    let response = layer.layer(beneath.clone()).oneshot(put()).await.unwrap();
    assert_eq!(response.history().stop(), Stop::NotReplayable);
    let response = layer.clone_bodies().layer(beneath).oneshot(put()).await.unwrap();
    assert_eq!(response.history().stop(), Stop::MaxAttempts);
    assert_eq!(*calls.lock().unwrap(), ["x"; 5]);
}

#[tokio::test(start_paused = true)]
async fn options_come_in_the_extensions() {
    let beneath = tower::service_fn(|_: Request<()>| async {
        Ok::<_, std::io::Error>(Response::builder().status(503).body(String::new()).unwrap())
    });
    let mut request = Request::post("http://h/").body(()).unwrap();
    request.extensions_mut().insert(CallOptions::new().idempotent().policy(policy().max_attempts(2)));
    let response = AbideLayer::new(Limiter::default(), policy()).layer(beneath).oneshot(request).await.unwrap();
    assert_eq!(response.history().attempts().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_ready_sends_nothing() {
    #[derive(Clone)]
    struct Broken;
    impl Service<Request<()>> for Broken {
        type Response = Response<String>;
        type Error = std::io::Error;
        type Future = std::future::Ready<Result<Self::Response, Self::Error>>;
        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
            std::task::Poll::Ready(Err(std::io::Error::other("shut")))
        }
        fn call(&mut self, _: Request<()>) -> Self::Future {
            panic!("not ready")
        }
    }
    let layer = AbideLayer::new(Limiter::default(), policy());
    let error = layer.layer(Broken).oneshot(Request::get("http://h/").body(()).unwrap()).await.unwrap_err();
    assert_eq!(error.history().stop(), Stop::NotSent);
    assert_eq!(error.source().unwrap().to_string(), "shut");
}

#[tokio::test]
async fn a_policy_that_makes_no_sense_is_an_error_of_the_call() {
    let layer = AbideLayer::new(Limiter::default(), Policy::default().max_attempts(0));
    let beneath = tower::service_fn(|_: Request<()>| async { Ok::<_, std::io::Error>(Response::new(String::new())) });
    let error = layer.layer(beneath).oneshot(Request::get("http://h/").body(()).unwrap()).await.unwrap_err();
    assert!(error.is_builder());
}

struct NotFoundIsTransient;

impl RetryableStrategy for NotFoundIsTransient {
    fn handle(&self, result: &reqwest_middleware::Result<reqwest::Response>) -> Option<Retryable> {
        match result {
            Ok(response) if response.status() == 404 => Some(Retryable::Transient),
            Ok(response) if response.status() == 503 => Some(Retryable::Fatal),
            Ok(_) => None,
            Err(_) => Some(Retryable::Transient),
        }
    }
}

#[tokio::test]
async fn a_strategy_of_reqwest_retry_is_asked() {
    let server = script(vec![Scripted::status(404), Scripted::fault(Fault::Reset), Scripted::status(503)]).await;
    let abide = Abide::new(Limiter::default(), policy()).strategy(NotFoundIsTransient);
    let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new()).with(abide).build();
    let response = client.get(server.url()).send().await.unwrap();
    let statuses: Vec<_> = response.history().attempts().iter().map(|attempt| attempt.status()).collect();
    assert_eq!(statuses, [Some(http::StatusCode::NOT_FOUND), None, Some(http::StatusCode::SERVICE_UNAVAILABLE)]);
    assert_eq!(response.history().stop(), Stop::NotRetryable);
}

#[tokio::test]
async fn errors_of_the_middleware_tell_their_history() {
    let abide = Abide::new(Limiter::default(), policy().max_attempts(2));
    let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new()).with(abide).build();
    let error = client.get("http://127.0.0.1:1/").send().await.unwrap_err();
    let error = middleware::error(&error).unwrap();
    assert_eq!((error.history().attempts().len(), error.is_connect()), (2, true));
}

#[test]
fn scripts_block() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(script(vec![Scripted::status(503), Scripted::status(200).body("text")]));
    let client = abide::blocking::Client::builder().policy(policy()).build().unwrap();
    let response = client.get(server.url()).send().unwrap();
    assert_eq!(response.history().attempts().len(), 2);
    drop(client);
    assert_eq!(std::io::read_to_string(response).unwrap(), "text");
}

#[tokio::test]
async fn a_blocking_call_in_async_code_is_an_error() {
    let server = script(vec![Scripted::status(200)]).await;
    let client = abide::blocking::Client::new();
    let error = client.get(server.url()).send().unwrap_err();
    assert!(error.is_builder() && error.to_string().contains("async"), "{error}");
    let url = server.url().to_owned();
    let response = tokio::task::spawn_blocking(move || client.get(url).send().unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    drop(response);
}
