//! The gate between the limiter's grant and the wire: it bounds what is on the wire in the whole run, and a row passes
//! it only once its claim is written.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{
    claim::{Claim, Mark},
    row::Row,
    stats::Stats,
};
use crate::{Key, clock, outgoing::Escort};

/// Shared by a run and its calls.
#[derive(Debug)]
pub(super) struct Gate {
    books: Mutex<Books>,
    stopping: AtomicBool,
    stop: Notify,
}

#[derive(Debug)]
struct Books {
    asks: VecDeque<Ask>,
    on_wire: usize,
    limited: Limited,
    /// Rows wait on a limit that are not started.
    held: bool,
    stats: Stats,
}

#[derive(Debug)]
struct Ask {
    ticket: Arc<Ticket>,
    go: oneshot::Sender<()>,
}

/// How long at least one row stood waiting on a limit.
#[derive(Debug)]
struct Limited {
    rows: usize,
    since: Instant,
    before: Duration,
}

/// One row's standing.
#[derive(Debug)]
pub(super) struct Ticket {
    gate: Arc<Gate>,
    pub(super) line: u64,
    pub(super) lane: Key,
    pub(super) key: Option<String>,
    /// What is to be written before it goes on the wire.
    mark: Option<Mark>,
    /// Another worker has its row by now.
    lost: AtomicBool,
    /// Those of its lane that wait for the limiter or for a place.
    waiting: Arc<AtomicUsize>,
    standing: Mutex<Standing>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    phase: Phase,
    /// Attempts that went on the wire.
    pub(super) sent: u32,
    /// The last answer refused it for its rate.
    pub(super) refused: bool,
    pub(super) throttled: u32,
    answered: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// In no line.
    #[default]
    Idle,
    /// Started, and about to ask.
    Starting,
    /// Waits on a limit.
    Limited,
    /// Has its permit, and waits for a place on the wire.
    Asking,
    /// Has its place.
    Boarded,
    /// On the wire.
    Flying,
}

impl Phase {
    fn has_place(self) -> bool {
        matches!(self, Self::Boarded | Self::Flying)
    }

    fn is_waiting(self) -> bool {
        matches!(self, Self::Starting | Self::Limited | Self::Asking)
    }
}

impl Gate {
    pub(super) fn new(now: Instant) -> Arc<Self> {
        let limited = Limited { rows: 0, since: now, before: Duration::ZERO };
        let books = Books { asks: VecDeque::new(), on_wire: 0, limited, held: false, stats: Stats::new(now) };
        Arc::new(Self { books: Mutex::new(books), stopping: AtomicBool::new(false), stop: Notify::new() })
    }

    pub(super) fn ticket(self: &Arc<Self>, row: &Row, waiting: Arc<AtomicUsize>) -> Arc<Ticket> {
        let (line, lane, key) = (row.line, row.lane, row.job.idempotency_key.clone());
        let claim = row.job.claim.as_ref().filter(|_| !row.job.is_idempotent());
        let (mark, lost) = (claim.and_then(Claim::mark), AtomicBool::new(false));
        let gate = Arc::clone(self);
        let ticket = Ticket { gate, line, lane, key, mark, lost, waiting, standing: Mutex::default() };
        ticket.stand(Phase::Starting);
        Arc::new(ticket)
    }

    /// Places on the wire that are taken or asked for.
    pub(super) fn taken(&self) -> usize {
        let books = lock(&self.books);
        books.on_wire + books.asks.len()
    }

    pub(super) fn on_wire(&self) -> usize {
        lock(&self.books).on_wire
    }

    /// Those who may go next, at most up to `most` on the wire. They go by [`Passing::go`].
    pub(super) fn next(&self, most: usize) -> Vec<Passing> {
        let mut books = lock(&self.books);
        let mut passing = Vec::new();
        while books.on_wire < most
            && let Some(ask) = books.asks.pop_front()
        {
            // Nobody waits for it any more.
            if ask.go.is_closed() {
                continue;
            }
            books.on_wire += 1;
            ask.ticket.standing().phase = Phase::Boarded;
            ask.ticket.waiting.fetch_sub(1, Ordering::Relaxed);
            passing.push(Passing(ask));
        }
        passing
    }

    /// Whether a lane is held for its limit.
    pub(super) fn set_held(&self, held: bool) {
        let mut books = lock(&self.books);
        let was = std::mem::replace(&mut books.held, held);
        books.limited.change(was, held, clock::now());
    }

    /// Nothing new goes on the wire; what is there may come back.
    pub(super) fn close(&self) {
        self.stopping.store(true, Ordering::Release);
        self.stop.notify_waiters();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) async fn closing(&self) {
        self.stop.notified().await;
    }

    pub(super) fn with_stats<R>(&self, look: impl FnOnce(&mut Stats) -> R) -> R {
        look(&mut lock(&self.books).stats)
    }

    /// How long at least one row stood waiting on a limit, so far.
    pub(super) fn limited(&self, now: Instant) -> Duration {
        lock(&self.books).limited.so_far(now)
    }
}

/// One that may go.
pub(super) struct Passing(Ask);

impl Passing {
    pub(super) fn ticket(&self) -> &Ticket {
        &self.0.ticket
    }

    pub(super) fn go(self) {
        // If it is gone it has given its place back.
        let _ = self.0.go.send(());
    }

    /// It must not go: its row is another worker's.
    pub(super) fn lose(self) {
        self.0.ticket.lost.store(true, Ordering::Release);
    }
}

impl Limited {
    fn so_far(&self, now: Instant) -> Duration {
        match self.rows {
            0 => self.before,
            _ => self.before + now.saturating_duration_since(self.since),
        }
    }

    fn change(&mut self, was: bool, is: bool, now: Instant) {
        match (was, is) {
            (false, true) => {
                if self.rows == 0 {
                    self.since = now;
                }
                self.rows += 1;
            }
            (true, false) => {
                self.before = self.so_far(now);
                (self.since, self.rows) = (now, self.rows.saturating_sub(1));
            }
            _ => {}
        }
    }
}

impl Ticket {
    pub(super) fn standing(&self) -> MutexGuard<'_, Standing> {
        lock(&self.standing)
    }

    /// Its answer is there, whatever is still to be read of it.
    pub(super) fn set_answered(&self) {
        self.standing().answered = true;
    }

    /// What is to be written before it goes on the wire: once, further attempts go at once.
    pub(super) fn unwritten(&self) -> Option<Mark> {
        self.mark.clone().filter(|mark| !mark.is_written())
    }

    /// Whether its row is another worker's.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether the run may drop it: it is not on the wire, and not answered.
    pub(super) fn is_idle(&self) -> bool {
        let standing = self.standing();
        standing.phase != Phase::Flying && !standing.answered
    }

    /// Out of every line.
    pub(super) fn leave(&self) {
        self.stand(Phase::Idle);
    }

    fn stand(&self, phase: Phase) {
        let mut books = lock(&self.gate.books);
        let was = std::mem::replace(&mut self.standing().phase, phase);
        match (was.is_waiting(), phase.is_waiting()) {
            (false, true) => self.waiting.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.waiting.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        if was.has_place() && !phase.has_place() {
            books.on_wire = books.on_wire.saturating_sub(1);
        }
        if (was == Phase::Limited) != (phase == Phase::Limited) {
            books.limited.change(was == Phase::Limited, phase == Phase::Limited, clock::now());
        }
    }
}

impl Escort for Ticket {
    fn asks(&self) {
        self.stand(Phase::Limited);
    }

    fn boards(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            self.stand(Phase::Asking);
            let (go, going) = oneshot::channel();
            lock(&self.gate.books).asks.push_back(Ask { ticket: Arc::clone(&self), go });
            // The sender lives in the gate, and the gate in the ticket.
            if going.await.is_err() && self.is_lost() {
                std::future::pending::<()>().await;
            }
        })
    }

    fn sent(&self) {
        self.stand(Phase::Flying);
        let mut standing = self.standing();
        standing.sent = standing.sent.saturating_add(1);
        standing.refused = false;
        drop(standing);
        lock(&self.gate.books).stats.sent(clock::now());
    }

    fn landed(&self, throttled: bool) {
        self.stand(if throttled { Phase::Limited } else { Phase::Idle });
        let mut standing = self.standing();
        standing.refused = throttled;
        standing.throttled += u32::from(throttled);
    }
}

/// Stops a [`Run`](super::Run): made by [`Run::stopper`](super::Run::stopper).
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Gate>);

impl Stopper {
    pub(super) fn of(gate: &Arc<Gate>) -> Self {
        Self(Arc::clone(gate))
    }

    /// Sends nothing more. What is on the wire may come back; rows that wait keep for a resumed run.
    pub fn drain(&self) {
        self.0.close();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
