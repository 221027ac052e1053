//! The calling side of HTTP rate limits.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backoff;
mod budget;
mod call;
mod client;
mod clock;
mod error;
mod event;
pub mod headers;
mod history;
mod limit;
mod policy;
mod request;
mod run;
#[cfg(feature = "testing")]
pub mod testing;
mod verdict;

pub use error::Error;
pub use limit::{Acquire, Key, Limiter, LimiterBuilder, ParseQuotaError, Permit, Quota, Refused, Snapshot, Unit};
pub use {http, reqwest};
