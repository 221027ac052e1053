//! What a run looked like over time, in constant memory: for progress and report.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::Outcome;
use crate::Waited;

/// A run over time. Bins grow twice as wide whenever there would be too many.
#[derive(Clone, Debug)]
pub(super) struct Stats {
    pub(super) started: Instant,
    pub(super) width: Duration,
    pub(super) bins: VecDeque<Bin>,
    /// Of rows, by their last answer; 0: none.
    pub(super) statuses: BTreeMap<u16, u64>,
    pub(super) failures: BTreeMap<&'static str, u64>,
    /// Of all rows.
    pub(super) waits: Waited,
    pub(super) latency: Latency,
    pub(super) slowest: Vec<Seen>,
    pub(super) failed: Vec<Seen>,
    pub(super) sent: u64,
}

/// One span of time.
#[derive(Clone, Debug, Default)]
pub(super) struct Bin {
    /// Attempts that went on the wire.
    pub(super) sent: u64,
    /// Answers by class, 0: none, 1: throttled.
    pub(super) answers: [u64; 6],
    pub(super) latency: Latency,
}

/// A row to be shown.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) id: String,
    pub(super) line: u64,
    pub(super) status: Option<u16>,
    pub(super) attempts: u32,
    pub(super) took: Duration,
    pub(super) elapsed: Duration,
    pub(super) waited: Duration,
    pub(super) error: Option<String>,
}

/// Bins in a report, at most.
const MOST_BINS: usize = 240;

/// The narrowest bin.
const NARROWEST: Duration = Duration::from_millis(50);

const SLOWEST: usize = 20;
const FAILED: usize = 100;

impl Stats {
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            width: NARROWEST,
            bins: VecDeque::new(),
            statuses: BTreeMap::new(),
            failures: BTreeMap::new(),
            waits: Waited::default(),
            latency: Latency::default(),
            slowest: Vec::new(),
            failed: Vec::new(),
            sent: 0,
        }
    }

    /// An attempt went on the wire.
    pub(super) fn sent(&mut self, now: Instant) {
        self.sent += 1;
        self.bin(now).sent += 1;
    }

    /// A row is over.
    pub(super) fn over(&mut self, outcome: &Outcome, now: Instant) {
        let status = outcome.status.map(|status| status.as_u16());
        *self.statuses.entry(status.unwrap_or(0)).or_default() += 1;
        if let Some(failure) = &outcome.error {
            *self.failures.entry(failure.kind).or_default() += 1;
        }
        for attempt in &outcome.history {
            let waited = attempt.waited();
            self.waits.limiter = self.waits.limiter.saturating_add(waited.limiter);
            self.waits.backoff = self.waits.backoff.saturating_add(waited.backoff);
            self.waits.server = self.waits.server.saturating_add(waited.server);
            self.latency.add(attempt.elapsed());
            let bin = self.bin(now);
            bin.latency.add(attempt.elapsed());
            bin.answers[class(attempt.status().map(|status| status.as_u16()))] += 1;
        }
        self.show(outcome);
    }

    fn show(&mut self, outcome: &Outcome) {
        let took = outcome.history.iter().map(crate::Attempt::elapsed).max().unwrap_or_default();
        let slow = self.slowest.len() < SLOWEST || self.slowest.last().is_some_and(|last| last.took < took);
        if slow {
            let place = self.slowest.partition_point(|seen| seen.took >= took);
            self.slowest.insert(place, Seen::of(outcome, took));
            self.slowest.truncate(SLOWEST);
        }
        if !outcome.is_ok() && self.failed.len() < FAILED {
            self.failed.push(Seen::of(outcome, took));
        }
    }

    /// Attempts a second in the last `span`.
    pub(super) fn rate(&self, now: Instant, span: Duration) -> f64 {
        let from = now.saturating_duration_since(self.started).saturating_sub(span);
        let first = usize::try_from(from.as_nanos() / self.width.as_nanos()).unwrap_or(usize::MAX);
        let sent: u64 = self.bins.iter().skip(first).map(|bin| bin.sent).sum();
        let skipped = self.width.saturating_mul(u32_of(first)).min(from);
        let covered = now.saturating_duration_since(self.started).saturating_sub(skipped);
        if covered.is_zero() { 0.0 } else { float(sent) / covered.as_secs_f64() }
    }

    fn bin(&mut self, now: Instant) -> &mut Bin {
        let at = now.saturating_duration_since(self.started);
        let mut place = usize::try_from(at.as_nanos() / self.width.as_nanos()).unwrap_or(usize::MAX);
        while place >= MOST_BINS {
            self.widen();
            place /= 2;
        }
        while self.bins.len() <= place {
            self.bins.push_back(Bin::default());
        }
        &mut self.bins[place]
    }

    fn widen(&mut self) {
        self.width = self.width.saturating_mul(2);
        let mut old = std::mem::take(&mut self.bins).into_iter();
        while let Some(mut bin) = old.next() {
            if let Some(next) = old.next() {
                bin.join(&next);
            }
            self.bins.push_back(bin);
        }
    }
}

impl Bin {
    fn join(&mut self, other: &Self) {
        self.sent += other.sent;
        self.latency.join(&other.latency);
        for (sum, more) in self.answers.iter_mut().zip(other.answers) {
            *sum += more;
        }
    }
}

impl Seen {
    fn of(outcome: &Outcome, took: Duration) -> Self {
        Self {
            id: outcome.id.clone(),
            line: outcome.line,
            status: outcome.status.map(|status| status.as_u16()),
            attempts: outcome.attempts,
            took,
            elapsed: outcome.elapsed,
            waited: outcome.waited,
            error: outcome.error.as_ref().map(|failure| format!("{}: {}", failure.kind, failure.message)),
        }
    }
}

/// 0: no answer, 1: throttled, else the hundreds.
fn class(status: Option<u16>) -> usize {
    match status {
        None => 0,
        Some(429) => 1,
        Some(status) => usize::from(status / 100).clamp(2, 5),
    }
}

/// Counts of durations by size, four steps to a doubling: percentiles within 19 %.
#[derive(Clone, Debug, Default)]
pub(super) struct Latency {
    counts: Vec<u64>,
    pub(super) total: u64,
}

/// Steps: 100 µs · 2^(n/4), to about 30 min.
const STEPS: usize = 96;

impl Latency {
    fn add(&mut self, duration: Duration) {
        self.counts.resize(STEPS, 0);
        self.counts[step(duration)] += 1;
        self.total += 1;
    }

    fn join(&mut self, other: &Self) {
        if other.total == 0 {
            return;
        }
        self.counts.resize(STEPS, 0);
        for (sum, more) in self.counts.iter_mut().zip(&other.counts) {
            *sum += more;
        }
        self.total += other.total;
    }

    /// In milliseconds; `None`: nothing was counted.
    pub(super) fn percentile(&self, share: f64) -> Option<f64> {
        let wanted = (float(self.total) * share).ceil().max(1.0);
        let mut seen = 0;
        for (step, count) in self.counts.iter().enumerate() {
            seen += count;
            if float(seen) >= wanted {
                // The middle of the step.
                return Some(0.1 * ((float(step as u64) + 0.5) / 4.0).exp2());
            }
        }
        None
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the steps")]
fn step(duration: Duration) -> usize {
    let tenths = (duration.as_secs_f64() * 10_000.0).max(1.0);
    ((tenths.log2() * 4.0) as usize).min(STEPS - 1)
}

pub(super) fn float(number: u64) -> f64 {
    number as f64
}

fn u32_of(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn bins_widen_and_lose_nothing() {
        let start = clock::now();
        let mut stats = Stats::new(start);
        for tenth in 0..36_000_u32 {
            stats.sent(start + Duration::from_millis(100) * tenth);
        }
        assert!(stats.bins.len() <= MOST_BINS && stats.bins.len() > MOST_BINS / 2 - 1);
        assert_eq!(stats.bins.iter().map(|bin| bin.sent).sum::<u64>(), 36_000);
        let rate = stats.rate(start + Duration::from_secs(3600), Duration::from_secs(60));
        assert!((rate - 10.0).abs() < 0.5, "{rate}");
    }

    #[test]
    fn percentiles_are_near() {
        let mut latency = Latency::default();
        assert_eq!(latency.percentile(0.5), None);
        for millis in 1..=1000 {
            latency.add(Duration::from_millis(millis));
        }
        let half = latency.percentile(0.5).unwrap();
        assert!((400.0..600.0).contains(&half), "{half}");
    }
}
