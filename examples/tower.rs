//! A layer over hyper's client and over reqwest's own service: one limiter for both.
//!
//! `cargo run --example tower --features testing,tower`
#![expect(clippy::print_stdout, reason = "an example prints")]

use abide::{
    CallOptions, Limiter, Policy, ResponseExt, http,
    reqwest::{self, Method},
    testing::{Scripted, Server},
    tower::AbideLayer,
};
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::{client::legacy, rt::TokioExecutor};
use tower::{Service, ServiceBuilder, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let busy = || Scripted::status(429).header("retry-after", "1");
    let script = vec![busy(), Scripted::status(200), Scripted::status(503), Scripted::status(200)];
    let server = Server::builder().script(script).start().await?;
    let abide = AbideLayer::new(Limiter::default(), Policy::default());

    let hyper: legacy::Client<_, Full<Bytes>> = legacy::Client::builder(TokioExecutor::new()).build_http();
    let mut client = ServiceBuilder::new().layer(abide.clone()).service(hyper);
    let mut charge = http::Request::post(server.url()).body(Full::from("amount=10"))?;
    charge.extensions_mut().insert(CallOptions::new().auto_idempotency_key());
    let response = client.ready().await?.call(charge).await?;
    println!("hyper: {} after {} attempts", response.status(), response.history().attempts().len());

    let transport = reqwest::Client::builder().retry(reqwest::retry::never()).build()?;
    let client = ServiceBuilder::new().layer(abide).service(transport);
    let response = client.oneshot(reqwest::Request::new(Method::GET, server.url().parse()?)).await?;
    println!("reqwest: {} after {} attempts", response.status(), response.history().attempts().len());
    Ok(())
}
