//! One scope: its quotas, its pause, its slots and its line, taken together or not at all. Pure, handed now.
//!
//! Invariant: each meter's `held` is the sum of the costs of all grants of this scope that are neither committed nor
//! given back, whenever the meter was made.

use std::task::Waker;

use super::{
    Unit,
    costs::{Costs, Sums},
    learned::whole,
    meter::Meter,
    pause::{self, Pause, ProbeId, Ramp},
    queue::{Granted, LAPSE, Queue},
    tick::Tick,
};
use crate::fleet::share::Share;

/// What one call wants of a scope.
#[derive(Clone, Debug)]
pub(crate) struct Want {
    pub(crate) costs: Costs,
    pub(crate) deadline: Tick,
    /// The longest pause worth waiting for, in nanoseconds.
    pub(crate) max_pause: u64,
    /// Refused if so many wait already.
    pub(crate) most_waiting: usize,
}

/// What comes of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Turn {
    /// Held for the caller, who commits or gives back. `probe`: it is the first after a pause.
    Granted { probe: Option<ProbeId> },
    /// In line as `seq` among `waiting`; ask again at `until` or when woken.
    Wait { seq: u64, until: Tick, waiting: usize },
    /// No.
    Refused { why: Why, retry_at: Option<Tick> },
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its cost can never fit.
    Never,
    /// It would come after its deadline.
    Deadline,
    /// More remains of a pause than it would wait.
    Paused,
    /// Nothing is free at this instant, and it would not wait.
    Busy,
    /// Too many wait, or there are too many keys.
    Full,
    /// The fleet's store is away, and nothing goes out without it.
    StoreLost,
}

/// Slots: attempts that may be under way at once.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    most: u32,
    configured: u32,
    pub(crate) held: u32,
    pub(crate) in_flight: u32,
}

impl Slots {
    /// The server told how many requests may be under way; it never raises what is configured.
    pub(crate) fn learn_most(&mut self, limit: Option<f64>) {
        if let Some(limit) = limit.filter(|limit| *limit >= 1.0) {
            self.most = u32::try_from(whole(limit)).unwrap_or(u32::MAX).min(self.configured);
        }
    }

    pub(super) fn is_free(&self) -> bool {
        self.held.saturating_add(self.in_flight) < self.most
    }
}

/// Quotas that are taken together, and who waits for them.
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) meters: Vec<Meter>,
    pub(crate) pause: Pause,
    pub(crate) slots: Slots,
    pub(crate) ramp: Ramp,
    /// Sum of what is held, for meters that are made later.
    held: Sums,
    /// How long the answer of a probe is waited for.
    pub(crate) patience: u64,
    /// A fleet keeps its quotas.
    pub(crate) share: Option<Box<Share>>,
    pub(super) queue: Option<Box<Queue>>,
    /// The number of the next who stands in line; never used twice.
    next: u64,
    /// Attempts sent so far.
    orders: u64,
}

/// Least time that the answer of a probe is waited for.
pub(crate) const PATIENCE: u64 = 250_000_000;

/// A waiter's timer is at least so far ahead: the grain of timers.
const TIMER: u64 = 1_000_000;

impl Scope {
    pub(crate) fn new(meters: Vec<Meter>, max_in_flight: u32, ramp: Ramp) -> Self {
        Self {
            meters,
            pause: Pause::default(),
            slots: Slots { most: max_in_flight, configured: max_in_flight, held: 0, in_flight: 0 },
            ramp,
            held: Sums::default(),
            patience: PATIENCE,
            share: None,
            queue: None,
            next: 0,
            orders: 0,
        }
    }

    /// So many attempts had gone out under its quotas before it was made.
    pub(crate) fn sent_before(mut self, orders: u64) -> Self {
        self.orders = orders;
        self
    }

    /// Asks for `want`: granted if nobody waits and all is there, else in line, else refused.
    pub(crate) fn join(&mut self, want: &Want, waker: &Waker, now: Tick, wakes: &mut Vec<Waker>) -> Turn {
        self.pump(now, wakes);
        if self.is_free(&want.costs, now) {
            return Turn::Granted { probe: self.hold(&want.costs, now) };
        }
        if let Some(refused) = self.refused(want, now) {
            return refused;
        }
        let estimate = self.estimate(&want.costs, now);
        let queue = self.queue.get_or_insert_with(|| Box::new(Queue::beginning(self.next)));
        if queue.waiting() >= want.most_waiting {
            return Turn::Refused { why: Why::Full, retry_at: known(estimate) };
        }
        if estimate != Tick::NEVER && estimate >= want.deadline {
            return Turn::Refused { why: Why::Deadline, retry_at: Some(estimate) };
        }
        let seq = self.next;
        self.next += 1;
        queue.join(seq, want.costs.clone(), (want.deadline, want.max_pause));
        self.wait((seq, waker), want, now)
    }

    /// As [`join`](Self::join), but never in line.
    pub(crate) fn try_now(&mut self, want: &Want, now: Tick, wakes: &mut Vec<Waker>) -> Turn {
        self.pump(now, wakes);
        if self.is_free(&want.costs, now) {
            return Turn::Granted { probe: self.hold(&want.costs, now) };
        }
        self.refused(want, now).unwrap_or_else(|| {
            self.wish(&want.costs);
            Turn::Refused { why: Why::Busy, retry_at: known(self.estimate(&want.costs, now)) }
        })
    }

    /// Nobody waits and all is there; call [`advance`](Self::advance) first.
    fn is_free(&self, costs: &Costs, now: Tick) -> bool {
        self.queue.as_ref().is_none_or(|queue| queue.is_idle()) && self.is_ready(costs, now)
    }

    /// The refusal of one who cannot be served now, unless waiting helps.
    fn refused(&self, want: &Want, now: Tick) -> Option<Turn> {
        let never = self.is_never(&want.costs).then_some(Turn::Refused { why: Why::Never, retry_at: None });
        never.or_else(|| self.refused_by_store()).or_else(|| self.refused_by_pause(want, now))
    }

    fn is_never(&self, costs: &Costs) -> bool {
        self.meters.iter().any(|meter| meter.is_never(costs.get(meter.unit())))
    }

    fn refused_by_store(&self) -> Option<Turn> {
        let until = self.share.as_ref()?.closed_until()?;
        Some(Turn::Refused { why: Why::StoreLost, retry_at: Some(until) })
    }

    fn refused_by_pause(&self, want: &Want, now: Tick) -> Option<Turn> {
        let until = self.pause.until(now)?;
        let why = if until >= want.deadline {
            Why::Deadline
        } else if until.since(now) > want.max_pause {
            Why::Paused
        } else {
            return None;
        };
        Some(Turn::Refused { why, retry_at: Some(until) })
    }

    /// One in line asks again.
    pub(crate) fn poll(&mut self, (seq, waker): (u64, &Waker), want: &Want, now: Tick, wakes: &mut Vec<Waker>) -> Turn {
        self.advance(now);
        // A grant that it left uncollected for too long lapses before it stands in its place again.
        self.lapse_due(now);
        if let Some(queue) = &mut self.queue {
            queue.revive(seq);
        }
        self.serve(now, wakes);
        if let Some(Granted { probe, .. }) = self.queue.as_mut().and_then(|queue| queue.collect(seq)) {
            return Turn::Granted { probe };
        }
        let hopeless = self.refused(want, now).or_else(|| {
            (now >= want.deadline)
                .then(|| Turn::Refused { why: Why::Deadline, retry_at: known(self.forecast(seq, &want.costs, now).0) })
        });
        if let Some(refused) = hopeless {
            self.leave(seq, now, wakes);
            return refused;
        }
        self.wait((seq, waker), want, now)
    }

    /// One in line leaves it, whatever it was granted goes back.
    pub(crate) fn leave(&mut self, seq: u64, now: Tick, wakes: &mut Vec<Waker>) {
        let Some(queue) = &mut self.queue else { return };
        if let Some(granted) = queue.remove(seq) {
            self.give_back(&granted.waiter.costs, granted.probe);
        }
        self.pump(now, wakes);
    }

    /// Grants, in order, to all that are due, and wakes whoever should set a new timer.
    #[inline]
    pub(crate) fn pump(&mut self, now: Tick, wakes: &mut Vec<Waker>) {
        self.advance(now);
        if self.queue.is_some() {
            self.lapse_due(now);
            self.serve(now, wakes);
        }
    }

    fn serve(&mut self, now: Tick, wakes: &mut Vec<Waker>) {
        let Some(mut queue) = self.queue.take() else { return };
        while let Some(first) = queue.first() {
            if first.deadline <= now {
                wakes.extend(queue.expire_first());
                continue;
            }
            if self.is_ready(&first.costs, now) {
                let probe = self.hold(&first.costs, now);
                wakes.extend(queue.grant_first(probe, now.plus(LAPSE)));
            } else if self.is_never(&first.costs) {
                // The limit fell: it will be refused, unless that is over when it asks.
                wakes.extend(queue.set_first_aside());
            } else {
                break;
            }
        }
        queue.stir(wakes);
        if !queue.is_empty() {
            self.queue = Some(queue);
        }
    }

    /// Takes back grants that nobody collected in time.
    fn lapse_due(&mut self, now: Tick) {
        while let Some((costs, probe)) = self.queue.as_mut().and_then(|queue| queue.lapse(now)) {
            self.give_back(&costs, probe);
            self.advance(now);
        }
    }

    /// Books what happened by itself: refills, expiries, the end of a pause.
    #[inline]
    pub(crate) fn advance(&mut self, now: Tick) {
        let waiting = self.queue.as_ref().is_some_and(|queue| !queue.is_idle());
        if let Some(end) = self.pause.take_end(now) {
            for meter in &mut self.meters {
                meter.advance(end, false);
                meter.cut_to_one();
            }
            self.restless();
        }
        for meter in &mut self.meters {
            meter.advance(now, waiting);
        }
    }

    #[inline]
    fn is_ready(&self, costs: &Costs, now: Tick) -> bool {
        self.pause.is_quiet(now)
            && self.slots.is_free()
            && self.share.as_ref().is_none_or(|share| share.is_fresh(now))
            && (!self.meters.is_empty() || self.ramp.is_ready(self.slots.held.into(), now))
            && self.meters.iter().all(|meter| {
                let cost = costs.get(meter.unit());
                !meter.is_never(cost) && meter.is_ready(cost, now)
            })
    }

    /// Takes all of it. Gives which probe the grant is.
    #[inline]
    fn hold(&mut self, costs: &Costs, now: Tick) -> Option<ProbeId> {
        for meter in &mut self.meters {
            meter.hold(costs.get(meter.unit()));
        }
        if let Some(share) = &mut self.share {
            share.used = true;
        }
        self.held.add(costs);
        self.slots.held += 1;
        self.pause.grant(now, self.patience)
    }

    /// What was held goes on the wire. Gives its order among all that was sent.
    #[inline]
    pub(crate) fn commit(&mut self, costs: &Costs, now: Tick) -> u64 {
        self.advance(now);
        for meter in &mut self.meters {
            meter.commit(costs.get(meter.unit()), now);
        }
        self.held.sub(costs);
        self.slots.held -= 1;
        self.slots.in_flight += 1;
        self.ramp.commit(now);
        self.see_again();
        self.orders += 1;
        self.orders
    }

    /// Where slots have no bound, the attempt that was just committed need not be counted. Gives whether that is so.
    pub(crate) fn uncount(&mut self) -> bool {
        let unbounded = self.slots.most == u32::MAX;
        if unbounded {
            self.slots.in_flight -= 1;
        }
        unbounded
    }

    /// Attempts sent so far.
    pub(crate) fn orders(&self) -> u64 {
        self.orders
    }

    /// What was held comes back, exactly once; call [`pump`](Self::pump) after.
    pub(crate) fn give_back(&mut self, costs: &Costs, probe: Option<ProbeId>) {
        for meter in &mut self.meters {
            meter.give_back(costs.get(meter.unit()));
        }
        self.held.sub(costs);
        self.slots.held -= 1;
        if let Some(probe) = probe {
            self.pause.probe_unsent(probe);
        }
        self.restless();
    }

    /// Corrects the committed cost of a unit; `span`: when it was sent, and now.
    pub(crate) fn settle(&mut self, unit: &Unit, charged: u64, actual: u64, (sent, now): (Tick, Tick)) {
        self.advance(now);
        for meter in self.meters.iter_mut().filter(|meter| meter.unit() == unit) {
            meter.settle(charged, actual, sent, now);
        }
        self.restless();
    }

    /// The attempt is over, its body read or dropped; call [`pump`](Self::pump) after.
    pub(crate) fn free_slot(&mut self) {
        self.slots.in_flight -= 1;
        self.see_again();
    }

    /// The probe of a pause has its answer, or failed.
    pub(crate) fn probe_back(&mut self, probe: ProbeId) {
        self.pause.probe_back(probe);
        self.restless();
    }

    /// Asked to wait until an instant; takes back what is granted and not collected, wakes those who cannot wait so
    /// long.
    pub(crate) fn pause_until(&mut self, until: Tick, now: Tick, wakes: &mut Vec<Waker>) {
        if let Some(share) = &mut self.share {
            share.tell_pause(until.min(now.plus(pause::LONGEST)));
        }
        self.pause_here(until, now, wakes);
    }

    /// As [`pause_until`](Self::pause_until), but other processes are not told: they know.
    pub(crate) fn pause_here(&mut self, until: Tick, now: Tick, wakes: &mut Vec<Waker>) {
        self.advance(now);
        if !self.pause.extend(until, now) {
            return;
        }
        if let (Some(until), Some(queue)) = (self.pause.until(now), &mut self.queue) {
            queue.recall(now);
            queue.wake_hopeless(until, now, wakes);
        }
        self.pump(now, wakes);
    }

    /// Adds a quota that was learned; what is held is charged to it too.
    pub(crate) fn add_meter(&mut self, mut meter: Meter) -> usize {
        meter.adopt_held(self.held.get(meter.unit()));
        self.meters.push(meter);
        self.restless();
        self.meters.len() - 1
    }

    /// Forecasts may have moved earlier.
    pub(crate) fn restless(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.restless = true;
        }
    }

    /// Those who were told "never by itself" look again.
    fn see_again(&mut self) {
        if let Some(queue) = &mut self.queue
            && std::mem::take(&mut queue.blind)
        {
            queue.restless = true;
        }
    }

    /// When a newcomer with `costs` would be granted, behind all who wait.
    fn estimate(&self, costs: &Costs, now: Tick) -> Tick {
        let none = Sums::default();
        let (ahead, count) = self.queue.as_ref().map_or((&none, 0), |queue| (queue.sums(), queue.waiting() as u64));
        match self.ready_at(ahead, count, costs, now) {
            Tick::NEVER if self.share.is_some() && self.slots.is_free() => self.leased_at(ahead, costs, now),
            at => at,
        }
    }

    /// When one in line is granted; `true`: exactly, so far as nobody leaves; else a lower bound.
    fn forecast(&self, seq: u64, costs: &Costs, now: Tick) -> (Tick, bool) {
        let Some(queue) = &self.queue else { return (now, false) };
        let (ahead, exact) = queue.ahead(seq);
        let at = self.ready_at(&ahead, 0, costs, now);
        // A grant before one of the first may lapse; for the others this would only be an early wake.
        (if exact { at.min(queue.next_lapse()) } else { at }, exact)
    }

    /// One in line waits for its waker, or for its timer: its forecast, or its deadline.
    fn wait(&mut self, (seq, waker): (u64, &Waker), want: &Want, now: Tick) -> Turn {
        let (at, exact) = self.forecast(seq, &want.costs, now);
        if let Some(queue) = &mut self.queue {
            queue.set_timer((seq, waker), exact, at == Tick::NEVER);
        }
        let until = at.max(now.plus(TIMER)).min(want.deadline);
        Turn::Wait { seq, until, waiting: self.waiting() }
    }

    /// The first instant at which `costs` are there, behind `ahead`; a lower bound unless nobody is ahead.
    fn ready_at(&self, ahead: &Sums, ahead_count: u64, costs: &Costs, now: Tick) -> Tick {
        let unheard = self.share.as_ref().is_some_and(|share| !share.is_fresh(now));
        if unheard || !self.slots.is_free() {
            return Tick::NEVER;
        }
        let from = self.pause.not_before().max(now);
        let cut = self.pause.until(now).is_some();
        if self.meters.is_empty() {
            return self.ramp.ready_at(self.slots.held.into(), ahead_count.saturating_add(1), from);
        }
        let ready = |meter: &Meter| meter.ready_at(ahead.get(meter.unit()), costs.get(meter.unit()), from, cut);
        self.meters.iter().map(ready).max().unwrap_or(from)
    }

    /// What the first in line wants.
    pub(crate) fn first(&self) -> Option<&Costs> {
        self.queue.as_ref().and_then(|queue| queue.first()).map(|waiter| &waiter.costs)
    }

    /// Whether anybody waits, or has been granted and not come for it.
    pub(crate) fn has_line(&self) -> bool {
        self.queue.is_some()
    }

    /// Who waits.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.waiting())
    }

    /// From when on nothing of the past matters; [`Tick::NEVER`] while something is under way.
    pub(crate) fn rests_at(&self) -> Tick {
        let asking = self.share.as_ref().is_some_and(|share| share.in_flight);
        if asking || self.queue.is_some() || self.slots.held > 0 || self.slots.in_flight > 0 {
            return Tick::NEVER;
        }
        self.meters.iter().map(Meter::rests_at).max().unwrap_or_default().max(self.pause.not_before())
    }
}

fn known(tick: Tick) -> Option<Tick> {
    (tick != Tick::NEVER).then_some(tick)
}
