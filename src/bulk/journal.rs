//! What is claimed and not finished: written before a row is sent, so that a killed run knows whose fate is open.
//!
//! Lines of JSON. A head: run id, options, hash of the input's head, what earlier runs came to. Then claims, and what
//! became of them. Its size follows what is in flight: finished claims are compacted away.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::files;
use crate::clock;

/// The journal of a run.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    pub(super) head: Head,
    open: BTreeMap<u64, Claim>,
    done: Done,
    /// Rows known by their results need no list here.
    keeps_done: bool,
    fsync: bool,
    size: u64,
    compact_at: u64,
    /// Nothing was there to go on with.
    pub(super) is_new: bool,
    /// Why another run is not kept from it.
    pub(super) unlocked: Option<io::Error>,
}

/// The first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Head {
    /// The version of the form.
    journal: u32,
    pub(super) run: Uuid,
    /// Of the input; `None`: no row was read yet.
    pub(super) input: Option<u64>,
    pub(super) key_header: String,
    #[serde(default)]
    options: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) past: Past,
}

/// What is not in the results: sums of earlier runs.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Past {
    pub(super) elapsed_ms: u64,
    pub(super) waited_ms: u64,
    /// Of rows without a result, and of results that were replaced.
    pub(super) attempts: u64,
    pub(super) throttled: u64,
}

impl Past {
    fn and(self, run: Self) -> Self {
        Self {
            elapsed_ms: self.elapsed_ms.saturating_add(run.elapsed_ms),
            waited_ms: self.waited_ms.saturating_add(run.waited_ms),
            attempts: self.attempts.saturating_add(run.attempts),
            throttled: self.throttled.saturating_add(run.throttled),
        }
    }
}

/// A row that was on its way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Claim {
    claim: u64,
    pub(super) key: Option<String>,
    /// Unix seconds.
    at: u64,
}

impl Claim {
    /// How long ago it was made.
    pub(super) fn age(&self) -> Duration {
        Duration::from_secs(unix().saturating_sub(self.at))
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Entry {
    Claim(Claim),
    Done {
        done: u64,
    },
    /// Claimed, and certainly not executed.
    Free {
        free: u64,
    },
    /// How far this run has come.
    Now {
        now: Past,
    },
    /// All rows up to one are done, and some beyond.
    Through {
        through: u64,
        beyond: Vec<u64>,
    },
}

/// Rows that are done, by line.
#[derive(Debug, Default)]
struct Done {
    through: u64,
    beyond: BTreeSet<u64>,
}

impl Done {
    fn add(&mut self, line: u64) {
        if line > self.through {
            self.beyond.insert(line);
        }
        while self.beyond.first().is_some_and(|line| line - 1 == self.through) {
            self.beyond.pop_first();
            self.through += 1;
        }
    }

    fn has(&self, line: u64) -> bool {
        line <= self.through || self.beyond.contains(&line)
    }
}

/// Compacted beyond this, and beyond twice what a compaction left.
const COMPACT_AT: u64 = 1 << 20;

/// How a journal is opened.
#[derive(Debug)]
pub(super) struct Opening<'a> {
    pub(super) path: &'a Path,
    pub(super) resume: bool,
    pub(super) keeps_done: bool,
    pub(super) fsync: bool,
    pub(super) key_header: String,
    pub(super) options: BTreeMap<String, String>,
}

impl Journal {
    /// Starts one, or goes on with the one that is there.
    pub(super) fn open(opening: Opening<'_>) -> io::Result<Self> {
        // A link is not followed: a new file takes its place.
        let alone = (!opening.path.is_symlink()).then(|| files::open_alone(opening.path)).transpose()?;
        let there = read(opening.path)?;
        if !opening.resume && there.as_ref().is_some_and(|(_, open, _)| !open.is_empty()) {
            let why = "a run was interrupted, and rows of it may have been executed: resume it, or remove this file \
                       with its results";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let there = there.filter(|_| opening.resume);
        let fresh = || Head {
            journal: 1,
            run: Uuid::new_v4(),
            input: None,
            key_header: opening.key_header.clone(),
            options: opening.options.clone(),
            past: Past::default(),
        };
        let is_new = there.is_none();
        let (head, open, done) = there.unwrap_or_else(|| (fresh(), BTreeMap::new(), Done::default()));
        let path = opening.path.to_owned();
        let text = whole(&head, &open, opening.keeps_done.then_some(&done))?;
        let file = files::replace(&path, &text, opening.fsync)?;
        let size = text.len() as u64;
        let (keeps_done, fsync) = (opening.keeps_done, opening.fsync);
        let unlocked = alone.and_then(|(_, unlocked)| unlocked);
        Ok(Self { path, file, head, open, done, keeps_done, fsync, size, compact_at: COMPACT_AT, is_new, unlocked })
    }

    /// What an earlier run claimed and did not finish.
    pub(super) fn claimed(&self, line: u64) -> Option<&Claim> {
        self.open.get(&line)
    }

    pub(super) fn is_done(&self, line: u64) -> bool {
        self.keeps_done && self.done.has(line)
    }

    /// Binds the journal to its input; before the first claim.
    pub(super) fn bind(&mut self, input: u64) -> io::Result<()> {
        self.head.input = Some(input);
        self.compact()
    }

    /// Before they are sent: on return the claims are in the file (with fsync: on the disk).
    pub(super) fn claim<'a>(&mut self, rows: impl Iterator<Item = (u64, Option<&'a str>)>) -> io::Result<()> {
        let at = unix();
        let mut entries = Vec::new();
        for (claim, key) in rows {
            let claim = Claim { claim, key: key.map(str::to_owned), at };
            // Of a row that an earlier run claimed, the first key holds and the first time counts.
            if let std::collections::btree_map::Entry::Vacant(open) = self.open.entry(claim.claim) {
                open.insert(claim.clone());
                entries.push(Entry::Claim(claim));
            }
        }
        self.append(&entries)
    }

    /// After their results are written.
    pub(super) fn done(&mut self, rows: impl Iterator<Item = u64>, now: Past) -> io::Result<()> {
        let mut entries = Vec::new();
        for line in rows {
            let claimed = self.open.remove(&line).is_some();
            if self.keeps_done {
                self.done.add(line);
            }
            if claimed || self.keeps_done {
                entries.push(Entry::Done { done: line });
            }
        }
        entries.push(Entry::Now { now });
        self.append(&entries)
    }

    /// A row that was claimed and certainly not executed.
    pub(super) fn free(&mut self, line: u64) -> io::Result<()> {
        match self.open.remove(&line) {
            Some(_) => self.append(&[Entry::Free { free: line }]),
            None => Ok(()),
        }
    }

    /// The run is over: what it came to becomes past.
    pub(super) fn close(&mut self, now: Past) -> io::Result<()> {
        self.head.past = self.head.past.and(now);
        self.compact()
    }

    /// Another run may go on with it.
    pub(super) fn release(&self) {
        files::release(&self.file);
    }

    fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        let mut text = Vec::with_capacity(entries.len() * 64);
        for entry in entries {
            write_line(&mut text, entry)?;
        }
        self.size = files::append(&mut self.file, self.size, |file| file.write_all(&text))?;
        if self.fsync && !entries.is_empty() {
            self.file.sync_data()?;
        }
        if self.size > self.compact_at {
            let now = entries.iter().rev().find_map(|entry| match entry {
                Entry::Now { now } => Some(*now),
                _ => None,
            });
            if let Some(now) = now {
                self.compact()?;
                self.append_now(now)?;
            }
        }
        Ok(())
    }

    fn append_now(&mut self, now: Past) -> io::Result<()> {
        let mut text = Vec::new();
        write_line(&mut text, &Entry::Now { now })?;
        self.size = files::append(&mut self.file, self.size, |file| file.write_all(&text))?;
        Ok(())
    }

    fn compact(&mut self) -> io::Result<()> {
        let text = whole(&self.head, &self.open, self.keeps_done.then_some(&self.done))?;
        self.file = files::replace(&self.path, &text, self.fsync)?;
        self.size = text.len() as u64;
        self.compact_at = COMPACT_AT.max(self.size.saturating_mul(2));
        Ok(())
    }
}

/// What a journal belongs to; `None`: there is none, or no row was read.
#[cfg(feature = "redis")]
pub(super) fn input_of(path: &Path) -> io::Result<Option<u64>> {
    Ok(read(path)?.and_then(|(head, _, _)| head.input))
}

type Contents = (Head, BTreeMap<u64, Claim>, Done);

/// `None`: there is none. A torn last line is as if it were not there: what it claims was not sent.
fn read(path: &Path) -> io::Result<Option<Contents>> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let mut lines = text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let Some(first) = lines.next() else { return Ok(None) };
    let mut head: Head = serde_json::from_slice(first)
        .ok()
        .filter(|head: &Head| head.journal == 1)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this is no journal of a bulk run"))?;
    let (mut open, mut done, mut last) = (BTreeMap::new(), Done::default(), Past::default());
    for line in lines {
        match serde_json::from_slice(line) {
            Ok(Entry::Claim(claim)) => drop(open.insert(claim.claim, claim)),
            Ok(Entry::Done { done: line }) => {
                open.remove(&line);
                done.add(line);
            }
            Ok(Entry::Free { free }) => drop(open.remove(&free)),
            Ok(Entry::Now { now }) => last = now,
            Ok(Entry::Through { through, beyond }) => {
                done.through = through;
                beyond.into_iter().for_each(|line| done.add(line));
            }
            // After a loss of power there may be anything.
            Err(_) => {}
        }
    }
    head.past = head.past.and(last);
    Ok(Some((head, open, done)))
}

fn whole(head: &Head, open: &BTreeMap<u64, Claim>, done: Option<&Done>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    write_line(&mut text, head)?;
    if let Some(done) = done {
        let beyond = done.beyond.iter().copied().collect();
        write_line(&mut text, &Entry::Through { through: done.through, beyond })?;
    }
    for claim in open.values() {
        write_line(&mut text, claim)?;
    }
    Ok(text)
}

fn write_line(text: &mut Vec<u8>, entry: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *text, entry)?;
    text.write_all(b"\n")
}

fn unix() -> u64 {
    clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path, resume: bool, keeps_done: bool) -> Journal {
        let key_header = "idempotency-key".to_owned();
        Journal::open(Opening { path, resume, keeps_done, fsync: false, key_header, options: BTreeMap::new() }).unwrap()
    }

    #[test]
    fn a_torn_journal_knows_what_is_open() {
        let path = files::scratch("torn");
        let mut journal = open(&path, false, false);
        journal.bind(7).unwrap();
        journal.claim([(1, Some("k1")), (2, None), (3, None)].into_iter()).unwrap();
        journal.done([1].into_iter(), Past { elapsed_ms: 5, ..Past::default() }).unwrap();
        journal.free(3).unwrap();
        let run = journal.head.run;
        drop(journal);
        let mut text = std::fs::read(&path).unwrap();
        text.extend_from_slice(br#"{"claim":9,"ke"#);
        std::fs::write(&path, text).unwrap();
        let journal = open(&path, true, false);
        assert_eq!((journal.head.run, journal.head.input, journal.head.past.elapsed_ms), (run, Some(7), 5));
        let claimed: Vec<bool> = [1, 2, 3, 9].iter().map(|line| journal.claimed(*line).is_some()).collect();
        assert_eq!(claimed, [false, true, false, false]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn its_size_follows_what_is_open() {
        let path = files::scratch("size");
        let mut journal = open(&path, false, true);
        for line in 1..=60_000 {
            journal.claim([(line, Some("0123456789abcdef0123456789abcdef"))].into_iter()).unwrap();
            journal.done([line].into_iter(), Past::default()).unwrap();
        }
        assert!(journal.size <= COMPACT_AT, "{}", journal.size);
        journal.release();
        let journal = open(&path, true, true);
        assert!(journal.is_done(60_000) && !journal.is_done(60_001) && journal.size < 1000);
        std::fs::remove_file(path).unwrap();
    }
}
