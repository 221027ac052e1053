//! The integration tests, one binary.

mod call;
mod memory;
mod redirects;
