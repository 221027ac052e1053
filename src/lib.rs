//! The calling side of HTTP rate limits.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod builder;
mod request;
mod run;
mod call;
mod wire;
mod outgoing;
mod redirect;
mod body;
mod verdict;
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
mod clock;
mod event;
mod error;
#[cfg(feature = "bulk")]
#[cfg_attr(docsrs, doc(cfg(feature = "bulk")))]
pub mod bulk;
#[cfg(feature = "testing")]
pub mod testing;

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
