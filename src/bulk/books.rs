//! Results and journal kept together: a claim before the send, the result line, then the journal.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    Job,
    claim::{Claim, MARKED, Over},
    journal::{Journal, Opening, Past},
    results::{Results, Target, named},
    summary::Summary,
    table::{self, Known},
};

/// What a run has written down.
pub(super) struct Books {
    results: Results,
    /// What is worth knowing before rows are sent.
    pub(super) warnings: Vec<String>,
    results_path: Option<PathBuf>,
    journal: Option<Journal>,
    journal_path: PathBuf,
    retry_failed: bool,
    key_lifetime: Duration,
    key_header: String,
    bound: bool,
    /// Of rows that have no result: what they came to so far.
    lost: (u64, u64),
    unknown: u64,
    /// What a run without a journal came to.
    closed: Past,
}

/// A row that so many workers had, and none of them settled, is not given to one more: it may be what ends them.
const MOST_DELIVERIES: u32 = 10;

/// Why a row of unknown fate is not sent.
const BY_A_RUN: &str = "an earlier run may have sent it, and it may not be repeated";
const BY_A_WORKER: &str = "a worker that is gone may have sent it, and it may not be repeated";
const ENDS_WORKERS: &str = "10 workers had it, and each was gone before there was a result";

/// How the books are opened.
pub(super) struct Settings {
    pub(super) target: Target,
    pub(super) journal: Option<PathBuf>,
    pub(super) resume: bool,
    pub(super) retry_failed: bool,
    pub(super) fsync: bool,
    pub(super) key_header: String,
    pub(super) key_lifetime: Duration,
    pub(super) options: std::collections::BTreeMap<String, String>,
}

/// What is to be done with a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Send,
    /// An earlier run may have sent it: again, with the key that it had.
    Resend(Option<String>),
    /// It has its result.
    Done,
    /// An earlier run may have sent it, and it may not be repeated, or for another reason.
    Unknown(&'static str),
}

impl Books {
    pub(super) fn open(settings: Settings) -> io::Result<Self> {
        let results_path = match &settings.target {
            Target::Path(path) => Some(path.clone()),
            _ => None,
        };
        let results = Results::open(settings.target, settings.resume, settings.fsync)
            .map_err(|error| named(results_path.as_deref().unwrap_or_else(|| Path::new("results")), &error))?;
        let journal_path = settings.journal.clone().unwrap_or_default();
        let open = |path: &PathBuf| {
            let opening = Opening {
                path,
                resume: settings.resume,
                keeps_done: !results.is_file(),
                fsync: settings.fsync,
                key_header: settings.key_header.clone(),
                options: settings.options.clone(),
            };
            Journal::open(opening).map_err(|error| named(path, &error))
        };
        let journal = settings.journal.as_ref().map(open).transpose()?;
        let repeats = if settings.retry_failed { results.sums.maybe_executed } else { 0 };
        let maybe = "may have been executed, have no key, and are not safe to repeat";
        let told = (repeats > 0).then(|| format!("{repeats} rows that failed {maybe}: they are sent again"));
        let is_lost = settings.resume && results.table.last_line() > 0;
        let lost = journal.as_ref().filter(|journal| is_lost && journal.is_new).map(|_| {
            let why = "it is not there, or has no head: rows that were on their way are not known, and are sent again";
            format!("{}: {why}", journal_path.display())
        });
        let unlocked = match (&results.unlocked, &results_path, journal.as_ref().map(|journal| &journal.unlocked)) {
            (Some(why), Some(path), _) => Some(named(path, why)),
            (.., Some(Some(why))) => Some(named(&journal_path, why)),
            _ => None,
        };
        Ok(Self {
            results,
            warnings: told.into_iter().chain(lost).chain(unlocked.map(|why| why.to_string())).collect(),
            results_path,
            journal,
            journal_path,
            retry_failed: settings.retry_failed,
            key_lifetime: settings.key_lifetime,
            key_header: settings.key_header,
            bound: false,
            lost: (0, 0),
            unknown: 0,
            closed: Past::default(),
        })
    }

    pub(super) fn run_id(&self) -> Option<uuid::Uuid> {
        self.journal.as_ref().map(|journal| journal.head.run)
    }

    /// Whether outcomes are written by the run itself.
    pub(super) fn writes(&self) -> bool {
        !self.results.is_nowhere()
    }

    /// A row that the results cannot tell from others is none.
    pub(super) fn check(&self, line: u64) -> io::Result<()> {
        if self.results.is_file() && !table::is_line(line) {
            let why = format!("a row has the line {line}: it must be from 1 to 2^34 - 1");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(())
    }

    /// What is to be done with a row. The first one binds the journal to the input.
    pub(super) fn enter(&mut self, job: &Job, line: u64) -> io::Result<Entry> {
        self.bind(job)?;
        let claim = self.journal.as_ref().and_then(|journal| journal.claimed(line)).cloned();
        match self.results.table.look(line, &job.id) {
            Known::Other => {
                let why = format!("line {line} is not the row that the results have for it: the input has changed");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            Known::Result(ended) if ended.ok || !self.retry_failed => {
                // Killed after the result and before the journal.
                if claim.is_some() {
                    self.done([line].into_iter(), Past::default())?;
                }
                return Ok(Entry::Done);
            }
            _ if self.journal.as_ref().is_some_and(|journal| journal.is_done(line)) => return Ok(Entry::Done),
            _ => {}
        }
        let Some(claim) = claim else { return Ok(Entry::Send) };
        let same = self.journal.as_ref().is_some_and(|journal| journal.head.key_header == self.key_header);
        let keyed = claim.key.is_some() && same && claim.age() < self.key_lifetime;
        if keyed || job.is_idempotent() {
            return Ok(Entry::Resend(claim.key.filter(|_| same)));
        }
        self.unknown += 1;
        Ok(Entry::Unknown(BY_A_RUN))
    }

    /// As [`enter`](Self::enter), of a row of a stream: its group knows who had it, and the results count its lines.
    pub(super) fn enter_claimed(&mut self, job: &Job, claim: &Claim, keys: bool) -> io::Result<Entry> {
        self.bind(job)?;
        let keyed = (keys || job.idempotency_key.is_some()) && claim.idle < self.key_lifetime;
        let entry = match (claim.before, job.is_idempotent()) {
            (0, _) => Entry::Send,
            (before, _) if before % MARKED >= MOST_DELIVERIES => Entry::Unknown(ENDS_WORKERS),
            // It was read, and never sent.
            (..MARKED, false) => Entry::Send,
            (_, true) => Entry::Resend(None),
            (_, false) if keyed => Entry::Resend(None),
            (_, false) => Entry::Unknown(BY_A_WORKER),
        };
        self.unknown += u64::from(matches!(entry, Entry::Unknown(_)));
        Ok(entry)
    }

    /// Of the results.
    pub(super) fn last_line(&self) -> u64 {
        self.results.table.last_line()
    }

    fn bind(&mut self, job: &Job) -> io::Result<()> {
        if std::mem::replace(&mut self.bound, true) {
            return Ok(());
        }
        let Some(journal) = &mut self.journal else { return Ok(()) };
        match journal.head.input {
            Some(input) if input != job.input() => {
                let why = format!("{} belongs to another input", self.journal_path.display());
                Err(io::Error::new(io::ErrorKind::InvalidData, why))
            }
            Some(_) => Ok(()),
            None => journal.bind(job.input()).map_err(|error| named(&self.journal_path, &error)),
        }
    }

    pub(super) fn claim<'a>(&mut self, rows: impl Iterator<Item = (u64, Option<&'a str>)>) -> io::Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        journal.claim(rows).map_err(|error| named(&self.journal_path, &error))
    }

    /// The row has no result, and certainly was not executed: or that is open.
    pub(super) fn leave(&mut self, line: u64, unsent: bool, attempts: u32, throttled: u32) -> io::Result<()> {
        self.lost = (self.lost.0 + u64::from(attempts), self.lost.1 + u64::from(throttled));
        match &mut self.journal {
            Some(journal) if unsent => journal.free(line).map_err(|error| named(&self.journal_path, &error)),
            _ => Ok(()),
        }
    }

    /// Writes result lines, then the journal.
    pub(super) fn finish(&mut self, over: &[Over], now: Past) -> io::Result<()> {
        let outcomes = || over.iter().map(|over| &over.outcome);
        self.results.write(outcomes()).map_err(|error| match &self.results_path {
            Some(path) => named(path, &error),
            None => named(Path::new("results"), &error),
        })?;
        outcomes().for_each(|outcome| self.results.count(outcome));
        match self.writes() {
            true => self.done(outcomes().map(|outcome| outcome.line), now),
            false => Ok(()),
        }
    }

    /// The rows need not be sent again.
    pub(super) fn done(&mut self, lines: impl Iterator<Item = u64>, now: Past) -> io::Result<()> {
        let now = self.with_lost(now);
        let Some(journal) = &mut self.journal else { return Ok(()) };
        journal.done(lines, now).map_err(|error| named(&self.journal_path, &error))
    }

    fn with_lost(&self, now: Past) -> Past {
        Past { attempts: now.attempts + self.lost.0, throttled: now.throttled + self.lost.1, ..now }
    }

    /// The run is over.
    pub(super) fn close(&mut self, now: Past) -> io::Result<()> {
        let gone = self.results.compact().map_err(|error| match &self.results_path {
            Some(path) => named(path, &error),
            None => error,
        })?;
        self.results.sums.attempts -= gone.0;
        self.results.sums.throttled -= gone.1;
        self.lost = (self.lost.0 + gone.0, self.lost.1 + gone.1);
        let now = self.with_lost(now);
        match &mut self.journal {
            Some(journal) => journal.close(now).map_err(|error| named(&self.journal_path, &error)),
            None => {
                self.closed = now;
                Ok(())
            }
        }
    }

    /// Nothing more is written: another run may go on.
    pub(super) fn release(&self) {
        self.results.release();
        self.journal.iter().for_each(Journal::release);
    }

    /// Totals over all runs of the job; `now` is what this run came to so far, zero once it is closed.
    pub(super) fn summary(&self, now: Past) -> Summary {
        let (sums, past) = (self.results.sums, self.journal.as_ref().map(|journal| journal.head.past));
        let past = past.unwrap_or(self.closed);
        Summary {
            ok: sums.ok,
            failed: sums.failed,
            unknown: self.unknown,
            attempts: sums.attempts + past.attempts + now.attempts,
            throttled: sums.throttled + past.throttled + now.throttled,
            waited_s: seconds(past.waited_ms + now.waited_ms),
            elapsed_s: seconds(past.elapsed_ms + now.elapsed_ms),
        }
    }

    /// As [`summary`](Self::summary) of a run that is under way.
    pub(super) fn so_far(&self, now: Past) -> Summary {
        self.summary(self.with_lost(now))
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of runs are far below 2^52")]
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}
