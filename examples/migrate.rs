//! From reqwest-retry: its backoff and its strategy stay, three lines change.
//!
//! `cargo run --example migrate --features testing,reqwest-retry`
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use abide::{Limiter, ResponseExt, middleware::Abide, testing::Scripted, testing::Server};
use reqwest_middleware::ClientBuilder;
use reqwest_retry::DefaultRetryableStrategy;
use retry_policies::policies::ExponentialBackoff;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let busy = Scripted::status(429).header("retry-after", "1");
    let server = Server::builder().script(vec![busy, Scripted::status(200)]).start().await?;
    let bounds = (Duration::from_millis(100), Duration::from_secs(10));
    let backoff = ExponentialBackoff::builder().retry_bounds(bounds.0, bounds.1).build_with_max_retries(3);

    // Before: .with(RetryTransientMiddleware::new_with_policy(backoff))
    let abide = Abide::new(Limiter::default(), backoff.into()).strategy(DefaultRetryableStrategy);
    let client = ClientBuilder::new(reqwest::Client::new()).with(abide).build();

    let response = client.get(server.url()).send().await?;
    println!("{} after {} attempts", response.status(), response.history().attempts().len());
    Ok(())
}
