//! What telemetry adds to a call: nanoseconds of one call on a transport in memory, the best of many rounds.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench prints its table, and keeps time")]

use std::{
    future::ready,
    io,
    time::{Duration, Instant},
};

use abide::{Client, http};
use tracing::{Dispatch, Subscriber, dispatcher};
use tracing_subscriber::{Layer, layer::SubscriberExt, registry};

const ROUNDS: usize = 40;
const CALLS: u32 = 2_000;

/// Listens to all, and does nothing.
struct Idle;
impl<S: Subscriber> Layer<S> for Idle {}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap_or_else(|_| unreachable!());
    let metrics = if cfg!(feature = "metrics") { "with" } else { "without" };
    println!("one call, feature metrics {metrics}\n\n| listener | ns |\n| --- | --- |");
    let fmt = tracing_subscriber::fmt::layer().with_writer(io::sink);
    let listeners: [(&str, Dispatch); 3] = [
        ("none", Dispatch::none()),
        ("a registry, and a layer that does nothing", registry().with(Idle).into()),
        ("a registry, and lines of text to nowhere", registry().with(fmt).into()),
    ];
    for (name, listener) in listeners {
        let best = dispatcher::with_default(&listener, || runtime.block_on(best()));
        println!("| {name} | {} |", best.as_nanos() / u128::from(CALLS));
    }
}

async fn best() -> Duration {
    let client = Client::builder().transport(|_| ready(Ok(http::Response::new("").into()))).build();
    let client = client.unwrap_or_else(|error| unreachable!("{error}"));
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        for _ in 0..CALLS {
            let _ = client.get("https://api.example.com/v1/things?page=1").send().await;
        }
        best = best.min(started.elapsed());
    }
    best
}
