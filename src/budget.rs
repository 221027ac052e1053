//! The share of calls that may be retries, per limiter key.
//!
//! Invariant: pure. In any `per` the retries withdrawn are at most `floor + ratio · calls`, up to one slice.

use std::{collections::HashMap, hash::BuildHasherDefault, time::Duration};

use tokio::time::Instant;

use crate::{Error, Key, limit::Mixed};

/// How many of the calls of the last while may be retried, so that an outage does not multiply the traffic.
///
/// Counted per limiter key, from the start of each call. A retry after a throttle pays nothing: the key paces it.
/// Default: 20 % of the calls of the last 10 s, and at least 10 retries (Finagle's and Envoy's share).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use abide::{Policy, RetryBudget};
///
/// let policy = Policy::default().budget(RetryBudget::ratio(0.1).per(Duration::from_secs(30)).floor(5));
/// # let _ = policy;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryBudget {
    ratio: f64,
    per: Duration,
    floor: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::ratio(0.2)
    }
}

impl RetryBudget {
    /// Retries per call, 0 to 1; anything else is an error of `build()` or `send()`.
    pub fn ratio(ratio: f64) -> Self {
        Self { ratio, per: Duration::from_secs(10), floor: 10 }
    }

    /// The span that is looked back on. Default 10 s; less than 10 ms is an error of `build()` or `send()`.
    #[must_use]
    pub fn per(self, per: Duration) -> Self {
        Self { per, ..self }
    }

    /// Retries in that span that are always allowed. Default 10; zero: none.
    #[must_use]
    pub fn floor(self, floor: u32) -> Self {
        Self { floor, ..self }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&self.ratio) {
            return Err(Error::builder("the ratio of the retry budget must be between 0 and 1"));
        }
        if self.per < Duration::from_millis(10) {
            return Err(Error::builder("the span of the retry budget must be at least 10 ms"));
        }
        Ok(())
    }

    fn slice(&self) -> Duration {
        self.per / SLICES
    }
}

const SLICES: u32 = 10;

/// Keys whose calls are counted; beyond, those idle for the whole span leave, then the one touched first.
const MAX_KEYS: usize = 10_000;

/// What was called and retried of late, for each limiter key.
#[derive(Debug, Default)]
pub(crate) struct Ledgers {
    keys: HashMap<Key, Ledger, BuildHasherDefault<Mixed>>,
}

impl Ledgers {
    /// A call starts.
    pub(crate) fn deposit(&mut self, key: Key, budget: &RetryBudget, now: Instant) {
        self.ledger(key, budget, now).at(budget, now).calls += 1;
    }

    /// Takes one retry, if there is one.
    pub(crate) fn withdraw(&mut self, key: Key, budget: &RetryBudget, now: Instant) -> bool {
        self.ledger(key, budget, now).withdraw(budget, now)
    }

    /// Gives back a retry that was not sent.
    pub(crate) fn refund(&mut self, key: Key) {
        if let Some(ledger) = self.keys.get_mut(&key) {
            ledger.refund();
        }
    }

    fn ledger(&mut self, key: Key, budget: &RetryBudget, now: Instant) -> &mut Ledger {
        if self.keys.len() >= MAX_KEYS && !self.keys.contains_key(&key) {
            self.make_room(budget, now);
        }
        self.keys.entry(key).or_insert_with(|| Ledger::new(now))
    }

    fn make_room(&mut self, budget: &RetryBudget, now: Instant) {
        self.keys.retain(|_, ledger| now.saturating_duration_since(ledger.head) <= budget.per);
        if self.keys.len() >= MAX_KEYS
            && let Some(idlest) = self.keys.iter().min_by_key(|(_, ledger)| ledger.head).map(|(key, _)| *key)
        {
            self.keys.remove(&idlest);
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    calls: u32,
    retries: u32,
}

/// The last `per` in ten slices; `head` is the start of the youngest, which is the first.
#[derive(Debug)]
struct Ledger {
    head: Instant,
    slices: [Slice; SLICES as usize],
}

impl Ledger {
    fn new(now: Instant) -> Self {
        Self { head: now, slices: Default::default() }
    }

    fn withdraw(&mut self, budget: &RetryBudget, now: Instant) -> bool {
        self.at(budget, now);
        let calls: f64 = self.slices.iter().map(|slice| f64::from(slice.calls)).sum();
        let retries: f64 = self.slices.iter().map(|slice| f64::from(slice.retries)).sum();
        let enough = retries + 1.0 <= f64::from(budget.floor) + budget.ratio * calls;
        if enough {
            self.slices[0].retries += 1;
        }
        enough
    }

    fn refund(&mut self) {
        if let Some(slice) = self.slices.iter_mut().find(|slice| slice.retries > 0) {
            slice.retries -= 1;
        }
    }

    /// The youngest slice, after those that are past have left. A `now` that goes back changes nothing.
    fn at(&mut self, budget: &RetryBudget, now: Instant) -> &mut Slice {
        let (slice, passed) = (budget.slice(), now.saturating_duration_since(self.head));
        if passed < slice {
            return &mut self.slices[0];
        }
        let passed = passed.as_nanos() / slice.as_nanos().max(1);
        if passed >= u128::from(SLICES) {
            *self = Self::new(now);
        } else if let Ok(passed @ 1..) = u32::try_from(passed) {
            self.slices.rotate_right(passed as usize);
            self.slices[..passed as usize].fill(Slice::default());
            self.head += slice * passed;
        }
        &mut self.slices[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn an_outage_of_a_thousand_calls_is_retried_two_hundred_times_and_the_floor() {
        let (mut ledgers, budget, now) = (Ledgers::default(), RetryBudget::default(), clock::now());
        let key = Key::from("k");
        (0..1000).for_each(|_| ledgers.deposit(key, &budget, now));
        let granted = (0..1000).filter(|_| ledgers.withdraw(key, &budget, now)).count();
        assert_eq!(granted, 210);
    }

    #[test]
    fn keys_have_books_of_their_own_and_a_refund_is_one_retry() {
        let (mut ledgers, now) = (Ledgers::default(), clock::now());
        let budget = RetryBudget::ratio(0.0).floor(1);
        let (a, b) = (Key::from("a"), Key::from("b"));
        assert!(ledgers.withdraw(a, &budget, now));
        assert!(!ledgers.withdraw(a, &budget, now));
        assert!(ledgers.withdraw(b, &budget, now));
        ledgers.refund(a);
        assert!(ledgers.withdraw(a, &budget, now));
        assert!(!ledgers.withdraw(a, &budget, now + Duration::from_millis(9_999)));
        assert!(ledgers.withdraw(a, &budget, now + Duration::from_secs(11)));
    }

    #[test]
    fn the_map_is_bounded() {
        let (mut ledgers, budget, now) = (Ledgers::default(), RetryBudget::default(), clock::now());
        for number in 0..MAX_KEYS + 50 {
            ledgers.deposit(Key::from(number.to_string()), &budget, now);
        }
        assert!(ledgers.keys.len() <= MAX_KEYS);
        // A server that redirects each call to another origin, where it fails.
        for number in 0..50 {
            ledgers.withdraw(Key::from(format!("hop {number}")), &budget, now);
        }
        assert!(ledgers.keys.len() <= MAX_KEYS, "{}", ledgers.keys.len());
    }
}
