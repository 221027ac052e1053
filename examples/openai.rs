//! Limits in requests and in tokens, as OpenAI and those like it have them.
//!
//! `cargo run --example openai --features testing`
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use abide::{
    Client, Policy, Quota, Unit,
    testing::{Dialect, Server},
};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let second = Duration::from_secs(1);
    let (requests, tokens) = (Quota::window(50, second), Quota::window(2_000, second).unit(Unit::Tokens));
    let server =
        Server::builder().limit(requests.clone()).limit(tokens.clone()).dialect(Dialect::OpenAi).start().await?;
    let client = Client::builder()
        .quota(requests)
        .quota(tokens)
        // Answers take long: the deadline is for the head, and the body streams.
        .policy(Policy::default().attempt_timeout(Duration::from_secs(300)).deadline(Duration::from_secs(600)))
        .build()?;

    let mut calls = JoinSet::new();
    for prompt in 0..30 {
        // An estimate, before the call: the prompt's tokens and max_tokens.
        let estimate = 100 + prompt;
        let call = client
            .post(format!("{}/v1/chat/completions", server.url()))
            .bearer_auth("sk-123")
            .json(&serde_json::json!({"model": "small", "tokens": estimate, "max_tokens": 50}))
            .units(Unit::Tokens, estimate)
            // Asking twice costs twice, but does no harm.
            .idempotent();
        calls.spawn(call.send());
    }
    let mut well = 0;
    while let Some(call) = calls.join_next().await {
        well += u32::from(call??.status().is_success());
    }
    println!("{well} answers, {} refused", server.stats().refused);
    Ok(())
}
