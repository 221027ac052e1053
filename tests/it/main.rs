//! The integration tests, one binary.

mod call;
#[cfg(test)]
mod cases;
mod corpus;
mod limits;
mod memory;
#[cfg(test)]
mod network;
mod redirects;
#[cfg(feature = "cli")]
mod serve;
mod server;
#[cfg(test)]
mod support;
