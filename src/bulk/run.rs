//! A run under way: the stream of outcomes. It decides nothing about one call; it says who starts, and what is written.
//!
//! | step of a poll | who |
//! | --- | --- |
//! | rows are read, at most [`AHEAD`] ahead | [`Books::enter`] says what is done already |
//! | rows start, lanes in turn | `lanes.rs` |
//! | calls run | `run.rs` of the crate, by way of `row.rs` |
//! | claims are written, and rows go on the wire | `gate.rs`, `journal.rs` |
//! | outcomes are written | [`Books::finish`] |

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, Sleep};

use super::{
    End, Job, Outcome,
    books::{Books, Entry},
    claim::{Claim, Over, Pace},
    gate::{Gate, Passing},
    journal::Past,
    lanes::Lanes,
    outcome::{Failure, UNKNOWN},
    round::{Again, again, key, nowhere, origin},
    row::{Answer, Flight, Landing, Row},
    rules::Rules,
    space::Space,
};
use crate::{Client, Error, clock};

/// What a run needs besides its books.
pub(super) struct Start {
    pub(super) client: Client,
    pub(super) concurrency: usize,
    pub(super) space: Space,
    pub(super) keys: bool,
    pub(super) rules: Rules,
    pub(super) options: BTreeMap<String, String>,
}

/// A run: a stream of [`Outcome`]s, made by [`Bulk::run`](super::Bulk::run).
///
/// # Cancel safety
/// Dropping it stops at once. What was on the wire may be executed; with a journal a resumed run knows of it.
#[must_use = "nothing runs unless it is polled"]
pub struct Run<S> {
    jobs: Option<Pin<Box<S>>>,
    pub(super) start: Start,
    pub(super) books: Option<Books>,
    pub(super) gate: Arc<Gate>,
    closing: Pin<Box<dyn Future<Output = ()> + Send>>,
    lanes: Lanes,
    calls: FuturesUnordered<Flight>,
    /// Those that wait for the stream to know of them.
    marks: FuturesUnordered<Marking>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Over, and not written yet.
    landed: Vec<Over>,
    ready: VecDeque<Over>,
    /// Given out, and not yet known to be dealt with.
    given: Vec<(u64, Option<Claim>)>,
    pace: Pace,
    line: u64,
    pub(super) run: uuid::Uuid,
    pub(super) started: Instant,
    pub(super) end: Option<End>,
    pub(super) closed: bool,
    pub(super) error: Option<io::Error>,
}

/// One that may go, and whether it is to.
type Marking = Pin<Box<dyn Future<Output = (Passing, bool)> + Send>>;

/// Rows read and not on the wire, at most; with what a reader holds they stay below 1,024.
const AHEAD: usize = 600;

/// Bytes of rows read and not started, at most.
const AHEAD_BYTES: usize = 16 << 20;

/// Outcomes that are written at once.
const BATCH: usize = 256;

/// A lane whose server let nothing through for so long gives its throttled rows up: what it would let through later is
/// for a later run.
const GIVE_UP: Duration = Duration::from_secs(600);

/// Why a row is given up whose lane is paused for longer than it may wait.
const TOO_LONG: &str = "the server asks for a longer wait than max_server_wait";

/// The shortest hold of a lane that the limiter refused.
const HOLD: Duration = Duration::from_millis(20);

impl<S: Stream<Item = Job>> Run<S> {
    pub(super) fn new(start: Start, books: io::Result<Books>, jobs: S) -> Self {
        let now = clock::now();
        let gate = Gate::new(now);
        let (books, error) = match books {
            Ok(books) => (Some(books), None),
            Err(error) => (None, Some(error)),
        };
        let closing = Arc::clone(&gate);
        Self {
            jobs: error.is_none().then(|| Box::pin(jobs)),
            start,
            run: books.as_ref().and_then(Books::run_id).unwrap_or_else(uuid::Uuid::new_v4),
            closed: error.is_some(),
            end: error.as_ref().map(|_| End::Failed),
            books,
            gate,
            closing: Box::pin(async move { closing.closing().await }),
            lanes: Lanes::default(),
            calls: FuturesUnordered::new(),
            marks: FuturesUnordered::new(),
            timer: None,
            landed: Vec::new(),
            ready: VecDeque::new(),
            given: Vec::new(),
            pace: Pace::new(now),
            line: 0,
            started: now,
            error,
        }
    }

    /// Reads rows, as far as there is room.
    fn read(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut read = false;
        while let Some(jobs) = &mut self.jobs {
            let sent = || self.gate.with_stats(|stats| stats.sent);
            let ahead = self.pace.ahead(AHEAD, sent, clock::now);
            let waiting = self.lanes.queued + self.calls.len().saturating_sub(self.gate.on_wire());
            if waiting >= ahead || self.lanes.weight >= AHEAD_BYTES || self.landed.len() >= BATCH {
                break;
            }
            self.pace.ask(ahead - waiting);
            match jobs.as_mut().poll_next(cx) {
                Poll::Pending => break,
                Poll::Ready(None) => self.jobs = None,
                Poll::Ready(Some(job)) => self.enter(job)?,
            }
            read = true;
        }
        Ok(read)
    }

    fn enter(&mut self, mut job: Job) -> io::Result<()> {
        let Some(books) = &mut self.books else { return Ok(()) };
        if let (Some(claim), false) = (&job.claim, self.pace.shared()) {
            self.pace.share(&claim.room);
            self.line = books.last_line();
        }
        self.line = job.line.unwrap_or(self.line + 1);
        books.check(self.line)?;
        if let (None, Ok(request)) = (&job.idempotency_key, &job.request) {
            job.idempotency_key = self.start.client.key_in(request.headers());
        }
        let entry = match &job.claim {
            Some(claim) => books.enter_claimed(&job, claim, self.start.keys)?,
            None => books.enter(&job, self.line)?,
        };
        if job.idempotency_key.is_none() && self.start.keys {
            let claimed = job.claim.as_ref().map(|claim| claim.key.clone());
            job.idempotency_key = Some(claimed.unwrap_or_else(|| key(self.run, self.line)));
        }
        let now = clock::now();
        let mut inherited = false;
        match entry {
            Entry::Done => return Ok(()),
            Entry::Send => {}
            Entry::Resend(claimed) => {
                inherited = true;
                job.idempotency_key = claimed.or(job.idempotency_key);
            }
            Entry::Unknown(why) => {
                let row = Row::new(job, self.line, (nowhere(), nowhere()), true);
                self.ready.push_back(row.over(None, Some(Failure::new(UNKNOWN, why)), now));
                return Ok(());
            }
        }
        let keys = match &job.request {
            Ok(request) => (job.key.unwrap_or_else(|| self.start.client.key_of(request)), origin(request)),
            Err(_) => (nowhere(), nowhere()),
        };
        let row = Row::new(job, self.line, keys, inherited);
        if let Err(why) = &row.job.request {
            let failure = Failure::new("invalid", why.clone());
            self.over(row, None, Some(failure), now);
            return Ok(());
        }
        self.lanes.add(row, now);
        Ok(())
    }

    /// Starts rows, as long as there are places on the wire.
    fn launch(&mut self) -> bool {
        let mut room = self.start.concurrency.saturating_sub(self.gate.taken());
        let (now, mut launched) = (clock::now(), false);
        if self.lanes.release(now) {
            self.gate.set_held(self.lanes.next_release().is_some());
        }
        while room > 0
            && let Some((row, waiting)) = self.lanes.next()
        {
            let ticket = self.gate.ticket(&row, waiting);
            self.calls.push(row.fly(&self.start, &self.gate, ticket, now));
            (room, launched) = (room - 1, true);
        }
        launched
    }

    /// Lets those go whose claims are written.
    fn board(&mut self) -> io::Result<bool> {
        let passing = self.gate.next(self.start.concurrency);
        if passing.is_empty() {
            return Ok(false);
        }
        // Of rows of a stream their group knows it.
        if let (Some(books), false) = (&mut self.books, self.pace.shared()) {
            books.claim(passing.iter().map(|passing| (passing.ticket().line, passing.ticket().key.as_deref())))?;
        }
        for passing in passing {
            self.lanes.list(passing.ticket().lane);
            match passing.ticket().unwritten() {
                Some(mark) => self.marks.push(Box::pin(async move { (passing, mark.write().await) })),
                None => passing.go(),
            }
        }
        Ok(true)
    }

    /// Lets those go that the stream knows of.
    fn mark(&mut self, cx: &mut Context<'_>) -> bool {
        let mut marked = false;
        while let Poll::Ready(Some((passing, ours))) = Pin::new(&mut self.marks).poll_next(cx) {
            match ours {
                true => passing.go(),
                false => passing.lose(),
            }
            marked = true;
        }
        marked
    }

    /// A round is over.
    fn land(&mut self, landing: Landing) -> io::Result<()> {
        let Landing { mut row, standing, end } = landing;
        let now = clock::now();
        let accepted = standing.sent > standing.throttled;
        let silent = self.lanes.landed(row.lane, accepted, now);
        let (lane, given_up) = (row.lane, silent >= GIVE_UP);
        let Some(end) = end else {
            row.note(&[], standing);
            row.attempts = row.attempts.saturating_add(standing.sent);
            return self.leave(row);
        };
        let attempts = match &end {
            Ok(answer) => answer.attempts.as_slice(),
            Err(error) => error.history().attempts(),
        };
        row.note(attempts, standing);
        match again(&end, standing.refused, self.start.client.longest_wait()) {
            Again::No => self.end_of(row, end, None, now),
            Again::TooLong => self.end_of(row, end, Some(TOO_LONG), now),
            Again::Throttled if given_up => {
                self.end_of(row, end, Some("nothing was accepted for 10 minutes"), now);
            }
            Again::Throttled => self.requeue(row, now)?,
            Again::NotBefore(_) if self.is_paused_for_long(lane, now) => self.end_of(row, end, Some(TOO_LONG), now),
            Again::NotBefore(at) => {
                let deadline = self.start.client.deadline().unwrap_or_default();
                let until = at.and_then(|at| at.checked_sub(deadline)).unwrap_or(now).max(now + HOLD);
                self.requeue(row, now)?;
                self.lanes.hold(lane, until);
                self.gate.set_held(true);
            }
        }
        self.lanes.sweep(lane);
        Ok(())
    }

    fn is_paused_for_long(&self, lane: crate::Key, now: Instant) -> bool {
        let until = self.start.client.limiter().snapshot(&lane).and_then(|snapshot| snapshot.paused_until);
        until.is_some_and(|until| until.saturating_duration_since(now) > self.start.client.longest_wait())
    }

    fn end_of(&mut self, row: Row, end: Result<Answer, Error>, why: Option<&str>, now: Instant) {
        let why = why.map(|why| Failure::new("throttled", why));
        match end {
            Ok(answer) => self.over(row, Some(answer), why, now),
            Err(error) => self.over(row, None, Some(why.unwrap_or_else(|| Failure::of(&error))), now),
        }
    }

    fn requeue(&mut self, row: Row, now: Instant) -> io::Result<()> {
        if self.gate.is_closed() {
            return self.leave(row);
        }
        self.lanes.add(row, now);
        Ok(())
    }

    /// The run stops before the row has a result.
    fn leave(&mut self, mut row: Row) -> io::Result<()> {
        let unsent = row.attempts == row.throttled && !row.inherited;
        if let (Some(claim), true) = (&mut row.job.claim, row.attempts == row.throttled) {
            claim.unsent();
        }
        match &mut self.books {
            Some(books) => books.leave(row.line, unsent, row.attempts, row.throttled),
            None => Ok(()),
        }
    }

    /// The row is over.
    fn over(&mut self, row: Row, answer: Option<Answer>, error: Option<Failure>, now: Instant) {
        let origin = row.origin;
        let is_repeatable = row.job.is_repeatable(self.start.client.key_header());
        let mut over = row.over(answer, error, now);
        over.outcome.maybe_executed = !is_repeatable && over.outcome.went_through();
        self.gate.with_stats(|stats| stats.over(&over.outcome, now));
        if let Some(end) = self.start.rules.over(&over.outcome, origin) {
            self.stop(end);
        }
        self.landed.push(over);
    }

    fn stop(&mut self, end: End) {
        self.end.get_or_insert(end);
        self.gate.close();
    }

    /// Writes what is over.
    fn write(&mut self) -> io::Result<bool> {
        if self.landed.is_empty() {
            return Ok(false);
        }
        let now = self.past();
        if let Some(books) = &mut self.books {
            books.finish(&self.landed, now)?;
            if books.writes() {
                self.landed.iter_mut().filter_map(|over| over.claim.take()).for_each(Claim::done);
            }
        }
        self.ready.extend(self.landed.drain(..));
        Ok(true)
    }

    /// The stream is polled again: what it gave out is dealt with.
    fn confirm(&mut self) -> io::Result<()> {
        if self.given.is_empty() {
            return Ok(());
        }
        let now = self.past();
        if let Some(books) = &mut self.books {
            books.done(self.given.iter().map(|(line, _)| *line), now)?;
        }
        self.given.drain(..).filter_map(|(_, claim)| claim).for_each(Claim::done);
        Ok(())
    }

    /// One turn; `None`: nothing to do before a wake-up.
    fn turn(&mut self, cx: &mut Context<'_>) -> io::Result<Option<Poll<Option<Outcome>>>> {
        self.confirm()?;
        loop {
            if let Some(Over { outcome, claim, .. }) = self.ready.pop_front() {
                match claim {
                    Some(claim) if outcome.is_unknown() => claim.unknown(),
                    claim if self.books.as_ref().is_some_and(|books| !books.writes()) && !outcome.is_unknown() => {
                        self.given.push((outcome.line, claim));
                    }
                    _ => {}
                }
                return Ok(Some(Poll::Ready(Some(outcome))));
            }
            if self.gate.is_closed() {
                self.jobs = None;
                self.end.get_or_insert(End::Interrupted);
                let rows: Vec<Row> = self.lanes.clear().collect();
                rows.into_iter().try_for_each(|row| self.leave(row))?;
            }
            let mut moved = self.read(cx)? | self.launch();
            while self.landed.len() < BATCH
                && let Poll::Ready(Some(landing)) = Pin::new(&mut self.calls).poll_next(cx)
            {
                self.land(landing)?;
                moved = true;
            }
            moved |= self.board()? | self.mark(cx);
            moved |= self.write()?;
            if self.jobs.is_none() && self.calls.is_empty() && self.lanes.queued == 0 && self.ready.is_empty() {
                self.finish()?;
                return Ok(Some(Poll::Ready(None)));
            }
            if !moved && self.wait(cx).is_pending() {
                return Ok(None);
            }
        }
    }

    /// Wakes when the next hold ends, or the gate closes.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.gate.is_closed() && self.closing.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let Some(until) = self.lanes.next_release() else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(clock::sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        timer.as_mut().poll(cx)
    }

    fn finish(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        let now = self.past();
        if let Some(books) = &mut self.books {
            books.close(now)?;
            books.release();
        }
        self.end.get_or_insert_with(|| self.start.rules.at_end());
        Ok(())
    }

    /// It cannot go on: nothing more is sent or written.
    fn fail(&mut self, error: io::Error) {
        self.gate.close();
        (self.jobs, self.closed, self.end) = (None, true, Some(End::Failed));
        self.calls.clear();
        self.books.iter().for_each(Books::release);
        self.error = Some(error);
    }
}

impl<S> Run<S> {
    /// What this run came to so far, apart from what the results say.
    pub(super) fn past(&self) -> Past {
        let now = clock::now();
        Past {
            elapsed_ms: millis(now.saturating_duration_since(self.started)),
            waited_ms: millis(self.gate.limited(now)),
            ..Past::default()
        }
    }
}

impl<S: Stream<Item = Job>> Stream for Run<S> {
    type Item = Outcome;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Outcome>> {
        if self.closed {
            return Poll::Ready(None);
        }
        match self.turn(cx) {
            Ok(Some(outcome)) => outcome,
            Ok(None) => Poll::Pending,
            Err(error) => {
                self.fail(error);
                Poll::Ready(None)
            }
        }
    }
}

/// Nothing of it is pinned in place.
impl<S> Unpin for Run<S> {}

impl<S> fmt::Debug for Run<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("id", &self.run).field("end", &self.end).finish_non_exhaustive()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
