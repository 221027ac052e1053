//! What telemetry adds to a call: nanoseconds of one call on a transport in memory, the best of many rounds.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench prints its table, and keeps time")]

use std::{
    future::ready,
    io,
    time::{Duration, Instant},
};

use abide::{Client, http};
use tracing::{Dispatch, Subscriber, dispatcher};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    fmt::format::FmtSpan,
    layer::SubscriberExt,
    registry,
    registry::LookupSpan,
};

/// Short rounds and many: the best of them is one that nothing else disturbed.
const ROUNDS: usize = 1_500;
const CALLS: u32 = 50;

type Listener = fn() -> Dispatch;

/// Listens to all, and does nothing.
struct Idle;
impl<S: Subscriber> Layer<S> for Idle {}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap_or_else(|_| unreachable!());
    let metrics = if cfg!(feature = "metrics") { "with" } else { "without" };
    println!("one call, feature metrics {metrics}\n\n| listener | ns |\n| --- | --- |");
    // Made one after the other: a listener that exists is asked, whoever is the default.
    let listeners: [(&str, Listener); 4] = [
        ("none", Dispatch::none),
        ("a registry, and a layer that does nothing, for `abide=info`", || {
            registry().with(Idle.with_filter(info())).into()
        }),
        ("the same for `abide=debug`: an event for each decision, too", || {
            registry().with(Idle.with_filter(debug())).into()
        }),
        ("lines of text to nowhere, for `abide=info`", || registry().with(text().with_filter(info())).into()),
    ];
    for (name, listener) in listeners {
        let best = dispatcher::with_default(&listener(), || runtime.block_on(best()));
        println!("| {name} | {} |", best.as_nanos() / u128::from(CALLS));
    }
}

fn info() -> Targets {
    Targets::new().with_target("abide", LevelFilter::INFO)
}

fn debug() -> Targets {
    Targets::new().with_target("abide", LevelFilter::DEBUG)
}

fn text<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    tracing_subscriber::fmt::layer().with_span_events(FmtSpan::CLOSE).with_writer(io::sink)
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
