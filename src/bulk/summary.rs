//! What a run came to, in numbers.

use std::{fmt, time::Duration};

use serde::Serialize;

/// Totals over all runs of a job: the run itself and those that it resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// Rows with a 2xx or a 304.
    pub ok: u64,
    /// Rows with another result.
    pub failed: u64,
    /// Rows without a result: they may have been sent, and may not be repeated.
    pub unknown: u64,
    /// Attempts of all rows.
    pub attempts: u64,
    /// Attempts that were refused for their rate.
    pub throttled: u64,
    /// Seconds in which at least one row waited on a limit.
    pub waited_s: f64,
    /// Seconds that the runs took.
    pub elapsed_s: f64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ok, {} failed, {} unknown; {} attempts, {} throttled; waited {:.1} s on limits, took {:.1} s",
            self.ok, self.failed, self.unknown, self.attempts, self.throttled, self.waited_s, self.elapsed_s
        )
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Progress {
    /// Rows with a result, those of earlier runs included.
    pub done: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Attempts of this run that were refused for their rate.
    pub throttled: u64,
    /// Attempts a second, in the last ten seconds.
    pub rate: f64,
    /// The strictest of the configured limits, in requests a second.
    pub limit: Option<f64>,
    /// Requests on the wire.
    pub in_flight: usize,
    /// How long at least one row waited on a limit.
    pub waited: Duration,
    /// Since the run began.
    pub elapsed: Duration,
}
