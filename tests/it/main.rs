//! The integration tests, one binary.

mod limits;
