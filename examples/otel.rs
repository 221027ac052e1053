//! The spans of a call by OpenTelemetry's conventions, as lines on stdout.
//!
//! `cargo run --example otel --features testing`
//!
//! For a collector, put `tracing_opentelemetry::layer()` of the crate `tracing-opentelemetry` in place of the layer for
//! text: it reads the same fields (`otel.name`, `otel.kind`, `otel.status_code`), and makes them a trace. It is left
//! out here because it brings some thirty crates. Metrics come by the feature `metrics` and any recorder of that
//! facade.

use abide::{
    Client, http,
    testing::{Fault, Scripted, Server},
};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt::format::FmtSpan,
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = tracing_subscriber::fmt::layer().with_span_events(FmtSpan::CLOSE).with_ansi(false);
    tracing_subscriber::registry().with(text).with(Targets::new().with_target("abide", LevelFilter::INFO)).init();

    let busy = Scripted::status(429).header("retry-after", "1");
    let script = vec![busy, Scripted::fault(Fault::Reset), Scripted::status(200)];
    let server = Server::builder().script(script).start().await?;
    let request = Client::new().get(format!("{}/things?token=secret", server.url()));
    let response = request.header(http::header::AUTHORIZATION, "Bearer secret").send().await?;
    response.bytes().await?;
    Ok(())
}
