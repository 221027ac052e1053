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
    End, Job, Outcome, Progress, Summary,
    books::{Books, Entry},
    gate::{Gate, Stopper},
    journal::Past,
    lanes::Lanes,
    outcome::{Failure, UNKNOWN},
    report,
    round::{Again, again, key, nowhere, origin},
    row::{Answer, Flight, Landing, Row},
    rules::Rules,
};
use crate::{Client, Error, clock};

/// What a run needs besides its books.
pub(super) struct Start {
    pub(super) client: Client,
    pub(super) concurrency: usize,
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
    start: Start,
    books: Option<Books>,
    gate: Arc<Gate>,
    closing: Pin<Box<dyn Future<Output = ()> + Send>>,
    lanes: Lanes,
    calls: FuturesUnordered<Flight>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Over, and not written yet.
    landed: Vec<Outcome>,
    ready: VecDeque<Outcome>,
    /// Given out, and not yet known to be dealt with.
    given: Vec<u64>,
    line: u64,
    run: uuid::Uuid,
    started: Instant,
    end: Option<End>,
    closed: bool,
    error: Option<io::Error>,
}

/// Rows read and not on the wire, at most; with what a reader holds they stay below 1,024.
const AHEAD: usize = 600;

/// Bytes of rows read and not started, at most.
const AHEAD_BYTES: usize = 16 << 20;

/// Outcomes that are written at once.
const BATCH: usize = 256;

/// A lane whose server let nothing through for so long gives its throttled rows up: api.
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
            timer: None,
            landed: Vec::new(),
            ready: VecDeque::new(),
            given: Vec::new(),
            line: 0,
            started: now,
            error,
        }
    }

    /// Reads rows, as far as there is room.
    fn read(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut read = false;
        while let Some(jobs) = &mut self.jobs {
            let waiting = self.lanes.queued + self.calls.len().saturating_sub(self.gate.on_wire());
            if waiting >= AHEAD || self.lanes.weight >= AHEAD_BYTES || self.landed.len() >= BATCH {
                break;
            }
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
        self.line = job.line.unwrap_or(self.line + 1);
        let Some(books) = &mut self.books else { return Ok(()) };
        let entry = books.enter(&job, self.line)?;
        if job.idempotency_key.is_none() && self.start.keys {
            job.idempotency_key = Some(key(self.run, self.line));
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
            Entry::Unknown => {
                let why = "an earlier run may have sent it, and it may not be repeated";
                let row = Row::new(job, self.line, (nowhere(), nowhere()), true);
                self.ready.push_back(row.outcome(None, Some(Failure::new(UNKNOWN, why)), now));
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
        self.lanes.release(now);
        while room > 0
            && let Some((row, waiting)) = self.lanes.next()
        {
            let ticket = self.gate.ticket(&row, waiting);
            self.calls.push(row.fly(&self.start.client, &self.gate, ticket, now));
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
        if let Some(books) = &mut self.books {
            books.claim(passing.iter().map(|passing| (passing.ticket().line, passing.ticket().key.as_deref())))?;
        }
        for passing in passing {
            self.lanes.list(passing.ticket().lane);
            passing.go();
        }
        Ok(true)
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
        match again(&end, standing.refused) {
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
    fn leave(&mut self, row: Row) -> io::Result<()> {
        let unsent = row.attempts == row.throttled && !row.inherited;
        match &mut self.books {
            Some(books) => books.leave(row.line, unsent, row.attempts, row.throttled),
            None => Ok(()),
        }
    }

    /// The row is over.
    fn over(&mut self, row: Row, answer: Option<Answer>, error: Option<Failure>, now: Instant) {
        let origin = row.origin;
        let outcome = row.outcome(answer, error, now);
        self.gate.with_stats(|stats| stats.over(&outcome, now));
        if let Some(end) = self.start.rules.over(&outcome, origin) {
            self.stop(end);
        }
        self.landed.push(outcome);
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
        }
        self.ready.extend(self.landed.drain(..));
        Ok(true)
    }

    /// The stream is polled again: what it gave out is dealt with.
    fn confirm(&mut self) -> io::Result<()> {
        if self.given.is_empty() {
            return Ok(());
        }
        let (given, now) = (std::mem::take(&mut self.given), self.past());
        match &mut self.books {
            Some(books) => books.done(given.into_iter(), now),
            None => Ok(()),
        }
    }

    /// What this run came to so far, apart from what the results say.
    /// One turn; `None`: nothing to do before a wake-up.
    fn turn(&mut self, cx: &mut Context<'_>) -> io::Result<Option<Poll<Option<Outcome>>>> {
        self.confirm()?;
        loop {
            if let Some(outcome) = self.ready.pop_front() {
                if self.books.as_ref().is_some_and(|books| !books.writes()) && !outcome.is_unknown() {
                    self.given.push(outcome.line);
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
            moved |= self.board()?;
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
        }
        self.end.get_or_insert_with(|| self.start.rules.at_end());
        Ok(())
    }

    /// It cannot go on: nothing more is sent or written.
    fn fail(&mut self, error: io::Error) {
        self.gate.close();
        (self.jobs, self.closed, self.end) = (None, true, Some(End::Failed));
        self.calls.clear();
        self.error = Some(error);
    }
}

impl<S> Run<S> {
    /// Stops the run from elsewhere.
    pub fn stopper(&self) -> Stopper {
        Stopper::of(&self.gate)
    }

    /// Names the run; idempotency keys are derived from it.
    pub fn id(&self) -> String {
        self.run.to_string()
    }

    /// Why it ended; `None`: it has not.
    pub fn end(&self) -> Option<End> {
        self.end.filter(|_| self.closed)
    }

    /// Why it could not start or go on.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Totals, over all runs of a resumed job.
    pub fn summary(&self) -> Summary {
        let Some(books) = &self.books else { return Summary::default() };
        match self.closed && self.error.is_none() {
            true => books.summary(Past::default()),
            false => books.so_far(self.past()),
        }
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let (now, summary) = (clock::now(), self.summary());
        Progress {
            done: summary.ok + summary.failed,
            failed: summary.failed,
            throttled: summary.throttled,
            rate: self.gate.with_stats(|stats| stats.rate(now, Duration::from_secs(10))),
            limit: self.limit(),
            in_flight: self.gate.on_wire(),
            waited: self.gate.limited(now),
            elapsed: now.saturating_duration_since(self.started),
        }
    }

    /// The strictest of the configured limits, in requests a second.
    fn limit(&self) -> Option<f64> {
        let quotas = self.start.client.limiter().quotas().iter();
        let rates = quotas.filter(|quota| *quota.unit_ref() == crate::Unit::Requests);
        rates.map(|quota| f64::from(quota.units()) / quota.per().as_secs_f64()).min_by(f64::total_cmp)
    }

    /// A page of HTML about this run, complete in itself: requests a second against the limit, latencies, statuses,
    /// waits, slow and failed rows, and the settings given by [`Bulk::note`](super::Bulk::note).
    pub fn report(&self) -> String {
        let stats = self.gate.with_stats(|stats| stats.clone());
        let elapsed = clock::now().saturating_duration_since(self.started);
        report::page(&report::Facts {
            stats: &stats,
            summary: self.summary(),
            end: self.end,
            elapsed,
            limit: self.limit(),
            settings: &self.start.options,
            run: self.run,
        })
    }

    /// What this run came to so far, apart from what the results say.
    fn past(&self) -> Past {
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
