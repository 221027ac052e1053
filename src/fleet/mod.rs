//! One limit for all processes that share a key, kept in Redis or Valkey.
//!
//! A process *leases* permits from the store in batches and spends them by itself, so that the store is asked much less
//! often than once a request. A lease lasts a twenty-fifth of the window, and the store counts what it leased over the
//! window and a lease: no window of the server's sees more than its limit, whichever process sent it.
//!
//! | file | what for |
//! | --- | --- |
//! | `terms` | a quota as the store keeps it, and the part of it that one process may use alone; pure |
//! | `lease` | what this process has leased of one quota, and what it owes; pure |
//! | `share` | when a key asks the store, and what holds while the store is away; pure |
//! | `store` | what is asked of a store, and what it answers |
//! | `hub` | what the keys and the task tell each other |
//! | `address`, `link`, `redis` | where a store is, and how it is asked |
//! | `cause`, `look` | why it is of no use, in words; what its URL has wrong |
//! | `lease.lua` | the store's one decision, by the store's own clock |
//! | `task` | the one task of a fleet: all of its I/O |
//! | `builder` | the public face |
#![cfg_attr(not(feature = "redis"), expect(dead_code, unreachable_pub, reason = "nothing makes a fleet"))]

pub(crate) mod terms;
pub(crate) mod lease;
pub(crate) mod share;
pub(crate) mod store;
pub(crate) mod hub;

#[cfg(feature = "redis")]
mod address;
#[cfg(feature = "redis")]
pub(crate) mod link;
#[cfg(feature = "redis")]
mod cause;
#[cfg(feature = "redis")]
mod look;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod task;
#[cfg(feature = "redis")]
mod builder;
#[cfg(test)]
#[cfg(feature = "redis")]
mod memory;
#[cfg(test)]
#[cfg(feature = "redis")]
mod script_tests;
#[cfg(test)]
#[cfg(feature = "redis")]
mod simulation;
#[cfg(test)]
#[cfg(feature = "redis")]
mod tests;

#[cfg(feature = "redis")]
pub use builder::{Fleet, FleetBuilder};
#[cfg(feature = "redis")]
pub use store::StoreLoss;
