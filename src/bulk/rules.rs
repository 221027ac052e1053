//! When a run stops before its input ends.
//!
//! Invariant: pure.

use std::{collections::HashMap, io};

use super::Outcome;
use crate::Key;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// All rows were dealt with.
    Complete,
    /// It was asked to.
    Interrupted,
    /// Too many rows failed.
    Rule,
    /// The answers of an origin were all 401 or 403.
    RefusedCredentials,
    /// It could not go on: see [`Run::error`](super::Run::error).
    Failed,
}

/// What stops a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) stop_after: Option<u64>,
    pub(super) stop_rate: Option<f64>,
    pub(super) credentials: bool,
    over: u64,
    failed: u64,
    origins: HashMap<Key, Origin>,
}

/// The first answers of an origin.
#[derive(Clone, Copy, Debug, Default)]
struct Origin {
    answers: u8,
    refused: u8,
}

/// So many refusals, and nothing else, are no coincidence.
const FIRST: u8 = 10;

/// Fewer rows are too few for a rate.
const FEWEST: u64 = 20;

/// More origins are not judged.
const MOST_ORIGINS: usize = 100_000;

impl Rules {
    pub(super) fn check(&self) -> io::Result<()> {
        let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        match (self.stop_after, self.stop_rate) {
            (Some(0), _) => wrong("stop_after must be at least 1"),
            (_, Some(share)) if !(0.0..=1.0).contains(&share) => wrong("stop_rate must be in 0..=1"),
            _ => Ok(()),
        }
    }

    /// A row is over: whether that stops the run.
    pub(super) fn over(&mut self, outcome: &Outcome, origin: Key) -> Option<End> {
        self.over += 1;
        self.failed += u64::from(!outcome.is_ok());
        if self.credentials && self.is_refused(outcome, origin) {
            return Some(End::RefusedCredentials);
        }
        let many = self.stop_after.is_some_and(|most| self.failed >= most);
        let share = super::stats::float(self.failed) / super::stats::float(self.over);
        let often = self.over >= FEWEST && self.stop_rate.is_some_and(|most| share > most);
        (many || often).then_some(End::Rule)
    }

    fn is_refused(&mut self, outcome: &Outcome, origin: Key) -> bool {
        let Some(status) = outcome.status else { return false };
        if !self.origins.contains_key(&origin) && self.origins.len() >= MOST_ORIGINS {
            return false;
        }
        let seen = self.origins.entry(origin).or_default();
        if seen.answers < FIRST {
            seen.answers += 1;
            seen.refused += u8::from(matches!(status.as_u16(), 401 | 403));
            return seen.answers == FIRST && seen.refused == FIRST;
        }
        false
    }

    /// No more rows come: whether an origin refused all that it got.
    pub(super) fn at_end(&self) -> End {
        let refused = |origin: &Origin| origin.answers > 0 && origin.refused == origin.answers;
        match self.credentials && self.origins.values().any(refused) {
            true => End::RefusedCredentials,
            false => End::Complete,
        }
    }
}
