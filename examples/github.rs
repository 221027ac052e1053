//! GitHub's limits: so many points an hour, told in headers, and 403 where others say 429.
//!
//! `cargo run --example github --features testing`
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use abide::{
    Client, Policy, Quota,
    http::{HeaderMap, HeaderName, HeaderValue},
    testing::{Dialect, Server},
};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // There it is 5,000 an hour; here 40 in two seconds, so that the example ends.
    let limit = Quota::window(40, Duration::from_secs(2));
    let server = Server::builder().limit(limit).dialect(Dialect::GitHub).start().await?;
    let accept = HeaderMap::from_iter([(
        HeaderName::from_static("accept"),
        HeaderValue::from_static("application/vnd.github+json"),
    )]);
    let client = Client::builder()
        .user_agent("abide-example/1.0")
        .default_headers(accept)
        // At most 100 at once, and 403 with a wait is a rate limit: docs.github.com, «Rate limits for the REST API».
        .max_in_flight(100)
        .policy(Policy::default().rate_limit_403(true).deadline(Duration::from_secs(60)))
        .build()?;

    let mut calls = JoinSet::new();
    for page in 0..80 {
        let url = format!("{}/repos/rust-lang/rust/issues?page={page}", server.url());
        calls.spawn(client.get(url).bearer_auth("ghp_123").send());
    }
    let mut well = 0;
    while let Some(call) = calls.join_next().await {
        well += u32::from(call??.status().is_success());
    }
    println!(
        "{well} pages, {} refused, at most {} in any window",
        server.stats().refused,
        server.stats().most_in_window
    );
    Ok(())
}
