//! The practice server.
