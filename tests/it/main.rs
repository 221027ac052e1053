//! The integration tests, one binary.

mod corpus;
mod explain;
mod fuzzed;
mod replay;
