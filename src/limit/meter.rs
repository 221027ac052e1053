//! One live quota: its pace and, for a window, its guard, taken together.
//!
//! Invariant: what is held counts in the guard and lowers the pace's cap, so that a permit may commit at any later
//! instant without breaking the contract.

use super::{
    Quota, Unit,
    guard::Guard,
    pace::Pace,
    quota::Contract,
    slack::Slack,
    tick::{Tick, nanos_of},
};
use crate::fleet::lease::{Keeping, Lease};

/// Level of one quota, what is held of it and what was committed lately.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    pace: Pace,
    guard: Option<Guard>,
    held: u64,
    /// Nothing is granted before this instant: the server said that nothing is left.
    stopped: Tick,
    allowance: Option<Allowance>,
    /// Of a configured bucket, whose burst is a promise; none of a window, or of a rate that was learned.
    slack: Option<Slack>,
    /// Costs committed before this instant are not in its books.
    born: Tick,
    unit: Unit,
    /// It is kept by a fleet: what this process has leased of it takes the place of pace and guard.
    lease: Option<Box<Lease>>,
}

/// What an answer said is left, to be spent until an instant; then the pace alone counts again.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: u64,
    until: Tick,
}

impl Meter {
    /// A quota at rest: the whole burst is there.
    pub(crate) fn full(quota: &Quota, now: Tick) -> Self {
        let slack = (quota.contract() == Contract::Bucket).then(Slack::default);
        Self { slack, ..Self::with_level(quota, quota.burst_units(), now) }
    }

    /// A quota of which `level` units may be taken at once; the past is unknown.
    pub(crate) fn with_level(quota: &Quota, level: u32, now: Tick) -> Self {
        let per = nanos_of(quota.per()).max(1);
        let guard = (quota.contract() == Contract::Window).then(|| Guard::new(quota.units().into(), per));
        Self {
            pace: Pace::new(quota.units(), per, quota.burst_units(), level.min(quota.burst_units()), now),
            guard,
            held: 0,
            stopped: Tick::default(),
            allowance: None,
            slack: None,
            born: now,
            unit: quota.unit_ref().clone(),
            lease: None,
        }
    }

    /// Kept by a fleet from now on.
    pub(crate) fn leased(mut self, lease: Lease) -> Self {
        self.lease = Some(Box::new(lease));
        self
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.as_deref()
    }

    pub(crate) fn lease_mut(&mut self) -> Option<&mut Lease> {
        self.lease.as_deref_mut()
    }

    pub(crate) fn take_lease(&mut self) -> Option<Box<Lease>> {
        self.lease.take()
    }

    /// The lease, while it alone decides.
    fn sole(&self) -> Option<&Lease> {
        self.lease().filter(|lease| !matches!(lease.keeping(), Keeping::Alone(_)))
    }

    pub(crate) fn unit(&self) -> &Unit {
        &self.unit
    }

    pub(crate) fn guard_mut(&mut self) -> Option<&mut Guard> {
        self.guard.as_mut()
    }

    pub(crate) fn guard(&self) -> Option<&Guard> {
        self.guard.as_ref()
    }

    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Books all that happened by itself up to `now`.
    #[inline]
    pub(crate) fn advance(&mut self, now: Tick, waiting: bool) {
        if self.allowance.is_some_and(|allowance| allowance.until <= now) {
            self.end_allowance(waiting);
        }
        if let Some(guard) = &mut self.guard {
            if guard.room(self.held, self.pace.at()) == 0 {
                fill_behind(guard, &mut self.pace, self.held, now);
            }
            guard.expire(now);
        }
        self.pace.fill(now, self.held, waiting);
    }

    /// A reset may have been rounded: go on at the pace, not in a burst.
    #[cold]
    fn end_allowance(&mut self, waiting: bool) {
        if let Some(Allowance { until, .. }) = self.allowance.take() {
            self.pace.fill(until, self.held, waiting);
            self.pace.cut_to_one();
        }
    }

    /// Whether `cost` can be held now; call [`advance`](Self::advance) first.
    #[inline]
    pub(crate) fn is_ready(&self, cost: u64, now: Tick) -> bool {
        if let Some(lease) = self.sole() {
            return cost == 0 || lease.free(self.held, now) >= cost;
        }
        cost == 0
            || (now >= self.stopped
                && self.allowance.is_none_or(|allowance| allowance.left >= cost)
                && self.pace.holds(self.pace_need(cost))
                && self.guard.as_ref().is_none_or(|guard| guard.room(self.held, now) >= cost))
    }

    /// A cost above the burst waits for a full pace and takes it into debt.
    fn pace_need(&self, cost: u64) -> u64 {
        cost.min(self.pace.burst().into())
    }

    /// Whether `cost` can never be granted: above the window's units, or above a bucket's burst. The burst of a rate
    /// that was learned is no promise of the server.
    #[inline]
    pub(crate) fn is_never(&self, cost: u64) -> bool {
        if let Some(lease) = &self.lease {
            // Of the whole fleet's quota: while the store is away the share is less, but that passes.
            let quota = lease.quota();
            return cost > if self.guard.is_some() { quota.units() } else { quota.burst_units() }.into();
        }
        match (&self.guard, &self.slack) {
            (Some(guard), _) => cost > guard.limit(),
            (None, Some(_)) => cost > self.pace.burst().into(),
            (None, None) => false,
        }
    }

    #[inline]
    pub(crate) fn hold(&mut self, cost: u64) {
        self.pace.take(cost);
        self.held += cost;
        if let Some(lease) = &mut self.lease {
            lease.note_taken(cost);
        }
        if let Some(allowance) = &mut self.allowance {
            allowance.left = allowance.left.saturating_sub(cost);
        }
    }

    /// What was held goes on the wire at `now`.
    #[inline]
    pub(crate) fn commit(&mut self, cost: u64, now: Tick) {
        self.note_slack(cost, now);
        self.held -= cost.min(self.held);
        if let Some(lease) = self.lease.as_mut().filter(|_| cost > 0) {
            lease.commit(cost, now);
        }
        if let Some(guard) = self.guard.as_mut().filter(|_| cost > 0) {
            guard.commit(cost, now);
        }
    }

    fn note_slack(&mut self, cost: u64, now: Tick) {
        if let Some(slack) = self.slack.as_mut().filter(|_| cost > 0) {
            slack.note(self.pace.slack(self.held), now);
        }
    }

    /// What was held comes back, exactly once.
    pub(crate) fn give_back(&mut self, cost: u64) {
        let back = cost.min(self.held);
        self.held -= back;
        self.pace.give(back);
        if let Some(allowance) = &mut self.allowance {
            allowance.left = allowance.left.saturating_add(back);
        }
    }

    /// Charges what was held in another scope's book before this meter existed.
    pub(crate) fn adopt_held(&mut self, held: u64) {
        self.held += held;
        self.pace.take(held);
    }

    /// Corrects a cost committed at `sent` to what it really was.
    pub(crate) fn settle(&mut self, charged: u64, actual: u64, sent: Tick, now: Tick) {
        match &mut self.lease {
            Some(lease) if actual > charged => lease.charge(actual - charged, now),
            Some(lease) => lease.refund(charged - actual, sent),
            None => {}
        }
        if actual >= charged {
            self.note_slack(actual - charged, now);
            self.pace.take(actual - charged);
            if let Some(guard) = &mut self.guard {
                guard.commit(actual - charged, now);
            }
        } else if sent >= self.born {
            let room = self.slack.as_ref().map_or(i128::MAX, |slack| slack.since(sent));
            let given = self.pace.give_at_most(charged - actual, room);
            if let Some(slack) = &mut self.slack {
                slack.lower(given, sent);
            }
            self.pace.fill(now, self.held, false);
            if let Some(guard) = &mut self.guard {
                guard.take_back(charged - actual, sent);
            }
        }
    }

    /// The first instant from `from` on at which `cost` can be held when `ahead` units are taken before it. Exact for
    /// the first in line, else a lower bound. `cut`: at `from` the level is at most one unit.
    /// [`Tick::NEVER`]: only a commit or a give-back will tell.
    pub(crate) fn ready_at(&self, ahead: u64, cost: u64, from: Tick, cut: bool) -> Tick {
        if cost == 0 {
            return from;
        }
        if let Some(lease) = self.sole() {
            let free = lease.free(self.held, from);
            return if free >= ahead.saturating_add(cost) { from } else { Tick::NEVER };
        }
        let mut pace = self.pace;
        let mut guard_at = from.max(self.stopped);
        if let Some(allowance) = self.allowance
            && allowance.left < ahead.saturating_add(cost)
        {
            guard_at = guard_at.max(allowance.until);
        }
        if let Some(guard) = &self.guard {
            if self.lease.is_some() && cost > guard.limit() {
                // More than this process's share: only the store's return will tell.
                return Tick::NEVER;
            }
            if guard.room(self.held, pace.at()) == 0 {
                let frees = guard.free_at(1, self.held, pace.at());
                if frees == Tick::NEVER {
                    return Tick::NEVER;
                }
                pace.fill_to_one(frees, self.held);
            }
            let most = guard.limit().saturating_sub(self.held).max(1);
            guard_at = guard.free_at(ahead.saturating_add(cost).min(most), self.held, guard_at);
        }
        if cut {
            pace.fill(from, self.held, false);
            pace.cut_to_one();
        }
        pace.ready_at(ahead.saturating_add(self.pace_need(cost)), guard_at)
    }

    /// Cuts the level to one unit: what was saved before a pause is not let out at its end.
    pub(crate) fn cut_to_one(&mut self) {
        self.pace.cut_to_one();
    }

    /// Stops the quota until `until`; only ever later.
    pub(crate) fn stop_until(&mut self, until: Tick) {
        self.stopped = self.stopped.max(until);
    }

    /// At most `left` units until `until`, in place of what was allowed before.
    pub(crate) fn allow(&mut self, left: u64, until: Tick) {
        self.allowance = Some(Allowance { left, until });
    }

    /// Changes the quota under way; what was sent and what is held stay booked. Call [`advance`](Self::advance) first.
    pub(crate) fn rerate(&mut self, quota: &Quota) {
        let per = nanos_of(quota.per()).max(1);
        self.pace.rerate(quota.units(), per, quota.burst_units());
        if let Some(guard) = &mut self.guard {
            guard.rerate(quota.units().into(), per);
        }
    }

    /// Keeps another quota from now on; what is held stays held.
    pub(crate) fn replace(&mut self, quota: &Quota, now: Tick) {
        let (held, lease) = (self.held, self.lease.take());
        *self = Self::with_level(quota, 1, now);
        self.lease = lease;
        self.adopt_held(held);
    }

    /// Units that could be taken at once now.
    pub(crate) fn left(&self, now: Tick) -> u64 {
        if let Some(lease) = self.sole() {
            return lease.free(self.held, now);
        }
        if now < self.stopped {
            return 0;
        }
        let level = u64::try_from(self.pace.level()).unwrap_or(0).min(self.allowance.map_or(u64::MAX, |a| a.left));
        self.guard.as_ref().map_or(level, |guard| level.min(guard.room(self.held, now)))
    }

    /// The instant from which on nothing of the past matters: full, empty books, not stopped.
    pub(crate) fn rests_at(&self) -> Tick {
        let full = self.pace.ready_at(self.pace.burst().into(), self.pace.at());
        let empty = self.guard.as_ref().map_or_else(Tick::default, Guard::empty_at);
        let allowed = self.allowance.map_or_else(Tick::default, |allowance| allowance.until);
        let leased = self.lease().map_or_else(Tick::default, Lease::rests_at);
        if self.held > 0 { Tick::NEVER } else { full.max(empty).max(self.stopped).max(allowed).max(leased) }
    }
}

/// While the guard is full the pace fills to one unit only, counted from the instant at which the guard frees: saving up
/// would echo the first burst in every window, saving nothing would cost a unit a window.
#[cold]
fn fill_behind(guard: &Guard, pace: &mut Pace, held: u64, now: Tick) {
    let frees = guard.free_at(1, held, pace.at());
    pace.fill_to_one(now.min(frees), held);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const MS: u64 = 1_000_000;

    fn drive(meter: &mut Meter, until_ms: u64) -> Vec<u64> {
        let mut now = Tick::default();
        let mut sent = Vec::new();
        while now < Tick::from_nanos(until_ms * MS) {
            meter.advance(now, true);
            while meter.is_ready(1, now) {
                meter.hold(1);
                meter.commit(1, now);
                sent.push(now.nanos());
            }
            now = meter.ready_at(0, 1, now, false).max(now.plus(1));
        }
        sent
    }

    fn most_in(sent: &[u64], window: u64) -> usize {
        let mut first = 0;
        let mut most = 0;
        for (i, at) in sent.iter().enumerate() {
            while at - sent[first] > window {
                first += 1;
            }
            most = most.max(i - first + 1);
        }
        most
    }

    #[test]
    fn busy_windows_use_nearly_all_and_never_more() {
        for n in 1..=100u32 {
            let window = Duration::from_secs(1);
            let mut meter = Meter::full(&Quota::window(n, window), Tick::default());
            let sent = drive(&mut meter, 60_000);
            assert!(most_in(&sent, 1000 * MS) <= n as usize, "N = {n}");
            let used = sent.iter().filter(|t| **t >= 10_000 * MS).count() as f64 / (50.0 * f64::from(n));
            assert!(used >= 0.98, "N = {n}: {used}");
        }
    }

    #[test]
    fn the_first_burst_has_no_echo() {
        let mut meter = Meter::full(&Quota::per_second(100), Tick::default());
        let sent = drive(&mut meter, 5_000);
        let late: Vec<u64> = sent.iter().copied().filter(|t| *t > 1_500 * MS).collect();
        assert!(most_in(&late, 20 * MS) <= 4, "at most the pace and a unit in 20 ms");
    }

    #[test]
    fn a_heavy_cost_goes_into_debt_on_a_window_and_never_on_a_bucket() {
        let mut window = Meter::full(&Quota::per_second(100), Tick::default());
        assert!(window.is_ready(100, Tick::default()));
        assert!(window.is_never(101));
        window.hold(100);
        window.commit(100, Tick::default());
        window.advance(Tick::from_nanos(900 * MS), true);
        assert!(!window.is_ready(1, Tick::from_nanos(900 * MS)));
        let bucket = Meter::full(&Quota::bucket(100, Duration::from_secs(1)).burst(10), Tick::default());
        assert!(bucket.is_never(11) && !bucket.is_never(10));
    }

    /// A counter that turned into a contract forgot what was held, and gave back another's instead.
    #[test]
    fn another_quota_keeps_what_is_held() {
        let mut meter = Meter::with_level(&Quota::bucket(10, Duration::from_secs(1)), 10, Tick::default());
        meter.hold(3);
        meter.replace(&Quota::per_second(4), Tick::from_nanos(MS));
        assert_eq!((meter.held(), meter.guard().unwrap().room(meter.held(), Tick::from_nanos(MS))), (3, 1));
        // What was committed before its time is not in its books.
        meter.settle(5, 0, Tick::default(), Tick::from_nanos(2 * MS));
        assert_eq!(meter.left(Tick::from_nanos(2 * MS)), 0);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Hold(u64),
        Commit(usize),
        Drop(usize),
        Rerate(u32, u64),
        Others(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            5 => (1u64..4).prop_map(Op::Hold),
            5 => (0usize..8).prop_map(Op::Commit),
            2 => (0usize..8).prop_map(Op::Drop),
            1 => (1u32..30, 1u64..2000).prop_map(|(n, ms)| Op::Rerate(n, ms)),
            1 => (0u64..10).prop_map(Op::Others),
        ]
    }

    proptest! {
        /// Whoever stalls between grant and commit: no closed window sees more than N.
        #[test]
        fn no_window_above_the_limit_however_holders_stall(
            n in 1u32..30, ms in 1u64..2000,
            steps in proptest::collection::vec((0u64..300, op()), 1..200),
        ) {
            let mut meter = Meter::full(&Quota::window(n, Duration::from_millis(ms)), Tick::default());
            let (mut now, mut held, mut sent) = (Tick::default(), Vec::<u64>::new(), Vec::<(u64, u64)>::new());
            // After a fall of the limit, what was held under the old one may still commit.
            let mut promised = u64::from(n);
            for (dt, op) in steps {
                now = now.plus(dt * MS);
                meter.advance(now, true);
                match op {
                    Op::Hold(cost) if meter.is_ready(cost, now) => { meter.hold(cost); held.push(cost); }
                    Op::Drop(i) if i < held.len() => meter.give_back(held.swap_remove(i)),
                    Op::Commit(i) if i < held.len() => {
                        let cost = held.swap_remove(i);
                        meter.commit(cost, now);
                        sent.push((now.nanos(), cost));
                        let window = meter.guard().unwrap().window();
                        let from = now.nanos().saturating_sub(window);
                        let count: u64 = sent.iter().filter(|(t, _)| *t >= from).map(|(_, c)| c).sum();
                        prop_assert!(count <= promised, "{count} > {promised}");
                    }
                    Op::Rerate(n, ms) if held.is_empty() && sent.is_empty() => {
                        meter.rerate(&Quota::window(n, Duration::from_millis(ms)));
                        promised = u64::from(n);
                    }
                    Op::Others(d) => meter.guard_mut().unwrap().set_others(d, now),
                    _ => {}
                }
            }
        }

        /// A timer set for `ready_at` finds the cost ready, and a nanosecond earlier it was not.
        #[test]
        fn the_first_in_line_is_ready_exactly_when_forecast(
            n in 1u32..30, ms in 1u64..2000, cost in 1u64..8,
            sends in proptest::collection::vec(0u64..100, 0..80),
        ) {
            let quota = Quota::window(n, Duration::from_millis(ms));
            let mut meter = Meter::full(&quota, Tick::default());
            let mut now = Tick::default();
            for dt in sends {
                now = now.plus(dt * MS);
                meter.advance(now, false);
                if meter.is_ready(1, now) { meter.hold(1); meter.commit(1, now); }
            }
            meter.advance(now, false);
            if !meter.is_never(cost) {
                let at = meter.ready_at(0, cost, now, false);
                if at > now {
                    let mut early = meter.clone();
                    early.advance(Tick::from_nanos(at.nanos() - 1), false);
                    prop_assert!(!early.is_ready(cost, Tick::from_nanos(at.nanos() - 1)));
                }
                meter.advance(at, false);
                prop_assert!(meter.is_ready(cost, at));
            }
        }
    }
}
