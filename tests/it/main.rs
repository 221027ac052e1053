//! The integration tests, one binary.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests fail by panic, print what they count and keep their own time"
)]

mod call;
mod cases;
mod corpus;
#[cfg(feature = "cli")]
mod explain;
mod fuzzed;
mod limits;
mod limits_learning;
mod limits_line;
mod limits_proofs;
mod memory;
mod network;
mod redirects;
mod replay;
#[cfg(feature = "cli")]
mod serve;
mod server;
mod support;
