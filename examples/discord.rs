//! Limits that are told per route and learned from the answers, as Discord's: nothing is configured.
//!
//! `cargo run --example discord --features testing`
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use abide::{
    Client, Quota,
    testing::{Dialect, Server},
};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limit = Quota::window(10, Duration::from_secs(1));
    let server = Server::builder().limit(limit).dialect(Dialect::Discord).start().await?;
    let client = Client::builder().user_agent("DiscordBot (https://example.com, 1.0)").build()?;

    let mut calls = JoinSet::new();
    for _ in 0..30 {
        // A message that is sent twice is a nuisance: a nonce makes it one.
        let call = client
            .post(format!("{}/channels/42/messages", server.url()))
            .header("authorization", "Bot 123")
            .json(&serde_json::json!({"content": "hello", "enforce_nonce": true}))
            .idempotent();
        calls.spawn(call.send());
    }
    let mut well = 0;
    while let Some(call) = calls.join_next().await {
        well += u32::from(call??.status().is_success());
    }
    println!("{well} messages, {} refused", server.stats().refused);
    Ok(())
}
