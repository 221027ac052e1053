//! How much memory the bodies of a run's rows may take: each row has room for a short one; long ones share the rest.

use std::{sync::Arc, time::Duration};

use futures_util::future::{Either, select};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// Shared by the rows of a run.
#[derive(Clone, Debug)]
pub(super) struct Space {
    /// Each row has so much.
    pub(super) each: usize,
    shared: Arc<Semaphore>,
    /// Of the one row that may go on when all is taken: else they might all wait for each other.
    last: Arc<Semaphore>,
}

/// What a row has of it, until its result is dealt with.
#[derive(Debug, Default)]
pub(super) struct Held {
    steps: usize,
    shared: Option<OwnedSemaphorePermit>,
    last: Option<OwnedSemaphorePermit>,
    /// So many bytes were there then.
    seen: Option<(usize, Instant)>,
}

/// A longer body is no result.
pub(super) const LONGEST: usize = 64 << 20;

/// Of all rows, for short bodies.
const SHORT: usize = 128 << 20;

/// Of a row, for a short one.
const EACH: (usize, usize) = (64 << 10, 8 << 20);

/// What is shared is taken in steps.
const STEP: usize = 1 << 20;
const STEPS: usize = 64;

/// While others wait for room, a row that has some brings a step in this time.
const PATIENCE: Duration = Duration::from_secs(5);

impl Space {
    pub(super) fn new(concurrency: usize) -> Self {
        let each = (SHORT / concurrency.max(1)).clamp(EACH.0, EACH.1);
        Self { each, shared: Arc::new(Semaphore::new(STEPS)), last: Arc::new(Semaphore::new(1)) }
    }

    /// Waits until there is room for so many bytes.
    pub(super) async fn make(&self, held: &mut Held, bytes: usize) {
        while held.last.is_none() && bytes > self.each + held.steps * STEP {
            // Whoever waits is not slow.
            held.seen = None;
            self.step(held).await;
        }
    }

    async fn step(&self, held: &mut Held) {
        let shared = Box::pin(Arc::clone(&self.shared).acquire_owned());
        let last = Box::pin(Arc::clone(&self.last).acquire_owned());
        // Neither is ever closed.
        match select(shared, last).await {
            Either::Left((step, _)) => {
                held.steps += 1;
                match (&mut held.shared, step.ok()) {
                    (Some(shared), Some(step)) => shared.merge(step),
                    (shared, step) => *shared = step,
                }
            }
            Either::Right((last, _)) => held.last = last.ok(),
        }
    }
}

impl Held {
    /// When it is to be asked whether it [is slow](Self::is_slow).
    pub(super) fn until(&self) -> Option<Instant> {
        self.seen.and_then(|(_, since)| since.checked_add(PATIENCE))
    }

    /// Whether it brings too little while others wait; `bytes` are there by now.
    pub(super) fn is_slow(&mut self, space: &Space, bytes: usize, now: Instant) -> bool {
        let has_some = self.steps > 0 || self.last.is_some();
        if !has_some || space.shared.available_permits() > 0 {
            self.seen = has_some.then_some((bytes, now));
            return false;
        }
        let (before, since) = *self.seen.get_or_insert((bytes, now));
        if bytes >= before + STEP {
            self.seen = Some((bytes, now));
            return false;
        }
        now.saturating_duration_since(since) >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn when_all_is_taken_one_goes_on() {
        let space = Space::new(256);
        assert_eq!((space.each, Space::new(1).each, Space::new(usize::MAX).each), (512 << 10, 8 << 20, 64 << 10));
        let mut rows: Vec<Held> = (0..4).map(|_| Held::default()).collect();
        let mut make = |row: usize, mib: usize| space.make(&mut rows[row], space.each + (mib << 20)).now_or_never();
        for row in 0..4 {
            assert!(make(row, 0).is_some() && make(row, 16).is_some());
        }
        assert!(make(0, 17).is_some() && make(0, 64).is_some() && make(1, 17).is_none());
        rows.remove(0);
        let mut make = |row: usize, mib: usize| space.make(&mut rows[row], space.each + (mib << 20)).now_or_never();
        assert!(make(0, 32).is_some() && make(1, 64).is_some() && make(2, 17).is_none());
    }
    #[test]
    fn a_row_is_slow_only_while_others_wait() {
        let (space, start) = (Space::new(256), crate::clock::now());
        let (mut slow, mut other) = (Held::default(), Held::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let make = |held: &mut Held, mib: usize| space.make(held, space.each + (mib << 20)).now_or_never().is_some();
        assert!(!slow.is_slow(&space, 1, at(0)) && slow.until().is_none());
        assert!(make(&mut slow, 1) && !slow.is_slow(&space, 1 << 20, at(0)) && slow.until() == Some(at(5)));
        assert!(!slow.is_slow(&space, 1 << 20, at(100)));
        assert!(make(&mut other, 63) && !slow.is_slow(&space, 2 << 20, at(104)));
        assert!(!slow.is_slow(&space, 2 << 20, at(108)) && slow.is_slow(&space, 2 << 20, at(109)));
        assert!(!slow.is_slow(&space, 3 << 20, at(109)));
    }
}
