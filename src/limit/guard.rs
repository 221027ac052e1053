//! What was sent in the last window, in slices: never more than N in any window.
//!
//! Invariant: a commit at τ counts until some instant later than τ + window, whatever the window becomes, so used +
//! held ≤ N at every grant means at most N commits in any closed window.

use std::collections::VecDeque;

use super::tick::Tick;

/// A window is cut into so many slices; one more counts, because a commit may stand at the end of its slice.
const SLICES: u64 = 64;

/// Commits of the last window and others' use of the same limit.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    limit: u64,
    used: u64,
    window: u64,
    /// Ends of slices and what was committed in them, oldest first; freed while empty.
    slices: VecDeque<(Tick, u64)>,
    /// End of the newest slice that was dropped.
    dropped: Tick,
    /// After the window grew: what was dropped before counts as used until here.
    blocked: Tick,
    others: u64,
    others_at: Tick,
}

impl Guard {
    pub(crate) fn new(limit: u64, window: u64) -> Self {
        Self {
            limit,
            used: 0,
            window: window.max(1),
            slices: VecDeque::new(),
            dropped: Tick::default(),
            blocked: Tick::default(),
            others: 0,
            others_at: Tick::default(),
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Committed in the last window, as far as it still counts.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    fn slice(&self) -> u64 {
        self.window.div_ceil(SLICES)
    }

    /// Books a commit at `now`.
    #[inline]
    pub(crate) fn commit(&mut self, units: u64, now: Tick) {
        self.used = self.used.saturating_add(units);
        match self.slices.back_mut() {
            Some((end, count)) if *end > now => *count = count.saturating_add(units),
            _ => self.begin_slice(units, now),
        }
    }

    #[cold]
    fn begin_slice(&mut self, units: u64, now: Tick) {
        let slice = self.slice();
        let end = Tick::from_nanos((now.nanos() / slice).saturating_add(1).saturating_mul(slice));
        self.grow();
        self.slices.push_back((end, units));
    }

    /// A full ring needs 65 places and no more.
    fn grow(&mut self) {
        let full = self.slices.len() == self.slices.capacity();
        if full && self.slices.len() >= 16 {
            self.slices.reserve_exact(67usize.saturating_sub(self.slices.len()).max(1));
        }
    }

    /// Takes back units of a commit at `sent` whose real cost was lower; nothing, if it no longer counts.
    pub(crate) fn take_back(&mut self, units: u64, sent: Tick) {
        if sent < self.dropped {
            return;
        }
        let index = self.slices.partition_point(|(end, _)| *end <= sent);
        if let Some((_, count)) = self.slices.get_mut(index).filter(|(end, _)| end.since(sent) <= self.window) {
            let back = units.min(*count);
            *count -= back;
            self.used -= back;
        }
    }

    /// Forgets what no longer counts at `now`.
    #[inline]
    pub(crate) fn expire(&mut self, now: Tick) {
        if self.slices.front().is_some_and(|(end, _)| end.plus(self.window) <= now) {
            self.drop_slices(now);
        }
    }

    #[cold]
    fn drop_slices(&mut self, now: Tick) {
        let counts_for = self.slice().saturating_mul(SLICES);
        while let Some(&(end, count)) = self.slices.front() {
            if end.plus(counts_for) > now {
                return;
            }
            self.used -= count;
            self.dropped = end;
            self.slices.pop_front();
        }
        if self.slices.capacity() > 0 {
            self.slices = VecDeque::new();
        }
    }

    /// Units of the limit that others are believed to hold at `at`: what was told, falling to zero over a window.
    #[inline]
    pub(crate) fn others(&self, at: Tick) -> u64 {
        if self.others == 0 { 0 } else { self.others_left(at) }
    }

    #[cold]
    fn others_left(&self, at: Tick) -> u64 {
        let left = self.window.saturating_sub(at.since(self.others_at));
        let held = (u128::from(self.others) * u128::from(left)).div_ceil(u128::from(self.window));
        u64::try_from(held).unwrap_or(u64::MAX)
    }

    pub(crate) fn set_others(&mut self, units: u64, now: Tick) {
        (self.others, self.others_at) = (units.min(self.limit), now);
    }

    /// Units that may still be granted at `at`, given what is held; exact only when expired up to `at`.
    #[inline]
    pub(crate) fn room(&self, held: u64, at: Tick) -> u64 {
        if at < self.blocked {
            return 0;
        }
        let taken = self.used.saturating_add(held).saturating_add(self.others(at));
        self.limit.saturating_sub(taken)
    }

    /// The first instant from `from` on with room for `units`, if nothing else is granted; what is held is taken to
    /// stay. [`Tick::NEVER`] if only a give-back can make room.
    pub(crate) fn free_at(&self, units: u64, held: u64, from: Tick) -> Tick {
        let counts_for = self.slice().saturating_mul(SLICES);
        let (mut used, mut at) = (self.used, from.max(self.blocked));
        for &(end, count) in &self.slices {
            let expires = end.plus(counts_for);
            if let Some(free) = self.others_gone_at(units, used.saturating_add(held), at)
                && free < expires
            {
                return free;
            }
            used -= count;
            at = at.max(expires);
        }
        self.others_gone_at(units, used.saturating_add(held), at).unwrap_or(Tick::NEVER)
    }

    /// The first instant from `at` on at which others leave room for `units` beside `taken` of our own.
    fn others_gone_at(&self, units: u64, taken: u64, at: Tick) -> Option<Tick> {
        let spare = self.limit.checked_sub(taken)?.checked_sub(units)?;
        if self.others(at) <= spare {
            return Some(at);
        }
        // others · left / window ≤ spare
        let left = u128::from(spare) * u128::from(self.window) / u128::from(self.others.max(1));
        let left = u64::try_from(left).unwrap_or(u64::MAX).min(self.window);
        Some(self.others_at.plus(self.window - left).max(at))
    }

    /// Changes limit and window; what was sent is re-dated, and on a longer window what was forgotten counts as used.
    pub(crate) fn rerate(&mut self, limit: u64, window: u64) {
        let window = window.max(1);
        if window > self.window && self.dropped > Tick::default() {
            let slice = window.div_ceil(SLICES);
            self.blocked = self.blocked.max(self.dropped.plus(slice.saturating_mul(SLICES)));
        }
        (self.limit, self.window) = (limit, window);
        self.others = self.others.min(limit);
    }

    /// The instant at which nothing counts any more.
    pub(crate) fn empty_at(&self) -> Tick {
        let counts_for = self.slice().saturating_mul(SLICES);
        let own = self.slices.back().map_or_else(Tick::default, |(end, _)| end.plus(counts_for));
        let others = if self.others == 0 { Tick::default() } else { self.others_at.plus(self.window) };
        own.max(others).max(self.blocked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tick(nanos: u64) -> Tick {
        Tick::from_nanos(nanos)
    }

    #[test]
    fn a_slice_counts_for_the_window_and_one_more() {
        let mut guard = Guard::new(1, 64);
        guard.commit(1, tick(0));
        guard.expire(tick(64));
        assert_eq!(guard.room(0, tick(64)), 0);
        guard.expire(tick(65));
        assert_eq!(guard.room(0, tick(65)), 1);
    }

    #[test]
    fn the_sixty_fifth_slice_is_needed() {
        // A commit at the very end of a slice and one just W later would otherwise share a window.
        let mut guard = Guard::new(1, 640);
        guard.commit(1, tick(9));
        guard.expire(tick(649));
        assert_eq!(guard.room(0, tick(649)), 0, "9 and 649 are one closed window of 640");
        guard.expire(tick(650));
        assert_eq!(guard.room(0, tick(650)), 1);
    }

    #[test]
    fn free_at_is_the_instant_of_room() {
        let mut guard = Guard::new(10, 640);
        guard.commit(6, tick(0));
        guard.commit(4, tick(100));
        assert_eq!(guard.free_at(1, 0, tick(100)), tick(650));
        assert_eq!(guard.free_at(7, 0, tick(100)), tick(750));
        assert_eq!(guard.free_at(7, 4, tick(100)), Tick::NEVER);
        assert_eq!(guard.free_at(11, 0, tick(100)), Tick::NEVER);
    }

    /// A late correction took units from its neighbour's slice, which still counted.
    #[test]
    fn what_no_longer_counts_is_not_taken_back_from_others() {
        let mut guard = Guard::new(10, 640);
        guard.commit(5, tick(9));
        guard.commit(5, tick(10));
        guard.expire(tick(650));
        guard.take_back(5, tick(9));
        assert_eq!(guard.used(), 5);
        guard.take_back(5, tick(10));
        assert_eq!(guard.used(), 0);
    }

    #[test]
    fn others_fade_over_a_window() {
        let mut guard = Guard::new(10, 1000);
        guard.set_others(10, tick(0));
        assert_eq!(guard.room(0, tick(0)), 0);
        assert_eq!(guard.room(0, tick(99)), 0);
        assert_eq!(guard.room(0, tick(100)), 1);
        assert_eq!(guard.free_at(1, 0, tick(0)), tick(100));
        assert_eq!(guard.free_at(10, 0, tick(0)), tick(1000));
        assert_eq!(guard.room(0, tick(1000)), 10);
    }

    #[test]
    fn a_longer_window_counts_what_was_forgotten() {
        let mut guard = Guard::new(2, 640);
        guard.commit(2, tick(0));
        guard.expire(tick(650));
        assert_eq!(guard.room(0, tick(650)), 2);
        guard.rerate(2, 6400);
        assert_eq!(guard.room(0, tick(650)), 0);
        assert_eq!(guard.free_at(1, 0, tick(650)), tick(6410));
    }

    proptest! {
        #[test]
        fn never_more_than_the_limit_in_any_window(
            limit in 1u64..30, window in 1u64..5000,
            steps in proptest::collection::vec((0u64..600, 1u64..4, proptest::option::weighted(0.05, 1u64..5000)), 1..300),
        ) {
            let mut guard = Guard::new(limit, window);
            let mut now = tick(0);
            let mut sent: Vec<(Tick, u64)> = Vec::new();
            for (dt, units, regrow) in steps {
                now = now.plus(dt);
                guard.expire(now);
                if let Some(window) = regrow {
                    guard.rerate(limit, window);
                    guard.expire(now);
                }
                let granted_now = guard.room(0, now) >= units;
                if granted_now {
                    guard.commit(units, now);
                    sent.push((now, units));
                }
                // Every closed window of the present length that ends now.
                let from = now.nanos().saturating_sub(guard.window());
                let count: u64 = sent.iter().filter(|(t, _)| t.nanos() >= from).map(|(_, n)| n).sum();
                prop_assert!(!granted_now || count <= limit, "{count} of {limit} at {now:?}");
            }
        }

        #[test]
        fn free_at_agrees_with_room(
            limit in 1u64..20, window in 64u64..3000, others in 0u64..20, need in 1u64..20,
            commits in proptest::collection::vec((0u64..200, 1u64..3), 0..40),
        ) {
            let mut guard = Guard::new(limit, window);
            let mut now = tick(0);
            for (dt, units) in commits {
                now = now.plus(dt);
                guard.expire(now);
                if guard.room(0, now) >= units { guard.commit(units, now); }
            }
            guard.set_others(others, now);
            let free = guard.free_at(need, 0, now);
            if need > limit {
                prop_assert_eq!(free, Tick::NEVER);
            } else {
                let mut at = guard.clone();
                at.expire(free);
                prop_assert!(at.room(0, free) >= need);
                if free > now {
                    let mut before = guard.clone();
                    let earlier = tick(free.nanos() - 1);
                    before.expire(earlier);
                    prop_assert!(before.room(0, earlier) < need);
                }
            }
        }
    }
}
