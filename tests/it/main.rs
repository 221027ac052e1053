//! The integration tests, one binary.

#[cfg(feature = "bulk")]
mod bulk;
mod call;
mod cases;
mod corpus;
#[cfg(feature = "cli")]
mod jobs;
mod limits;
mod memory;
mod network;
mod redirects;
#[cfg(feature = "cli")]
mod serve;
mod server;
mod support;
