//! A key whose limits are kept by a fleet: what it asks of the store, and what it does with the answer. Pure, handed
//! now.
#![cfg_attr(not(feature = "redis"), expect(dead_code, reason = "nothing makes a fleet"))]

use std::task::Waker;

use super::{
    KeyState, Scope,
    costs::{Costs, Sums},
    learn::Rules,
    meter::Meter,
    tick::Tick,
};
use crate::fleet::{
    lease::{Keeping, Lease},
    share::{Due, Share, State},
    store::{Reply, Request},
    terms::share_of,
};

/// What the fleet's task does next for a key.
#[derive(Debug)]
pub(crate) enum Step {
    Send(Request),
    LookAt(Tick),
    Nothing,
}

impl KeyState {
    /// The store is there, or not, since the last look. `elsewhere`: processes that other keys know of.
    pub(crate) fn set_store(&mut self, state: State, elsewhere: u32, now: Tick, wakes: &mut Vec<Waker>) {
        self.scope.set_store(state, elsewhere, now, wakes);
    }

    /// When the task has to look at this key, if it does not know yet.
    pub(crate) fn notice(&mut self, now: Tick) -> Option<Due> {
        let due = self.scope.due(now);
        let share = self.scope.share.as_deref_mut()?;
        let at = match due {
            Due::Now => Tick::default(),
            Due::At(at) => at,
            Due::Nothing => return None,
        };
        (at < share.looked_at).then(|| {
            share.looked_at = at;
            due
        })
    }

    /// The task looks at this key.
    pub(crate) fn step(&mut self, now: Tick) -> Step {
        if let Some(share) = &mut self.scope.share {
            share.looked_at = Tick::NEVER;
        }
        match self.scope.due(now) {
            Due::Now if !self.scope.is_lost() => Step::Send(self.scope.request(now)),
            Due::Now | Due::Nothing => Step::Nothing,
            Due::At(at) => {
                if let Some(share) = &mut self.scope.share {
                    share.looked_at = at;
                }
                Step::LookAt(at)
            }
        }
    }

    /// The store's answer to a request that left at `sent`. `draw`, from 0 to 1, spreads the next requests of processes
    /// that are told the same.
    pub(crate) fn answered(
        &mut self,
        (request, reply): (&Request, &Reply),
        (sent, draw): (Tick, f64),
        (now, rules): (Tick, Rules),
        wakes: &mut Vec<Waker>,
    ) {
        self.scope.answered((request, reply), (sent, draw), now);
        let named = request.lines.iter().zip(&reply.granted).map(|(line, granted)| (&*line.id, &*granted.meta));
        let others = reply.others.iter().map(|(id, meta)| (&**id, &**meta));
        let learned = named.chain(others).filter(|(_, meta)| rules.learn && !meta.is_empty());
        for told in learned {
            self.book.get_or_insert_default().adopt(&mut self.scope, told, rules, now);
        }
        if reply.pause > 0 {
            self.scope.pause_here(now.plus(reply.pause.saturating_mul(1_000)), now, wakes);
        }
        self.scope.restless();
        self.scope.pump(now, wakes);
    }
}

impl Scope {
    /// Its quotas are kept by a fleet from now on.
    pub(crate) fn shared(mut self, round_trip: u64) -> Self {
        self.share = Some(Box::new(Share::new(round_trip)));
        self
    }

    fn is_lost(&self) -> bool {
        self.share.as_ref().is_some_and(|share| share.state() != State::Shared)
    }

    /// Processes among which what is left is divided: one if there is no fleet.
    pub(crate) fn members(&self) -> u64 {
        self.share.as_ref().map_or(1, |share| share.members().max(1).into())
    }

    fn set_store(&mut self, state: State, elsewhere: u32, now: Tick, wakes: &mut Vec<Waker>) {
        let Some(share) = &mut self.share else { return };
        if !share.set_state(state, now) {
            return;
        }
        let (keeping, heard) = (share.keep(elsewhere), share.heard());
        for meter in &mut self.meters {
            meter.keep(keeping, heard, now);
        }
        self.restless();
        self.pump(now, wakes);
    }

    /// One was refused that would not wait: what it wanted is asked for all the same.
    pub(crate) fn wish(&mut self, costs: &Costs) {
        if let Some(share) = &mut self.share {
            share.wish = Some(costs.clone());
        }
    }

    /// From when on there is use in asking the store for what the first in line wants, if that is the store's to give.
    fn wanting_from(&self, share: &Share, now: Tick) -> Option<Tick> {
        let first = self.first().or(share.wish.as_ref()).filter(|_| self.slots.is_free())?;
        let short = |meter: &Meter| meter.lease().is_some() && !meter.is_ready(first.get(meter.unit()), now);
        let lacks = !share.is_fresh(now) || self.meters.iter().any(short);
        lacks.then(|| self.pause.not_before())
    }

    /// No store grants `costs` behind `ahead` before this instant.
    pub(super) fn leased_at(&self, ahead: &Sums, costs: &Costs, now: Tick) -> Tick {
        let from = self.pause.not_before().max(now);
        let leases = self.meters.iter().filter_map(|meter| Some((meter, meter.lease()?)));
        let soonest = leases.map(|(meter, lease)| {
            let units = ahead.get(meter.unit()).saturating_add(costs.get(meter.unit()));
            lease.soonest(units.saturating_sub(lease.free(meter.held(), now)), from)
        });
        soonest.max().unwrap_or(from)
    }

    fn due(&self, now: Tick) -> Due {
        let Some(share) = &self.share else { return Due::Nothing };
        if share.state() != State::Shared {
            // The task has to know whom to look at when the store is back.
            return if self.first().is_some() { Due::Now } else { Due::Nothing };
        }
        let leases = || self.meters.iter().filter_map(|meter| Some((meter, meter.lease()?)));
        let low = share.used && leases().any(|(meter, lease)| lease.is_low(meter.held(), now));
        let ends = leases().map(|(meter, lease)| lease.due_at(meter.held())).min();
        let stale = share.used && ends.is_none() && share.is_stale(now);
        let wanting = self.wanting_from(share, now).or_else(|| (low || stale).then_some(now));
        let first = self.first().or(share.wish.as_ref());
        let falls = |first: &Costs, unit| first.get(unit) < share.refused().get(unit);
        let less = first.is_some_and(|first| self.meters.iter().any(|meter| falls(first, meter.unit())));
        share.due((wanting, less), ends.unwrap_or(Tick::NEVER), now)
    }

    fn request(&mut self, now: Tick) -> Request {
        self.advance(now);
        let Some(mut share) = self.share.take() else { return Request::default() };
        let wish = share.wish.take();
        let need = self.first().or(wish.as_ref()).cloned().unwrap_or_default();
        let mut lines = Vec::new();
        for meter in &mut self.meters {
            let first = need.get(meter.unit());
            let queued = self.queue.as_ref().map_or(0, |queue| queue.sums().get(meter.unit()));
            let held = meter.held();
            if let Some(lease) = meter.lease_mut() {
                lines.push(lease.line(held, (queued.max(first), first), now));
            }
        }
        share.ask(need);
        let (pause, expected) = (share.take_pause(now), share.expected(now));
        self.share = Some(share);
        Request { key: String::new(), pause, expected, lines }
    }

    fn answered(&mut self, (request, reply): (&Request, &Reply), (sent, draw): (Tick, f64), now: Tick) {
        self.advance(now);
        let lasts = self.meters.iter().filter_map(|meter| meter.lease().map(Lease::lasts)).min();
        let Some(share) = &mut self.share else { return };
        let forgotten = share.answered(&reply.generation, reply.members, (sent, lasts));
        let short = request.lines.iter().zip(&reply.granted).any(|(line, got)| got.units < line.want + line.must);
        let wait = reply.retry.saturating_mul(1_000);
        // What one call of a great cost needs is kept for it alone, from that instant on.
        let heavy = request.lines.iter().any(|line| line.need > 1);
        let spread = if heavy { 0.0 } else { wait.min(MOST_SPREAD) as f64 / 2.0 * draw };
        share.retry_at(if short { now.plus(wait).plus(super::whole(spread)) } else { Tick::default() });
        for (line, granted) in request.lines.iter().zip(&reply.granted) {
            let leases = self.meters.iter_mut().filter_map(Meter::lease_mut);
            let Some(lease) = leases.into_iter().find(|lease| lease.id() == &*line.id) else { continue };
            lease.granted(granted, line, sent);
            if forgotten {
                lease.forgotten(granted.slice);
            }
        }
    }
}

/// Processes that are told the same wait ask again spread over half of it, and no more than half of this.
const MOST_SPREAD: u64 = 100_000_000;

impl Meter {
    /// How it is kept changes; `heard`: when the last request left that the store answered.
    pub(crate) fn keep(&mut self, keeping: Keeping, heard: Option<Tick>, now: Tick) {
        let (held, Some(mut lease)) = (self.held(), self.take_lease()) else { return };
        let (quota, left) = match keeping {
            Keeping::Shared => {
                lease.join();
                (lease.quota().clone(), None)
            }
            Keeping::Alone(_) | Keeping::Open => lease.part(keeping, held, now),
        };
        let burst = quota.burst_units();
        let level = left.map_or(burst, |left| u32::try_from(left).unwrap_or(u32::MAX).min(burst));
        let until = heard.unwrap_or(now).plus(lease.memory());
        *self = Self::with_level(&quota, level, now).leased(*lease);
        self.adopt_held(held);
        if let Some(left) = left.filter(|_| self.guard().is_some()) {
            self.allow(left, until);
        }
    }

    /// An answer told its quota anew, or another process was told.
    pub(crate) fn rerate_share(&mut self) {
        let Some(lease) = self.lease() else { return };
        let quota = match lease.keeping() {
            Keeping::Alone(members) => share_of(lease.quota(), members),
            Keeping::Shared | Keeping::Open => lease.quota().clone(),
        };
        self.rerate(&quota);
    }
}
