//! The async face: the cancel-safe wait for a permit, and the permit, held until it is committed.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

use super::{
    Key, Limiter, Unit,
    costs::Costs,
    keyed::Cell,
    learn::Answer,
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
    want: Want,
    /// The place in line.
    place: Option<(Arc<Cell>, u64)>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Acquire {
    pub(crate) fn new(limiter: Limiter, key: Key, want: Want) -> Self {
        Self { limiter, key, want, place: None, timer: None }
    }

    /// Stands in line, or asks again from there.
    fn ask(&mut self, cx: &Context<'_>) -> Turn {
        let now = self.limiter.now();
        let waker = cx.waker();
        if let Some((cell, seq)) = &self.place {
            return cell.with(|state, wakes| state.scope.poll(*seq, &self.want, waker, now, wakes));
        }
        let want = &self.want;
        let joined = self
            .limiter
            .with(&self.key, now, |cell, state, wakes| (Arc::clone(cell), state.scope.join(want, waker, now, wakes)));
        let Some((cell, turn)) = joined else {
            return Turn::Refused { why: Why::Full, retry_at: None };
        };
        self.place = Some((
            cell,
            match turn {
                Turn::Wait { seq, .. } => seq,
                Turn::Granted { .. } | Turn::Refused { .. } => u64::MAX,
            },
        ));
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
}

impl Future for Acquire {
    type Output = Result<Permit, Refused>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.ask(cx) {
                Turn::Granted { probe } => {
                    let granted = self.place.take().map(|(cell, _)| Permit::new(cell, self.want.costs.clone(), probe));
                    return Poll::Ready(granted.ok_or(Refused { why: Why::Full, retry_at: None }));
                }
                Turn::Refused { why, retry_at } => {
                    self.place = None;
                    let retry_at = retry_at.map(|tick| self.limiter.epoch().instant(tick));
                    return Poll::Ready(Err(Refused { why, retry_at }));
                }
                Turn::Wait { until, .. } => ready!(self.set_timer(until).poll(cx)),
            }
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some((cell, seq)) = self.place.take() {
            let now = self.limiter.now();
            cell.with(|state, wakes| state.scope.leave(seq, now, wakes));
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("key", &self.key)
            .field("in_line", &self.place.is_some())
            .finish_non_exhaustive()
    }
}

/// The right to send one attempt.
///
/// From the grant on it is *held*: it counts against every quota, but only [`commit`](Self::commit) says that the
/// attempt goes on the wire, at that instant. Keep it until the response's body is done: dropping it frees the slot of
/// [`max_in_flight`](super::LimiterBuilder::max_in_flight).
#[must_use = "a permit that is dropped before commit() is given back in full"]
pub struct Permit {
    cell: Arc<Cell>,
    costs: Costs,
    probe: bool,
    sent: Option<Sent>,
}

/// When a permit was committed.
#[derive(Clone, Copy, Debug)]
struct Sent {
    order: u64,
    at: Tick,
    answered: bool,
}

impl Permit {
    pub(crate) fn new(cell: Arc<Cell>, costs: Costs, probe: bool) -> Self {
        Self { cell, costs, probe, sent: None }
    }

    fn now(&self) -> Tick {
        self.cell.config.epoch.tick(clock::now())
    }

    /// The attempt goes on the wire now; from here on nothing is given back. A second call does nothing.
    pub fn commit(&mut self) {
        if self.sent.is_none() {
            let now = self.now();
            let order = self.cell.with(|state, wakes| {
                let order = state.commit(&self.costs, now);
                state.scope.pump(now, wakes);
                order
            });
            self.sent = Some(Sent { order, at: now, answered: false });
        }
    }

    /// What the answer to this attempt said: a wait pauses the key, quotas and refusals teach it.
    pub fn observe(&mut self, hints: &Hints) {
        let now = self.now();
        let (order, sent) = self.sent.map_or((0, now), |sent| (sent.order, sent.at));
        let probe = std::mem::take(&mut self.probe);
        self.cell.with(|state, wakes| {
            if probe {
                state.scope.probe_back();
            }
            state.observe(&Answer { hints, order, sent }, &self.cell.config, now, wakes);
        });
        if let Some(sent) = &mut self.sent {
            sent.answered = true;
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
        let now = self.now();
        let charged = self.costs.get(&unit);
        self.cell.with(|state, wakes| {
            state.scope.settle(&unit, charged, actual.into(), (sent.at, now));
            state.scope.pump(now, wakes);
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
        let now = self.now();
        self.cell.with(|state, wakes| {
            match self.sent {
                None => state.scope.give_back(&self.costs, self.probe),
                Some(_) => {
                    state.scope.free_slot();
                    if self.probe {
                        state.scope.probe_back();
                    }
                }
            }
            state.scope.pump(now, wakes);
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
        })
    }
}

impl std::error::Error for Refused {}

/// The longest pause that [`Limiter::acquire`] waits for; a call may bring a shorter patience.
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(600);
