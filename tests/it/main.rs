//! The integration tests, one binary.

mod call;
mod cases;
mod corpus;
#[cfg(feature = "cli")]
mod explain;
mod fuzzed;
mod limits;
mod memory;
mod network;
mod redirects;
mod replay;
#[cfg(feature = "cli")]
mod serve;
mod server;
mod support;
