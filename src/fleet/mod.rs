//! One limit for many processes that share a key, kept in Redis or Valkey.

#[expect(dead_code, reason = "what goes over the link is on its way")]
mod link;
