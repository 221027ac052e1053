//! What a run shows of itself, on its way and at its end.

use std::{io, time::Duration};

use super::{End, Progress, Run, Stopper, Summary, journal::Past, report};
use crate::{Unit, clock};

impl<S> Run<S> {
    /// Stops the run from elsewhere.
    pub fn stopper(&self) -> Stopper {
        Stopper::of(&self.gate)
    }

    /// Names the run; idempotency keys are derived from it.
    pub fn id(&self) -> String {
        self.run.to_string()
    }

    /// Why it ended; `None`: it has not.
    pub fn end(&self) -> Option<End> {
        self.end.filter(|_| self.closed)
    }

    /// Why it could not start or go on.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// What is worth knowing before the run is polled, a sentence each: how many rows it sends again that may be executed
    /// twice, and files that cannot be kept from other runs.
    pub fn warnings(&self) -> &[String] {
        self.books.as_ref().map_or(&[], |books| books.warnings.as_slice())
    }

    /// Totals, over all runs of a resumed job.
    pub fn summary(&self) -> Summary {
        let Some(books) = &self.books else { return Summary::default() };
        match self.closed && self.error.is_none() {
            true => books.summary(Past::default()),
            false => books.so_far(self.past()),
        }
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let (now, summary) = (clock::now(), self.summary());
        Progress {
            done: summary.ok + summary.failed,
            failed: summary.failed,
            throttled: summary.throttled,
            rate: self.gate.with_stats(|stats| stats.rate(now, Duration::from_secs(10))),
            limit: self.limit().map(|(rate, _)| rate),
            in_flight: self.gate.on_wire(),
            waited: self.gate.limited(now),
            elapsed: now.saturating_duration_since(self.started),
        }
    }

    /// The strictest of the configured limits, in requests a second, and its period.
    fn limit(&self) -> Option<(f64, Duration)> {
        let quotas = self.start.client.limiter().quotas().iter();
        let rates = quotas.filter(|quota| *quota.unit_ref() == Unit::Requests);
        let rates = rates.map(|quota| (f64::from(quota.units()) / quota.per().as_secs_f64(), quota.per()));
        rates.min_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// A page of HTML about this run, complete in itself: requests a second against the limit, latencies, statuses,
    /// waits, slow and failed rows, and the settings given by [`Bulk::note`](super::Bulk::note).
    pub fn report(&self) -> String {
        let stats = self.gate.with_stats(|stats| stats.clone());
        let elapsed = clock::now().saturating_duration_since(self.started);
        report::page(&report::Facts {
            stats: &stats,
            summary: self.summary(),
            end: self.end,
            elapsed,
            limit: self.limit(),
            settings: &self.start.options,
            run: self.run,
        })
    }
}
