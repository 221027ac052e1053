//! A row of a stream in this run's hands: whatever becomes of the row, its claim tells the stream.
//!
//! Invariant: a claim tells one fate, also when it is dropped on the way.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc::UnboundedSender, oneshot},
    time::Instant,
};

use super::{Outcome, space::Held};

/// The right to send one row of a stream, and the duty to tell what became of it.
#[must_use = "dropped it hands its row back"]
pub(super) struct Claim {
    /// Its place in the stream.
    pub(super) entry: String,
    /// How many workers had it before; beyond [`MARKED`] one of them may have sent it.
    pub(super) before: u32,
    /// How long ago the last of them gave a sign of life.
    pub(super) idle: Duration,
    /// The idempotency key that follows from its place: the same one for every worker.
    pub(super) key: String,
    pub(super) room: Room,
    /// Its row may be on the wire, or was.
    started: bool,
    /// The stream knows that it may be sent.
    marked: Arc<AtomicBool>,
    fate: Option<Fate>,
    tell: UnboundedSender<Told>,
}

/// Added to the deliveries of a row that is not safe to repeat, before it is sent: one that was only read is not of
/// unknown fate when its worker dies.
pub(super) const MARKED: u32 = 1_000_000;

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its result is written.
    Done,
    /// A worker that is gone may have sent it, and it may not be repeated.
    Unknown,
    /// It is for another worker; so many had it.
    Back { deliveries: u32 },
}

/// What a claim tells.
#[derive(Debug)]
pub(super) enum Told {
    Settled(Settled),
    Mark(Mark, oneshot::Sender<bool>),
}

/// A row is about to be sent that is not safe to repeat.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) entry: String,
    pub(super) deliveries: u32,
    marked: Arc<AtomicBool>,
    /// None once it is told: who listens is done when nobody is left who could tell.
    tell: Option<UnboundedSender<Told>>,
}

impl Mark {
    pub(super) fn is_written(&self) -> bool {
        self.marked.load(Ordering::Relaxed)
    }

    /// Whether the row may be sent: the stream knows, and it still is this worker's.
    pub(super) async fn write(mut self) -> bool {
        let (done, written) = oneshot::channel();
        let marked = Arc::clone(&self.marked);
        let told = self.tell.take().map(|tell| tell.send(Told::Mark(self, done)));
        if !matches!(told, Some(Ok(()))) {
            return false;
        }
        let written = written.await.unwrap_or(false);
        marked.fetch_or(written, Ordering::Relaxed);
        written
    }
}

/// The end of a claim.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) entry: String,
    pub(super) fate: Fate,
}

/// How many rows a run has room for.
#[derive(Clone, Debug)]
pub(super) struct Room(Arc<AtomicUsize>);

impl Room {
    pub(super) fn rows(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(FEWEST)))
    }
}

impl Claim {
    pub(super) fn new(entry: String, before: u32, idle: Duration, room: &Room, tell: UnboundedSender<Told>) -> Self {
        let (key, room, marked) = (String::new(), room.clone(), Arc::default());
        Self { entry, before, idle, key, room, started: false, marked, fate: None, tell }
    }

    /// What is to be written before its row is sent, unless it is; for rows that are not safe to repeat.
    pub(super) fn mark(&self) -> Option<Mark> {
        let (marked, tell) = (Arc::clone(&self.marked), Some(self.tell.clone()));
        let mark = || Mark { entry: self.entry.clone(), deliveries: self.marked_deliveries(), marked, tell };
        (!self.marked.load(Ordering::Relaxed)).then(mark)
    }

    fn marked_deliveries(&self) -> u32 {
        MARKED + self.before % MARKED + 1
    }

    /// From here on its row may be sent.
    pub(super) fn start(&mut self) {
        self.started = true;
    }

    /// It certainly was not executed.
    pub(super) fn unsent(&mut self) {
        self.started = false;
    }

    /// Its result is written.
    pub(super) fn done(mut self) {
        self.fate = Some(Fate::Done);
    }

    /// It is not sent, and its row has been named.
    pub(super) fn unknown(mut self) {
        self.fate = Some(Fate::Unknown);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let deliveries = match (self.started, self.marked.load(Ordering::Relaxed)) {
            (false, _) => self.before,
            (true, true) => self.marked_deliveries(),
            (true, false) => self.before.saturating_add(1),
        };
        let fate = self.fate.unwrap_or(Fate::Back { deliveries });
        // Nobody listens any more: the store finds out by itself, in time.
        let _ = self.tell.send(Told::Settled(Settled { entry: std::mem::take(&mut self.entry), fate }));
    }
}

/// A row that is over, and its claim if it is of a stream.
pub(super) struct Over {
    pub(super) outcome: Outcome,
    pub(super) claim: Option<Claim>,
    /// What its body takes, given back with it.
    pub(super) _held: Held,
}

/// How far a run reads ahead in a stream that other workers read too: as many rows as it sends in a second.
#[derive(Debug)]
pub(super) struct Pace {
    room: Option<Room>,
    since: Instant,
    sent: u64,
    rate: usize,
}

/// Rows read ahead when nothing is known.
const FEWEST: usize = 4;

const SPAN: Duration = Duration::from_secs(1);

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { room: None, since: now, sent: 0, rate: 0 }
    }

    /// Rows come from a stream.
    pub(super) fn shared(&self) -> bool {
        self.room.is_some()
    }

    pub(super) fn share(&mut self, room: &Room) {
        self.room.get_or_insert_with(|| room.clone());
    }

    /// Rows that may wait here, at most `most`; `sent`: attempts so far.
    pub(super) fn ahead(&mut self, most: usize, sent: impl Fn() -> u64, now: impl Fn() -> Instant) -> usize {
        if self.room.is_none() {
            return most;
        }
        let (sent, now) = (sent(), now());
        let recent = usize::try_from(sent.saturating_sub(self.sent)).unwrap_or(usize::MAX);
        if now.saturating_duration_since(self.since) >= SPAN {
            (self.since, self.sent, self.rate) = (now, sent, recent);
        }
        self.rate.max(recent).clamp(FEWEST.min(most), most)
    }

    /// Before the stream is asked for rows.
    pub(super) fn ask(&self, rows: usize) {
        if let Some(Room(room)) = &self.room {
            room.store(rows, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::clock;

    #[test]
    fn a_claim_tells_one_fate() {
        let (tell, mut told) = mpsc::unbounded_channel();
        let claim = |before| Claim::new("1-1".into(), before, Duration::ZERO, &Room::default(), tell.clone());
        claim(0).done();
        claim(0).unknown();
        drop(claim(0));
        let mut started = claim(2);
        started.start();
        drop(started);
        let mut unsent = claim(2);
        unsent.start();
        unsent.unsent();
        drop(unsent);
        let fates = std::iter::from_fn(|| told.try_recv().ok()).filter_map(|told| match told {
            Told::Settled(settled) => Some(settled.fate),
            Told::Mark(..) => None,
        });
        let fates: Vec<Fate> = fates.collect();
        let back = |deliveries| Fate::Back { deliveries };
        assert_eq!(fates, [Fate::Done, Fate::Unknown, back(0), back(3), back(2)]);
    }

    #[tokio::test]
    async fn a_run_reads_a_second_ahead() {
        let start = clock::now();
        let mut pace = Pace::new(start);
        assert_eq!(pace.ahead(600, || 0, || start), 600);
        pace.share(&Room::default());
        let mut ahead = |most, sent, halves: u32| pace.ahead(most, || sent, || start + SPAN / 2 * halves);
        assert_eq!(ahead(600, 0, 0), 4);
        assert_eq!(ahead(600, 50, 1), 50);
        assert_eq!(ahead(600, 100, 2), 100);
        assert_eq!(ahead(600, 101, 3), 100);
        assert_eq!(ahead(600, 101, 4), 4);
        assert_eq!(ahead(2, 101, 4), 2);
        assert_eq!(ahead(600, 9000, 5), 600);
    }
}
