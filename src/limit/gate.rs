//! The async face: the cancel-safe wait for a permit, and the permit, held until it is committed.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

use super::{
    Key, Limiter, Route, Unit,
    costs::Costs,
    keyed::{Cell, KeyState, Origin},
    pause::ProbeId,
    routes::GroupId,
    scope::{Turn, Want, Why},
    tick::Tick,
};
use crate::{clock, headers::Hints};

/// The wait for a [`Permit`]; made by [`Limiter::acquire`].
///
/// # Cancel safety
/// Dropping it at any point gives up the place in line and gives back whatever was granted.
#[must_use = "futures do nothing unless awaited"]
pub struct Acquire {
    limiter: Limiter,
    key: Key,
    route: Option<Route>,
    want: Want,
    cell: Option<Arc<Cell>>,
    stage: Stage,
    /// What is held of the route's quotas while the call stands in the key's line.
    held: Option<Held>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Where a call stands: narrow to wide, first at its route's quotas, then at the key's.
#[derive(Clone, Copy, Debug)]
enum Stage {
    New,
    Route {
        group: GroupId,
        seq: u64,
    },
    /// Through with the route's quotas.
    Passed,
    Key {
        seq: u64,
    },
    Done,
}

/// What is held of a group's quotas.
#[derive(Clone, Copy, Debug)]
struct Held {
    group: GroupId,
    probe: Option<ProbeId>,
}

impl Acquire {
    pub(crate) fn new(limiter: Limiter, key: Key, route: Option<Route>, want: Want) -> Self {
        Self { limiter, key, route, want, cell: None, stage: Stage::New, held: None, timer: None }
    }

    /// Stands in line, or asks again from there.
    fn ask(&mut self, cx: &Context<'_>) -> Turn {
        let now = self.limiter.now();
        loop {
            let turn = self.ask_stage(cx.waker(), now);
            match (turn, self.stage) {
                (Turn::Granted { probe }, Stage::Route { group, .. }) => {
                    self.held = Some(Held { group, probe });
                    self.stage = Stage::Passed;
                }
                _ => return turn,
            }
        }
    }

    fn ask_stage(&mut self, waker: &Waker, now: Tick) -> Turn {
        let want = &self.want;
        if let Some(cell) = &self.cell {
            let (stage, free) = (self.stage, self.route.filter(|_| self.held.is_none()));
            let (turn, stage) = cell.with(|state, wakes| {
                let stage = narrowed(state, stage, free, now, wakes);
                advance(state, stage, (want, waker), now, wakes)
            });
            self.stage = stage;
            return turn;
        }
        let route = self.route;
        let entered = self.limiter.with(&self.key, now, |state, wakes| {
            let stage = state.group_of(route, now).map_or(Stage::Passed, |group| Stage::Route { group, seq: NEW });
            advance(state, stage, (want, waker), now, wakes)
        });
        let Some((cell, (turn, stage))) = entered else {
            return Turn::Refused { why: Why::Full, retry_at: None };
        };
        (self.cell, self.stage) = (Some(cell), stage);
        turn
    }

    fn set_timer(&mut self, until: Tick) -> Pin<&mut Sleep> {
        let at = self.limiter.epoch().instant(until);
        let timer = self.timer.get_or_insert_with(|| Box::pin(clock::sleep_until(at)));
        if timer.deadline() != at {
            timer.as_mut().reset(at);
        }
        timer.as_mut()
    }

    /// One event a wait, when it begins.
    fn tell(&self, until: Tick, waiting: usize) {
        if self.timer.is_none() {
            let until = self.limiter.epoch().instant(until);
            tracing::debug!(target: "abide", key = %self.key, cause = "limiter", ?until, waiting, "waiting");
        }
    }

    /// Gives up the place in line and what is held of the route's quotas.
    fn give_up(&mut self) {
        let (stage, held) = (std::mem::replace(&mut self.stage, Stage::Done), self.held.take());
        let Some(cell) = self.cell.take() else { return };
        let (now, costs) = (self.limiter.now(), &self.want.costs);
        cell.with(|state, wakes| {
            match stage {
                Stage::Route { group, seq } => {
                    if let Some(group) = state.group(group) {
                        group.scope.leave(seq, now, wakes);
                    }
                }
                Stage::Key { seq } => state.scope.leave(seq, now, wakes),
                Stage::New | Stage::Passed | Stage::Done => {}
            }
            if let Some(held) = held {
                give_back_group(state, held, costs, now, wakes);
            }
        });
    }
}

/// Not in line yet.
const NEW: u64 = u64::MAX;

/// The stage, unless the call stands in the key's line and its route was bound meanwhile: then it goes there first.
fn narrowed(state: &mut KeyState, stage: Stage, free: Option<Route>, now: Tick, wakes: &mut Vec<Waker>) -> Stage {
    let (Stage::Key { seq }, Some(group)) = (stage, state.group_of(free, now)) else { return stage };
    state.scope.leave(seq, now, wakes);
    Stage::Route { group, seq: NEW }
}

/// One step at a stage: joins its line, or asks again from there.
fn advance(
    state: &mut KeyState,
    stage: Stage,
    (want, waker): (&Want, &Waker),
    now: Tick,
    wakes: &mut Vec<Waker>,
) -> (Turn, Stage) {
    let (scope, seq, group) = match stage {
        Stage::Route { group, seq } => match state.group(group) {
            Some(found) => (&mut found.scope, seq, Some(group)),
            // The group has left meanwhile: nothing of it binds.
            None => return advance(state, Stage::Passed, (want, waker), now, wakes),
        },
        Stage::Key { seq } => (&mut state.scope, seq, None),
        Stage::New | Stage::Passed | Stage::Done => (&mut state.scope, NEW, None),
    };
    let turn =
        if seq == NEW { scope.join(want, waker, now, wakes) } else { scope.poll((seq, waker), want, now, wakes) };
    let seq = match turn {
        Turn::Wait { seq, .. } => seq,
        Turn::Granted { .. } | Turn::Refused { .. } => seq,
    };
    (turn, group.map_or(Stage::Key { seq }, |group| Stage::Route { group, seq }))
}

fn give_back_group(state: &mut KeyState, held: Held, costs: &Costs, now: Tick, wakes: &mut Vec<Waker>) {
    if let Some(group) = state.group(held.group) {
        group.scope.give_back(costs, held.probe);
        group.scope.pump(now, wakes);
    }
}

impl Future for Acquire {
    type Output = Result<Permit, Refused>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.ask(cx) {
                Turn::Granted { probe } => {
                    self.stage = Stage::Done;
                    let (held, route, costs) = (self.held.take(), self.route, self.want.costs.clone());
                    let permit = self.cell.take().map(|cell| Permit { cell, costs, probe, route, held, sent: None });
                    return Poll::Ready(permit.ok_or(Refused { why: Why::Full, retry_at: None }));
                }
                Turn::Refused { why, retry_at } => {
                    self.give_up();
                    let retry_at = retry_at.map(|tick| self.limiter.epoch().instant(tick));
                    return Poll::Ready(Err(Refused { why, retry_at }));
                }
                Turn::Wait { until, waiting, .. } => {
                    self.tell(until, waiting);
                    ready!(self.set_timer(until).poll(cx));
                }
            }
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("key", &self.key).field("stage", &self.stage).finish_non_exhaustive()
    }
}

/// The right to send one attempt.
///
/// From the grant on it is *held*: it counts against every quota, but only [`commit`](Self::commit) says that the
/// attempt goes on the wire, at that instant. As many as a quota's burst, held and not committed, may keep all further
/// ones of the key waiting; in a [fleet](crate::guide::fleet) also those of the other processes. Keep a permit until the
/// response's body is done: dropping it frees the slot of [`max_in_flight`](super::LimiterBuilder::max_in_flight).
#[must_use = "a permit that is dropped before commit() is given back in full"]
pub struct Permit {
    cell: Arc<Cell>,
    costs: Costs,
    probe: Option<ProbeId>,
    route: Option<Route>,
    held: Option<Held>,
    sent: Option<Sent>,
}

/// When a permit was committed.
#[derive(Clone, Copy, Debug)]
struct Sent {
    order: u64,
    group_order: u64,
    at: Tick,
    /// Its end frees no slot and ends no probe: it is counted by [`Cell::loose`].
    loose: bool,
}

impl Permit {
    /// Of a key without routes.
    pub(crate) fn of_key(cell: Arc<Cell>, costs: Costs, probe: Option<ProbeId>) -> Self {
        Self { cell, costs, probe, route: None, held: None, sent: None }
    }

    fn now(&self) -> Tick {
        self.cell.config.epoch.tick(clock::now())
    }

    /// The attempt goes on the wire now; from here on nothing is given back. A second call does nothing.
    pub fn commit(&mut self) {
        if self.sent.is_some() {
            return;
        }
        let (now, costs, held, probe) = (self.now(), &self.costs, self.held, self.probe);
        self.sent = Some(self.cell.with(|state, wakes| {
            let order = state.scope.commit(costs, now);
            if state.scope.has_line() {
                state.scope.pump(now, wakes);
            }
            let group = held.and_then(|held| state.group(held.group));
            let group_order = group.map_or(0, |group| {
                let order = group.scope.commit(costs, now);
                group.scope.pump(now, wakes);
                order
            });
            let loose = held.is_none() && probe.is_none() && state.scope.uncount();
            if loose {
                self.cell.loose.fetch_add(1, Ordering::AcqRel);
            }
            Sent { order, group_order, at: now, loose }
        }));
    }

    /// What the answer to this attempt said: a wait pauses the key, quotas and refusals teach it.
    pub fn observe(&mut self, hints: &Hints) {
        let now = self.now();
        let (order, group_order, sent) = self.sent.map_or((0, 0, now), |sent| (sent.order, sent.group_order, sent.at));
        let group = self.held.map(|held| (held.group, group_order));
        let origin = Origin { route: self.route, order, group, sent, now };
        self.cell.with(|state, wakes| {
            self.probe_back(state);
            state.observe(hints, &origin, self.cell.config.rules, wakes);
        });
        self.probe = None;
        if let Some(held) = &mut self.held {
            held.probe = None;
        }
    }

    /// The probe of a pause has its answer, or has failed.
    fn probe_back(&self, state: &mut KeyState) {
        if let Some(probe) = self.probe {
            state.scope.probe_back(probe);
        }
        let Some(Held { group, probe: Some(probe) }) = self.held else { return };
        if let Some(group) = state.group(group) {
            group.scope.probe_back(probe);
        }
    }

    /// Corrects the cost in requests to what it really was, up or down. Before the commit it does nothing.
    pub fn settle(&mut self, actual: u32) {
        self.settle_units(Unit::Requests, actual);
    }

    /// Corrects the cost in a unit to what it really was, up or down; the balance may go below zero. Before the commit
    /// it does nothing.
    pub fn settle_units(&mut self, unit: Unit, actual: u32) {
        let Some(sent) = self.sent else { return };
        let (now, charged, held) = (self.now(), self.costs.get(&unit), self.held);
        self.cell.with(|state, wakes| {
            state.scope.settle(&unit, charged, actual.into(), (sent.at, now));
            state.scope.pump(now, wakes);
            if let Some(group) = held.and_then(|held| state.group(held.group)) {
                group.scope.settle(&unit, charged, actual.into(), (sent.at, now));
                group.scope.pump(now, wakes);
            }
        });
        self.costs.set(&unit, actual);
    }

    /// Whether a slot is held until this is dropped.
    pub(crate) fn holds_slot(&self) -> bool {
        self.cell.config.max_in_flight != u32::MAX
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.sent.is_some_and(|sent| sent.loose) {
            self.cell.loose.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let costs = &self.costs;
        self.cell.with(|state, wakes| {
            if self.sent.is_none() {
                state.scope.give_back(costs, self.probe);
                if let Some(held) = self.held {
                    give_back_group(state, held, costs, self.now(), wakes);
                }
            } else {
                self.probe_back(state);
                state.scope.free_slot();
                if let Some(group) = self.held.and_then(|held| state.group(held.group)) {
                    group.scope.free_slot();
                    group.scope.pump(self.now(), wakes);
                }
            }
            // The clock is read only where somebody waits for what came back.
            if state.scope.has_line() {
                state.scope.pump(self.now(), wakes);
            }
        });
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("key", &self.cell.key)
            .field("committed", &self.sent.is_some())
            .finish_non_exhaustive()
    }
}

/// Why the limiter let nothing through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    why: Why,
    retry_at: Option<Instant>,
}

impl Refused {
    pub(crate) const fn new(why: Why, retry_at: Option<Instant>) -> Self {
        Self { why, retry_at }
    }

    /// When asking again may succeed; `None` if that is not known, or never.
    #[must_use]
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// The cost can never fit: it is above a window's units or a bucket's burst.
    #[must_use]
    pub fn is_never(&self) -> bool {
        self.why == Why::Never
    }

    /// Too many wait already, or too many keys are in use.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.why == Why::Full
    }

    /// The permit would come after the deadline.
    #[must_use]
    pub fn is_deadline(&self) -> bool {
        self.why == Why::Deadline
    }

    /// The store of the fleet is away, and its limiter lets nothing out without it
    /// ([`StoreLoss::Closed`](crate::fleet::StoreLoss::Closed)).
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    #[must_use]
    pub fn is_store_lost(&self) -> bool {
        self.why == Why::StoreLost
    }

    /// The server asked for a pause, and more of it remains than the call would wait.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.why == Why::Paused
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.why {
            Why::Never => "the cost can never fit the quota",
            Why::Deadline => "no permit before the deadline",
            Why::Paused => "the server asked for a longer pause",
            Why::Busy => "no permit at this instant",
            Why::Full => "too many waiters or keys",
            Why::StoreLost => "the fleet's store is away",
        })
    }
}

impl std::error::Error for Refused {}

/// The longest pause that [`Limiter::acquire`] waits for; a call may bring a shorter patience.
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(600);
