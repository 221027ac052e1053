//! Charges as Stripe takes them: keyed, 25 a second, never twice.
//!
//! `cargo run --example stripe --features testing`
#![expect(clippy::print_stdout, reason = "an example prints")]

use abide::{
    Client, KeyScheme, NonIdempotent, Policy, Quota, ResponseExt,
    http::HeaderName,
    testing::{Dialect, Server},
};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder().limit(Quota::per_second(25)).dialect(Dialect::Stripe).start().await?;
    // Its answers tell no limit, so it is told here: docs.stripe.com/rate-limits.
    let client = Client::builder()
        .quota(Quota::per_second(25))
        // 409: an earlier request with the key still runs. Keys are good for 24 hours.
        .key_scheme(KeyScheme::new(HeaderName::from_static("idempotency-key")).retry_conflict(true))
        .policy(Policy::default().retry_non_idempotent(NonIdempotent::WhenUnsent))
        .build()?;

    let mut charges = JoinSet::new();
    for order in 0..40 {
        let charge = client
            .post(format!("{}/charge", server.url()))
            .bearer_auth("sk_test_123")
            // From the order, not from chance: a second run of this program charges nothing twice.
            .idempotency_key(format!("order-{order}"))
            .form(&[("amount", "1000"), ("currency", "eur")]);
        charges.spawn(charge.send());
    }
    let mut attempts = 0;
    while let Some(charge) = charges.join_next().await {
        let response = charge??;
        assert!(response.status().is_success(), "{}", response.status());
        attempts += response.history().attempts().len();
    }
    println!("{} charges made by {attempts} attempts, {} refused", server.charges().total(), server.stats().refused);
    Ok(())
}
