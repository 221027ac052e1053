//! When a call goes on after an answer or a failure, or why it does not.
//!
//! Invariant: pure. A wait is never shorter than what the server asked for, and none ends at or past the deadline.

use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

use crate::{Backoff, backoff::uniform, event::WaitCause, history::Stop};

/// A wait that is worth its while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) until: Instant,
    pub(crate) wait: Duration,
    pub(crate) cause: WaitCause,
}

/// What bounds a wait that begins now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) now: Instant,
    pub(crate) deadline: Option<Instant>,
    /// The longest wait of the server's that is waited.
    pub(crate) longest: Duration,
}

/// The most that is added to a wait the server asked for: enough to spread clients, little against its wait.
const MOST_JITTER: Duration = Duration::from_secs(5);

impl Bounds {
    /// The backoff before retry `retry` (from 0).
    pub(crate) fn backoff(
        &self,
        backoff: &Backoff,
        retry: u32,
        last: Option<Duration>,
        rng: &mut dyn Rng,
    ) -> Result<Pause, Stop> {
        let wait = backoff.wait(retry, last, rng);
        Ok(Pause { until: self.fits(wait)?, wait, cause: WaitCause::Backoff })
    }

    /// The server's wait as a floor, with jitter upward.
    pub(crate) fn asked(&self, floor: Duration, backoff: &Backoff, rng: &mut dyn Rng) -> Result<Pause, Stop> {
        let floor_at = self.fits(floor)?;
        if floor > self.longest {
            return Err(Stop::ServerWaitTooLong);
        }
        // Half of the room: a jitter that takes all of it leaves no time to send.
        let room = self.deadline.map(|deadline| deadline.saturating_duration_since(floor_at) / 2);
        let most = backoff.base().min(MOST_JITTER).min(room.unwrap_or(Duration::MAX));
        let jitter = uniform(Duration::ZERO, most, rng);
        let until = floor_at.checked_add(jitter).unwrap_or(floor_at);
        Ok(Pause { until, wait: floor.saturating_add(jitter), cause: WaitCause::Server })
    }

    fn fits(&self, wait: Duration) -> Result<Instant, Stop> {
        match (self.now.checked_add(wait), self.deadline) {
            (Some(until), Some(deadline)) if until < deadline => Ok(until),
            (Some(until), None) => Ok(until),
            (None, None) => Err(Stop::ServerWaitTooLong),
            (_, Some(_)) => Err(Stop::Deadline),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{SeedableRng, rngs::SmallRng};

    use super::*;
    use crate::clock;

    #[test]
    fn jitter_goes_upward_into_the_room_that_is_left() {
        let (now, ms) = (clock::now(), Duration::from_millis);
        let backoff = Backoff::full_jitter(ms(10_000), ms(60_000));
        let check = |deadline: u64, most: u64| {
            let bounds = Bounds { now, deadline: now.checked_add(ms(deadline)), longest: Duration::MAX };
            for seed in 0..200 {
                let pause = bounds.asked(ms(1000), &backoff, &mut SmallRng::seed_from_u64(seed)).unwrap();
                let wait = pause.until - now;
                assert!(wait == pause.wait && wait >= ms(1000) && wait <= ms(most), "{pause:?}");
            }
        };
        check(1020, 1010);
        check(100_000, 6000);
    }

    proptest! {
        #[test]
        fn no_wait_is_shorter_than_asked_or_ends_past_the_deadline(
            floor in 1u64..200_000,
            deadline in 1u64..200_000,
            seed: u64,
        ) {
            let (now, floor, deadline) = (clock::now(), Duration::from_millis(floor), Duration::from_millis(deadline));
            let bounds = Bounds { now, deadline: now.checked_add(deadline), longest: Duration::MAX };
            let mut rng = SmallRng::seed_from_u64(seed);
            match bounds.asked(floor, &Backoff::default(), &mut rng) {
                Ok(pause) => prop_assert!(pause.until - now >= floor && pause.until - now < deadline),
                Err(stop) => prop_assert!(stop == Stop::Deadline && floor >= deadline),
            }
            if let Ok(pause) = bounds.backoff(&Backoff::default(), 3, None, &mut rng) {
                prop_assert!(pause.until - now < deadline);
            }
        }
    }
}
