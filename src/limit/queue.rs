//! Who waits, in order, and until when: pure, handed now.
//!
//! Invariants: first come, first granted; a grant that nobody collects lapses and its waiter keeps its place; nothing
//! here depends on any waiter being polled.

use std::{collections::BTreeMap, task::Waker};

use super::{
    costs::{Costs, Sums},
    pause::ProbeId,
    tick::Tick,
};

/// A grant that no poll collects within this time goes back: its task is stalled, and others are not.
pub(crate) const LAPSE: u64 = 50_000_000;

/// So many of the first in line keep timers at their exact forecast; the others keep their first estimate, which is
/// never too late: all of them at each grant would cost the line's length a grant.
pub(crate) const EXACT: usize = 16;

/// One who waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) costs: Costs,
    pub(crate) deadline: Tick,
    /// The longest pause worth waiting for, in nanoseconds.
    pub(crate) max_pause: u64,
    /// Its timer stands at its exact forecast.
    pub(crate) exact: bool,
    pub(crate) waker: Option<Waker>,
}

/// A grant on its way to its waiter.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) waiter: Waiter,
    pub(crate) probe: Option<ProbeId>,
    pub(crate) lapses: Tick,
}

/// The line of one scope.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: BTreeMap<u64, Waiter>,
    granted: BTreeMap<u64, Granted>,
    /// No grant lapses before this instant.
    soonest: Tick,
    /// Not polled in time, or not to be served; out of the line until polled again.
    lapsed: BTreeMap<u64, Waiter>,
    /// The number of the first who joined; the next have the next ones.
    first: u64,
    /// So many have left it.
    left: u64,
    sums: Sums,
    /// Forecasts have moved earlier: whoever holds an exact timer is woken.
    pub(crate) restless: bool,
    /// Others may be among the first [`EXACT`] than when they were last stirred.
    moved: bool,
    /// Somebody was told "never by itself": commits and give-backs wake too.
    pub(crate) blind: bool,
}

impl Queue {
    /// A line that nobody stands in; the first will be `first`.
    pub(crate) fn beginning(first: u64) -> Self {
        Self { first, ..Self::default() }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.granted.is_empty() && self.lapsed.is_empty()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() + self.lapsed.len()
    }

    pub(crate) fn sums(&self) -> &Sums {
        &self.sums
    }

    /// One stands in line; `seq` is the one after the last.
    pub(crate) fn join(&mut self, seq: u64, costs: Costs, (deadline, max_pause): (Tick, u64)) {
        self.sums.add(&costs);
        let waiter = Waiter { costs, deadline, max_pause, exact: false, waker: None };
        self.waiting.insert(seq, waiter);
    }

    pub(crate) fn first(&self) -> Option<&Waiter> {
        self.waiting.first_key_value().map(|(_, waiter)| waiter)
    }

    /// The first in line cannot be served as things stand: it is out of the line until polled again.
    pub(crate) fn set_first_aside(&mut self) -> Option<Waker> {
        let (seq, mut waiter) = self.waiting.pop_first()?;
        self.sums.sub(&waiter.costs);
        self.left += 1;
        self.restless = true;
        let waker = waiter.waker.take();
        self.lapsed.insert(seq, waiter);
        waker
    }

    /// The first in line is too late: it leaves, and learns why when polled.
    pub(crate) fn expire_first(&mut self) -> Option<Waker> {
        let (_, mut waiter) = self.waiting.pop_first()?;
        self.sums.sub(&waiter.costs);
        self.left += 1;
        self.restless = true;
        waiter.waker.take()
    }

    /// Notes whom to wake and what kind of timer one in line has; `blind`: none will tell it.
    pub(crate) fn set_timer(&mut self, (seq, waker): (u64, &Waker), exact: bool, blind: bool) {
        if let Some(waiter) = self.waiting.get_mut(&seq) {
            waiter.exact = exact;
            match &mut waiter.waker {
                Some(old) => old.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
        self.blind |= blind;
    }

    /// The first in line is granted; it has until `lapses` to collect. Gives its waker.
    pub(crate) fn grant_first(&mut self, probe: Option<ProbeId>, lapses: Tick) -> Option<Waker> {
        let (seq, mut waiter) = self.waiting.pop_first()?;
        self.sums.sub(&waiter.costs);
        self.left += 1;
        self.moved = true;
        let waker = waiter.waker.take();
        self.soonest = if self.granted.is_empty() { lapses } else { self.soonest.min(lapses) };
        self.granted.insert(seq, Granted { waiter, probe, lapses });
        waker
    }

    /// The one polled takes its grant.
    pub(crate) fn collect(&mut self, seq: u64) -> Option<Granted> {
        self.granted.remove(&seq)
    }

    /// A grant that lapsed at or before `now`; its waiter keeps its place and returns to it when polled.
    pub(crate) fn lapse(&mut self, now: Tick) -> Option<(Costs, Option<ProbeId>)> {
        if self.granted.is_empty() || now < self.soonest {
            return None;
        }
        let lapsed = self.granted.iter().find(|(_, granted)| granted.lapses <= now).map(|(seq, _)| *seq);
        let Some(granted) = lapsed.and_then(|seq| Some((seq, self.granted.remove(&seq)?))) else {
            self.soonest = self.granted.values().map(|granted| granted.lapses).min().unwrap_or(Tick::NEVER);
            return None;
        };
        let (seq, Granted { waiter, probe, .. }) = granted;
        let costs = waiter.costs.clone();
        self.lapsed.insert(seq, waiter);
        Some((costs, probe))
    }

    /// Grants that nobody has collected lapse now.
    pub(crate) fn recall(&mut self, now: Tick) {
        self.granted.values_mut().for_each(|granted| granted.lapses = granted.lapses.min(now));
        self.soonest = self.soonest.min(now);
    }

    /// An instant not after the next lapse of a grant.
    pub(crate) fn next_lapse(&self) -> Tick {
        if self.granted.is_empty() { Tick::NEVER } else { self.soonest }
    }

    /// One who lapsed is polled again and stands in its place.
    pub(crate) fn revive(&mut self, seq: u64) {
        if let Some(waiter) = self.lapsed.remove(&seq) {
            self.sums.add(&waiter.costs);
            self.left -= 1;
            self.moved = true;
            self.waiting.insert(seq, Waiter { exact: false, ..waiter });
        }
    }

    /// Takes one out of the line; gives what it held, if it was granted.
    pub(crate) fn remove(&mut self, seq: u64) -> Option<Granted> {
        if let Some(waiter) = self.waiting.remove(&seq) {
            self.sums.sub(&waiter.costs);
            self.left += 1;
            self.restless = true;
        }
        self.lapsed.remove(&seq);
        self.granted.remove(&seq)
    }

    /// Costs of those before `seq` and `true`, if it is among the first [`EXACT`]; else no more than they are.
    pub(crate) fn ahead(&self, seq: u64) -> (Sums, bool) {
        let mut sums = Sums::default();
        let place = self.place(seq);
        if place < EXACT as u64 {
            for (other, waiter) in self.waiting.iter().take(EXACT) {
                if *other == seq {
                    return (sums, true);
                }
                sums.add(&waiter.costs);
            }
            sums = Sums::default();
        }
        sums.add(&Costs::requests(u32::try_from(place).unwrap_or(u32::MAX)));
        (sums, false)
    }

    /// About how many stand before one in line; never more than do.
    fn place(&self, seq: u64) -> u64 {
        seq.saturating_sub(self.first).saturating_sub(self.left)
    }

    /// Wakers of those among the first [`EXACT`] whose timer is not exact, or of all of these if forecasts moved.
    pub(crate) fn stir(&mut self, wakes: &mut Vec<Waker>) {
        let all = std::mem::take(&mut self.restless);
        if !std::mem::take(&mut self.moved) && !all {
            return;
        }
        for waiter in self.waiting.values_mut().take(EXACT) {
            if all || !waiter.exact {
                waiter.exact = false;
                wakes.extend(waiter.waker.take());
            }
        }
    }

    /// Wakers of those who will not wait for a pause until `until`: they will be refused.
    pub(crate) fn wake_hopeless(&mut self, until: Tick, now: Tick, wakes: &mut Vec<Waker>) {
        let hopeless = |w: &&mut Waiter| w.deadline <= until || w.max_pause < until.since(now);
        wakes.extend(self.waiting.values_mut().filter(hopeless).filter_map(|w| w.waker.take()));
    }
}
