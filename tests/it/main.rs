//! The integration tests, one binary.

mod call;
mod corpus;
mod limits;
mod memory;
mod redirects;
#[cfg(feature = "cli")]
mod serve;
mod server;
