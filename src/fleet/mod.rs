//! One limit for many processes that share a key, kept in Redis or Valkey.

#[cfg_attr(not(feature = "bulk"), expect(dead_code, reason = "streams of jobs use it so far"))]
pub(crate) mod link;
