//! What the keys of a process and their fleet's task tell each other: who wants to be looked at, and how the store is.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
use std::time::Duration;

use tokio::{sync::mpsc, time::Instant};

use super::{share::State, store::StoreLoss};
use crate::limit::{
    Cell,
    tick::{Epoch, Tick},
};

/// Shared by a fleet's clones and the limiters that use it. The task ends with the last of them.
#[derive(Debug)]
pub(crate) struct Hub {
    notices: mpsc::UnboundedSender<Notice>,
    view: Arc<View>,
    round_trip: u64,
}

/// How the store is; shared with the task.
#[derive(Debug)]
pub(crate) struct View {
    on_loss: StoreLoss,
    epoch: Epoch,
    /// Zero while the store answers; else the tick, by the hub's epoch, at which it is tried again.
    lost_until: AtomicU64,
    why: Mutex<Box<str>>,
    members: AtomicU32,
}

/// A key asks to be looked at; one at a time for each key.
#[derive(Debug)]
pub(crate) struct Notice {
    pub(crate) cell: Weak<Cell>,
    /// None: now.
    pub(crate) at: Option<Instant>,
}

/// A store whose task is gone will not come back; calls that are refused for it are told to ask again after so long.
pub(super) const GONE: Duration = Duration::from_secs(1);

pub(super) const NO_RUNTIME: &str = "the runtime that the fleet was connected on has ended";

impl Hub {
    /// `round_trip`: to the store and back, in microseconds.
    pub(crate) fn new(
        on_loss: StoreLoss,
        round_trip: u64,
        now: Instant,
    ) -> (Self, Arc<View>, mpsc::UnboundedReceiver<Notice>) {
        let (notices, receiver) = mpsc::unbounded_channel();
        let (lost_until, members) = (AtomicU64::new(0), AtomicU32::new(0));
        let view = Arc::new(View { on_loss, epoch: Epoch::new(now), lost_until, why: Mutex::default(), members });
        (Self { notices, view: Arc::clone(&view), round_trip }, view, receiver)
    }

    pub(crate) fn round_trip(&self) -> u64 {
        self.round_trip
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// Asks the task to look at a key. Without its runtime the task is gone, and the store with it. Gives whether it
    /// was told.
    pub(crate) fn notice(&self, notice: Notice, now: Instant) -> bool {
        let told = self.notices.send(notice).is_ok();
        if !told {
            self.view.lose(now.checked_add(GONE).unwrap_or(now), NO_RUNTIME);
        }
        told
    }
}

impl View {
    /// How the store is, on the clock of a limiter.
    pub(crate) fn state(&self, epoch: Epoch) -> State {
        match self.lost_until.load(Ordering::Acquire) {
            0 => State::Shared,
            until => State::Lost(self.on_loss, epoch.tick(self.epoch.instant(Tick::from_nanos(until)))),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost_until.load(Ordering::Acquire) > 0
    }

    pub(crate) fn why_lost(&self) -> Option<String> {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_lost().then(|| why.to_string())
    }

    /// It is tried again at `until`.
    pub(crate) fn lose(&self, until: Instant, why: &str) {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = why.into();
        self.lost_until.store(self.epoch.tick(until).nanos().max(1), Ordering::Release);
    }

    pub(crate) fn regain(&self) {
        self.lost_until.store(0, Ordering::Release);
    }

    /// The processes that the latest answer counted.
    pub(crate) fn members(&self) -> u32 {
        self.members.load(Ordering::Relaxed)
    }

    pub(crate) fn set_members(&self, members: u32) {
        self.members.store(members, Ordering::Relaxed);
    }
}
