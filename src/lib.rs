//! The calling side of HTTP rate limits: a [reqwest] client that keeps every attempt below the limit that the server
//! advertises, waits as long as the server asks, and repeats only what is safe to repeat.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = abide::Client::new(); // once; cheap to clone
//! let text = client.get("https://api.example.com/v1/things").send().await?.text().await?;
//! # let _ = text;
//! # Ok(())
//! # }
//! ```
//!
//! Nothing else is needed: the limit of each API key is learned from the answers. What you know better you say:
//! [`ClientBuilder`] for the client, [`Policy`] for the rules of a call, [`RequestBuilder`] for one request. Each
//! response has its [`History`]: attempts, waits, and why it stopped.
//!
//! ```text
//! send() ─▶ permit ─▶ request ─▶ what the answer says ─▶ what it means ─▶ Ok(response, with its history)
//!             ▲                          │                    │
//!             │        limits learn, the key's pause          │ safe to repeat, in time, within budget
//!             └──────── wait: as asked, else a backoff ◀──────┘
//! ```
//!
//! The guide has the [flow and what always holds](guide::flow), [tuning](guide::tuning),
//! [one limit for many machines](guide::fleet), [tests of your own](guide::testing), [telemetry](guide::telemetry),
//! [security](guide::security), and [coming from reqwest-retry, governor or backon](guide::migrating). `examples/` has
//! recipes for Stripe, GitHub, OpenAI, Shopify and Discord, which run offline.
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | `default-tls`, `http2`, `charset`, `system-proxy` | on by default, as in reqwest |
//! | `rustls`, `rustls-no-provider`, `gzip`, `brotli`, `zstd`, `deflate`, `cookies`, `hickory-dns`, `socks` | passed on to reqwest |
//! | `tower` | `tower::AbideLayer`, over any HTTP client that is a service |
//! | `middleware` | `middleware::Abide`, for reqwest-middleware |
//! | `reqwest-retry` | `middleware`, and bridges from reqwest-retry's backoff and strategies |
//! | `blocking` | `blocking::Client`, for scripts |
//! | `metrics` | histograms, counters and gauges through the `metrics` facade |
//! | `redis` | `fleet::Fleet`, one limit for many processes, kept in Redis or Valkey |
//! | `bulk` | `bulk::Bulk`, jobs of many requests, journaled and resumable; with `redis` also rows from a stream |
//! | `testing` | `testing::Server`, the practice server, and the transport in memory |
//! | `cli` | the command `abide`: `run`, `push`, `explain`, `serve` |
//!
//! Spans and events go to `tracing` without a feature; while nobody listens they are a flag that is read.
//!
//! [reqwest]: https://docs.rs/reqwest
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod builder;
mod request;
mod run;
mod call;
mod repeat;
mod pause;
mod wire;
mod head;
mod transport;
#[cfg(any(feature = "tower", feature = "middleware"))]
mod adapter;
#[cfg(feature = "tower")]
mod replay;
#[cfg(feature = "tower")]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
#[path = "layer.rs"]
pub mod tower;
#[cfg(feature = "middleware")]
#[cfg_attr(docsrs, doc(cfg(feature = "middleware")))]
pub mod middleware;
#[cfg(feature = "reqwest-retry")]
mod retry;
mod outgoing;
mod redirect;
mod body;
mod verdict;
#[cfg(test)]
mod verdict_table;
mod told;
mod policy;
mod backoff;
mod budget;
mod idempotency;
mod key_by;
mod sent;
mod history;
pub mod headers;
mod limit;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub mod fleet;
#[cfg(not(feature = "redis"))]
mod fleet;
mod clock;
mod event;
mod telemetry;
#[cfg(feature = "metrics")]
#[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
pub mod metrics;
mod error;
#[cfg(feature = "blocking")]
#[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
pub mod blocking;
#[cfg(any(doc, doctest))]
pub mod guide;
#[cfg(feature = "bulk")]
#[cfg_attr(docsrs, doc(cfg(feature = "bulk")))]
pub mod bulk;
#[cfg(feature = "testing")]
#[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
pub mod testing;

#[cfg(any(feature = "tower", feature = "middleware"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "tower", feature = "middleware"))))]
pub use adapter::CallOptions;
pub use backoff::{Backoff, Jitter};
pub use budget::RetryBudget;
pub use builder::ClientBuilder;
pub use client::Client;
pub use error::{BoxError, Error};
pub use event::{Event, Observer, WaitCause};
pub use history::{Attempt, History, Note, ResponseExt, Stop, Waited};
pub use idempotency::{KeyFormat, KeyScheme};
pub use key_by::KeyBy;
pub use limit::{Acquire, Key, Limiter, LimiterBuilder, ParseQuotaError, Permit, Quota, Refused, Snapshot, Unit};
pub use policy::{NonIdempotent, Policy};
pub use request::RequestBuilder;
pub use sent::{Cause, SentState};
pub use verdict::{Answer, Classify, Verdict};
pub use {http, reqwest};

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
