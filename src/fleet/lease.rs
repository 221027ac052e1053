//! What this process has leased of one quota, and what it owes the store. Pure, handed now.
//!
//! Invariants: a unit is sent under a lease no later than the lease lasts, counted from *before* it was asked for; what
//! is not sent by then goes back to the slice it came from; what is sent without a lease is owed and booked with the
//! next exchange.

use std::collections::VecDeque;

use super::{
    store::{Granted, Line, Told},
    terms::{Terms, share_of},
};
use crate::limit::{Contract, Quota, tick::Tick};

/// Units of one grant that are not sent yet.
#[derive(Clone, Copy, Debug)]
struct Batch {
    slice: u64,
    units: u64,
    until: Tick,
}

/// How the quota is kept at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// By leases from the store.
    Shared,
    /// By this process alone, as one of so many.
    Alone(u32),
    /// Not at all.
    Open,
}

/// One quota of a fleet, as one process sees it.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    id: Box<str>,
    meta: Box<str>,
    quota: Quota,
    /// To the store and back, in microseconds.
    round_trip: u64,
    terms: Terms,
    keeping: Keeping,
    fresh: bool,
    birth: u32,
    told: Option<Told>,
    batches: VecDeque<Batch>,
    /// Of what was leased: from when to when it was sent.
    spent: VecDeque<(u64, Tick, Tick)>,
    returns: Vec<(u64, u64)>,
    owed: Sent,
    sent: Sent,
    demand: Demand,
    left: Option<u64>,
}

/// So many grants are remembered for corrections of their cost.
const REMEMBERED: usize = 64;

impl Lease {
    /// One of `all` quotas that every process of the fleet has configured. Its id says what they have to agree in; of
    /// several alike the smallest is the first, in whatever order they are told.
    pub(crate) fn configured((place, quota): (usize, &Quota), all: &[Quota], round_trip: u64) -> Self {
        let contract = if quota.contract() == Contract::Window { "window" } else { "bucket" };
        let mut id = format!("{contract}/{}/{}", quota.per().as_nanos(), quota.unit_ref());
        let kind = |quota: &Quota| (quota.contract(), quota.per(), quota.unit_ref().clone());
        let size = |place: usize, quota: &Quota| (quota.units(), quota.burst_units(), place);
        let alike = all.iter().enumerate().filter(|(_, other)| kind(other) == kind(quota));
        let smaller = alike.filter(|(other, it)| size(*other, it) < size(place, quota)).count();
        if smaller > 0 {
            id.push_str(&format!("/{smaller}"));
        }
        let birth = quota.burst_units();
        Self::new((id.into(), Box::default()), quota, birth, round_trip)
    }

    /// A quota that an answer told: the store has it from whoever heard it first. Its past is unknown.
    pub(crate) fn learned(id: Box<str>, meta: Box<str>, quota: &Quota, round_trip: u64) -> Self {
        Self::new((id, meta), quota, 1, round_trip)
    }

    fn new((id, meta): (Box<str>, Box<str>), quota: &Quota, birth: u32, round_trip: u64) -> Self {
        let terms = Terms::of(quota, round_trip);
        let slice = (terms.memory() / REMEMBERED as u64).max(1);
        Self {
            id,
            meta,
            quota: quota.clone(),
            round_trip,
            terms,
            keeping: Keeping::Shared,
            fresh: true,
            birth,
            told: None,
            batches: VecDeque::new(),
            spent: VecDeque::new(),
            returns: Vec::new(),
            owed: Sent::new(slice),
            sent: Sent::new(slice),
            demand: Demand::default(),
            left: None,
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn meta(&self) -> &str {
        &self.meta
    }

    pub(crate) fn keeping(&self) -> Keeping {
        self.keeping
    }

    /// The quota of the whole fleet.
    pub(crate) fn quota(&self) -> &Quota {
        &self.quota
    }

    /// How long a lease lasts, in nanoseconds.
    pub(crate) fn lasts(&self) -> u64 {
        self.terms.lease.saturating_mul(1_000)
    }

    /// An answer told it anew.
    pub(crate) fn tell(&mut self, quota: &Quota, meta: Box<str>, told: Option<Told>) {
        self.set_quota(quota, meta);
        self.fresh = true;
        self.told = told.or(self.told);
    }

    /// Another process was told it anew.
    pub(crate) fn set_quota(&mut self, quota: &Quota, meta: Box<str>) {
        if self.quota != *quota {
            (self.quota, self.terms) = (quota.clone(), Terms::of(quota, self.round_trip));
        }
        self.meta = meta;
    }

    /// Units that may be held now, beside those that are `held` already.
    pub(crate) fn free(&self, held: u64, now: Tick) -> u64 {
        if self.keeping == Keeping::Open {
            return u64::MAX;
        }
        self.unexpired(now).saturating_sub(held)
    }

    /// No store grants so many `units` before this instant: a full burst at once, then the rate.
    pub(crate) fn soonest(&self, units: u64, from: Tick) -> Tick {
        let later = u128::from(units.saturating_sub(self.quota.burst_units().into()));
        let nanos = later * u128::from(self.terms.per) * 1_000 / u128::from(self.terms.refill.max(1));
        from.plus(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn unexpired(&self, now: Tick) -> u64 {
        self.batches.iter().filter(|batch| batch.until > now).map(|batch| batch.units).sum()
    }

    /// Somebody takes `cost` of it: that tells how much is wanted.
    pub(crate) fn note_taken(&mut self, cost: u64) {
        self.demand.taken = self.demand.taken.saturating_add(cost);
    }

    /// `cost` goes on the wire now.
    pub(crate) fn commit(&mut self, cost: u64, now: Tick) {
        self.sent.add(cost, now, self.terms.memory());
        let mut rest = cost;
        for batch in self.batches.iter_mut().filter(|batch| batch.until > now) {
            let units = rest.min(batch.units);
            batch.units -= units;
            rest -= units;
            if units > 0 {
                remember(&mut self.spent, batch.slice, now);
            }
        }
        self.batches.retain(|batch| batch.units > 0);
        if rest > 0 {
            // Held for longer than its lease lasted, or the store is away.
            self.owed.add(rest, now, self.terms.memory());
        }
    }

    /// What was sent at `sent` cost `more` than it was charged.
    pub(crate) fn charge(&mut self, more: u64, now: Tick) {
        self.commit(more, now);
    }

    /// What was sent at `sent` cost `less` than it was charged: it goes back to the slice it came from, if that is
    /// known.
    pub(crate) fn refund(&mut self, less: u64, sent: Tick) {
        if self.owed.take_back(less, sent) {
            self.sent.take_back(less, sent);
            return;
        }
        if let Some((slice, ..)) = self.spent.iter().find(|(_, from, to)| *from <= sent && sent <= *to) {
            if self.keeping == Keeping::Shared {
                self.returns.push((*slice, less));
            }
            self.sent.take_back(less, sent);
        }
    }

    /// What is out already, is booked and counts, before the first exchange.
    pub(crate) fn owe(&mut self, units: u64, now: Tick) {
        self.owed.add(units, now, self.terms.memory());
        self.sent.add(units, now, self.terms.memory());
    }

    /// Puts what has expired among the returns.
    pub(crate) fn expire(&mut self, now: Tick) {
        while let Some(batch) = self.batches.front().copied().filter(|batch| batch.until <= now) {
            self.batches.pop_front();
            self.returns.push((batch.slice, batch.units));
        }
    }

    /// Held by permits whose lease has ended or soon ends.
    fn uncovered(&self, held: u64, now: Tick) -> u64 {
        if self.keeping == Keeping::Shared {
            held.saturating_sub(self.unexpired(now.plus(self.lasts() / 4)))
        } else {
            0
        }
    }

    /// For permits whose lease soon ends `units` are leased anew: what they had goes back with the same request, so that
    /// it counts once.
    fn make_way(&mut self, mut units: u64, now: Tick) {
        let soon = now.plus(self.lasts() / 4);
        for batch in self.batches.iter_mut().filter(|batch| batch.until <= soon) {
            let part = units.min(batch.units);
            batch.units -= part;
            units -= part;
            if part > 0 {
                self.returns.push((batch.slice, part));
            }
        }
        self.batches.retain(|batch| batch.units > 0);
    }

    /// Whether so little is left for the calls that are expected that it is time to ask.
    pub(crate) fn is_low(&self, held: u64, now: Tick) -> bool {
        let expected = self.demand.expected(self.lasts());
        expected >= 2 && self.free(held, now) <= expected / 20
    }

    /// When something is to be done that no call brings: what is left goes back, or a lease is renewed under permits.
    pub(crate) fn due_at(&self, held: u64) -> Tick {
        let mut covered = 0;
        for batch in self.batches.iter().rev().filter(|_| held > 0) {
            covered += batch.units;
            if covered >= held {
                return Tick::from_nanos(batch.until.nanos().saturating_sub(self.lasts() / 4));
            }
        }
        // What has expired goes along with the next request, at the latest when nothing is leased any more.
        match self.batches.back() {
            Some(last) => last.until,
            None if self.returns.is_empty() => Tick::NEVER,
            None => Tick::default(),
        }
    }

    /// What to ask of the store; `waiting` units are wanted by calls in line, `need` by the first of them.
    pub(crate) fn line(&mut self, held: u64, (waiting, need): (u64, u64), now: Tick) -> Line {
        self.expire(now);
        self.demand.asked(now, self.lasts());
        let must = self.uncovered(held, now);
        self.make_way(must, now);
        let free = self.unexpired(now).saturating_sub(held.saturating_sub(must));
        let expected = self.demand.expected(self.lasts());
        // Calls come at random: with no more than the mean every other lease would be spent before it ends.
        let expected = expected.saturating_add((expected / 2).isqrt());
        let want = waiting.saturating_add(expected).saturating_sub(free);
        let need = need.saturating_sub(free).min(want);
        Line {
            id: self.id.clone(),
            terms: self.terms.clone(),
            fresh: std::mem::take(&mut self.fresh) || self.meta.is_empty(),
            // A store that has forgotten it does not start with a burst.
            birth: if self.left.is_some() { self.birth.min(1) } else { self.birth },
            meta: self.meta.clone(),
            want,
            need,
            must,
            told: self.told.take(),
            returns: std::mem::take(&mut self.returns),
            owed: self.owed.aged(now, self.terms.memory()),
        }
    }

    /// What the store granted to a request that left at `sent`.
    pub(crate) fn granted(&mut self, granted: &Granted, line: &Line, sent: Tick) {
        self.owed.settle(line.owed.iter().map(|(_, units)| units).sum());
        self.left = Some(granted.left);
        // Of the permits for which the lease is renewed these went out meanwhile.
        let out = self.owed.units().min(line.must).min(granted.units);
        self.owed.settle(out);
        if granted.units > out {
            self.batches.push_back(Batch {
                slice: granted.slice,
                units: granted.units - out,
                until: sent.plus(self.lasts()),
            });
        }
    }

    /// The store has lost its memory, and has only just granted what is in the last batch: all that was sent lately is
    /// owed, and what was leased before is void.
    pub(crate) fn forgotten(&mut self, slice: u64) {
        self.owed = self.sent.clone();
        self.batches.retain(|batch| batch.slice == slice);
        self.returns.clear();
        self.spent.clear();
        self.fresh = true;
    }

    /// From now on it is kept by this process alone, or not at all. Gives the share that holds, and how much of it may
    /// be used until a window has passed since the last reply, if there was one.
    pub(crate) fn part(&mut self, keeping: Keeping, held: u64, now: Tick) -> (Quota, Option<u64>) {
        self.keeping = keeping;
        // Nobody takes them any more, and they would keep the key in memory.
        self.returns.clear();
        let Keeping::Alone(members) = keeping else { return (self.quota.clone(), None) };
        let rest = self.unexpired(now).saturating_sub(held);
        self.batches.clear();
        let left = self.left.map(|left| (left / u64::from(members.max(1))).saturating_add(rest));
        (share_of(&self.quota, members), left)
    }

    /// The store is back.
    pub(crate) fn join(&mut self) {
        self.keeping = Keeping::Shared;
        self.batches.clear();
        self.returns.clear();
    }

    /// How long what was sent counts, in nanoseconds.
    pub(crate) fn memory(&self) -> u64 {
        self.terms.memory()
    }

    /// From when on it does not matter that this is forgotten.
    pub(crate) fn rests_at(&self) -> Tick {
        let leased = self.batches.iter().map(|batch| batch.until).max().unwrap_or_default();
        let owed = if self.owed.is_empty() { Tick::default() } else { self.owed.last().plus(self.memory()) };
        if self.returns.is_empty() { leased.max(owed) } else { Tick::NEVER }
    }
}

fn remember(spent: &mut VecDeque<(u64, Tick, Tick)>, slice: u64, now: Tick) {
    match spent.back_mut().filter(|(last, ..)| *last == slice) {
        Some((_, _, to)) => *to = now,
        None => {
            if spent.len() >= REMEMBERED {
                spent.pop_front();
            }
            spent.push_back((slice, now, now));
        }
    }
}

/// Units sent lately, by slices of time.
#[derive(Clone, Debug)]
struct Sent {
    slice: u64,
    /// Ends of slices, oldest first.
    slices: VecDeque<(Tick, u64)>,
}

impl Sent {
    const fn new(slice: u64) -> Self {
        Self { slice, slices: VecDeque::new() }
    }

    fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    fn units(&self) -> u64 {
        self.slices.iter().map(|(_, units)| units).sum()
    }

    fn last(&self) -> Tick {
        self.slices.back().map_or_else(Tick::default, |(end, _)| *end)
    }

    fn add(&mut self, units: u64, now: Tick, memory: u64) {
        if units == 0 {
            return;
        }
        while self.slices.front().is_some_and(|(end, _)| end.plus(memory) <= now) {
            self.slices.pop_front();
        }
        match self.slices.back_mut() {
            Some((end, count)) if *end > now => *count = count.saturating_add(units),
            _ => self.slices.push_back((now.plus(self.slice), units)),
        }
    }

    fn take_back(&mut self, units: u64, sent: Tick) -> bool {
        let found = self.slices.iter_mut().find(|(end, count)| *end > sent && *count >= units);
        found.map(|(_, count)| *count -= units).is_some()
    }

    /// How long ago, in microseconds, and how much; what no longer counts is let go.
    fn aged(&mut self, now: Tick, memory: u64) -> Vec<(u64, u64)> {
        self.slices.retain(|(end, units)| *units > 0 && end.plus(memory) > now);
        self.slices.iter().map(|(end, units)| (now.since(*end) / 1_000, *units)).collect()
    }

    /// The oldest `units` are booked.
    fn settle(&mut self, mut units: u64) {
        while let Some((_, count)) = self.slices.front_mut() {
            let booked = units.min(*count);
            *count -= booked;
            units -= booked;
            if *count > 0 {
                return;
            }
            self.slices.pop_front();
        }
    }
}

/// How much is taken of the quota, over about the time of a lease.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    taken: u64,
    since: Tick,
    /// Units per nanosecond.
    rate: f64,
}

impl Demand {
    /// A request leaves: what was taken since the last one counts.
    fn asked(&mut self, now: Tick, lease: u64) {
        let elapsed = now.since(self.since).max(1) as f64;
        let weight = (elapsed / lease as f64).min(1.0);
        self.rate += (self.taken as f64 / elapsed.max(lease as f64 / 16.0) - self.rate) * weight;
        (self.taken, self.since) = (0, now);
    }

    /// Units that will be taken within a lease.
    fn expected(&self, lease: u64) -> u64 {
        crate::limit::whole((self.rate * lease as f64).round())
    }
}
