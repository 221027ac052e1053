//! Shopify's leaky bucket: 40 at once, 2 a second, per shop.
//!
//! `cargo run --example shopify --features testing`
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use abide::{
    Client, Key, KeyBy, Quota,
    testing::{Algorithm, Dialect, Server},
};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Ten times as fast as there, so that the example ends.
    let bucket = Quota::bucket(20, Duration::from_secs(1)).burst(40);
    let server = Server::builder()
        .limit(bucket.clone())
        .algorithm(Algorithm::TokenBucket)
        .dialect(Dialect::Shopify)
        .start()
        .await?;
    let client = Client::builder()
        .quota(bucket)
        // The shop is in the host there; here it is in the path.
        .key_by(KeyBy::with(|request| Key::from(request.url().path().split('/').nth(1).unwrap_or_default())))
        .build()?;

    let mut calls = JoinSet::new();
    for order in 0..80 {
        let url = format!("{}/my-shop/admin/orders/{order}.json", server.url());
        calls.spawn(client.get(url).header("x-shopify-access-token", "shpat_123").send());
    }
    let mut well = 0;
    while let Some(call) = calls.join_next().await {
        well += u32::from(call??.status().is_success());
    }
    println!("{well} orders, {} refused", server.stats().refused);
    Ok(())
}
