//! The integration tests, one binary.

#[cfg(feature = "cli")]
mod serve;
mod server;
