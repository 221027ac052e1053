//! The integration tests, one binary.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests fail by panic, print what they count and keep their own time"
)]

mod adapters;
#[cfg(feature = "cli")]
mod bulk;
mod call;
mod cancel;
mod cases;
mod chaos;
#[cfg(feature = "cli")]
mod chaos_bulk;
mod charge;
mod corpus;
mod deadline;
#[cfg(feature = "cli")]
mod explain;
#[cfg(feature = "cli")]
mod fleet;
#[cfg(feature = "cli")]
mod fleet_cli;
#[cfg(feature = "cli")]
mod fleet_failover;
#[cfg(feature = "cli")]
mod fleet_processes;
#[cfg(feature = "cli")]
mod fleet_refusals;
#[cfg(feature = "cli")]
mod fleet_store;
mod fuzzed;
mod hostile;
#[cfg(feature = "cli")]
mod hostile_bulk;
mod hostile_h2;
mod hostile_limits;
mod jitter;
#[cfg(feature = "cli")]
mod jobs;
#[cfg(feature = "cli")]
mod jobs_files;
mod limits;
mod limits_learning;
mod limits_line;
mod limits_proofs;
mod memory;
mod network;
#[cfg(feature = "cli")]
mod push;
mod redirects;
mod replay;
mod rules;
#[cfg(feature = "cli")]
mod serve;
#[cfg(feature = "bulk")]
mod secrets;
#[cfg(feature = "cli")]
mod secrets_cli;
#[cfg(feature = "cli")]
mod secrets_fleet;
mod server;
mod soak;
#[cfg(feature = "cli")]
mod streams;
#[cfg(feature = "cli")]
mod streams_group;
mod support;
mod surface;
mod telemetry;
#[cfg(feature = "cli")]
mod terminal;
