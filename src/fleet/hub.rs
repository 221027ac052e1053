//! What the keys of a process and their fleet's task tell each other: who wants to be looked at, and how the store is.

use std::sync::{
    Weak,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use tokio::{sync::mpsc, time::Instant};

use super::{share::State, store::StoreLoss};
use crate::limit::{
    Cell,
    tick::{Epoch, Tick},
};

/// Shared by a fleet's clones, the limiters that use it, and its task.
#[derive(Debug)]
pub(crate) struct Hub {
    notices: mpsc::UnboundedSender<Notice>,
    on_loss: StoreLoss,
    epoch: Epoch,
    /// Zero while the store answers; else the tick, by the hub's epoch, at which it is tried again.
    lost_until: AtomicU64,
    members: AtomicU32,
}

/// A key asks to be looked at; one at a time for each key.
#[derive(Debug)]
pub(crate) struct Notice {
    pub(crate) cell: Weak<Cell>,
    /// None: now.
    pub(crate) at: Option<Instant>,
}

/// A store whose task is gone is looked at again after so long, in nanoseconds.
const GONE: u64 = 1_000_000_000;

impl Hub {
    pub(crate) fn new(on_loss: StoreLoss, now: Instant) -> (Self, mpsc::UnboundedReceiver<Notice>) {
        let (notices, receiver) = mpsc::unbounded_channel();
        let (lost_until, members) = (AtomicU64::new(0), AtomicU32::new(0));
        (Self { notices, on_loss, epoch: Epoch::new(now), lost_until, members }, receiver)
    }

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

    pub(crate) fn lose(&self, until: Instant) {
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

    /// Asks the task to look at a key. Without its runtime the task is gone, and the store with it.
    pub(crate) fn notice(&self, notice: Notice, now: Instant) -> bool {
        let told = self.notices.send(notice).is_ok();
        if !told {
            self.lose(self.epoch.instant(self.epoch.tick(now).plus(GONE)));
        }
        told
    }
}
