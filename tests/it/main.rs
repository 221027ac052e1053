//! The integration tests, one binary.

mod call;
mod cancel;
mod cases;
mod charge;
mod corpus;
mod jitter;
mod limits;
mod memory;
mod network;
mod redirects;
#[cfg(feature = "cli")]
mod serve;
mod server;
mod support;
