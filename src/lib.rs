//! The calling side of HTTP rate limits.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backoff;
mod body;
mod budget;
mod builder;
mod call;
mod client;
mod clock;
mod error;
mod event;
pub mod headers;
mod history;
mod idempotency;
mod key_by;
mod limit;
mod outgoing;
mod policy;
mod redirect;
mod request;
mod run;
mod sent;
#[cfg(feature = "testing")]
pub mod testing;
mod told;
mod verdict;
mod wire;

pub use backoff::{Backoff, Jitter};
pub use budget::RetryBudget;
pub use builder::ClientBuilder;
pub use client::Client;
pub use error::{BoxError, Error};
pub use event::{Event, Observer, WaitCause};
pub use history::{Attempt, History, Note, ResponseExt, Stop, Waited};
pub use idempotency::{KeyFormat, KeyScheme};
pub use key_by::KeyBy;
pub use limit::{Key, Limiter, LimiterBuilder, ParseQuotaError, Permit, Quota, Refused, Unit};
pub use policy::{NonIdempotent, Policy};
pub use request::RequestBuilder;
pub use sent::{Cause, SentState};
pub use verdict::{Answer, Classify, Verdict};
pub use {http, reqwest};
