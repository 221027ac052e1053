//! The results: whole lines, and what the lines of earlier runs say.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{
    Outcome, files,
    table::{self, Ended, Table},
};

/// Where result lines go.
#[derive(Default)]
pub(super) enum Target {
    /// The stream of outcomes is all there is.
    #[default]
    Nowhere,
    /// A pipe, say: nothing is known of earlier runs.
    Writer(Box<dyn Write + Send>),
    /// A file, which decides what is done.
    Path(PathBuf),
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nowhere => "Nowhere",
            Self::Writer(_) => "Writer",
            Self::Path(_) => "Path",
        })
    }
}

/// Results, open for more.
pub(super) struct Results {
    sink: Sink,
    pub(super) table: Table,
    pub(super) sums: Sums,
    /// Lines that were replaced by later ones, or that are no results.
    stale: u64,
    /// Why another run is not kept from them.
    pub(super) unlocked: Option<io::Error>,
}

enum Sink {
    Nowhere,
    Writer(Box<dyn Write + Send>),
    File { path: PathBuf, file: File, size: u64, fsync: bool },
}

/// What all lines come to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) ok: u64,
    pub(super) failed: u64,
    pub(super) attempts: u64,
    pub(super) throttled: u64,
    /// Rows that failed, and may be done twice if they are sent again.
    pub(super) maybe_executed: u64,
}

/// What a line says that is needed again.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    id: std::borrow::Cow<'a, str>,
    line: u64,
    ok: bool,
    #[serde(default)]
    attempts: u64,
    #[serde(default)]
    throttled: u64,
    #[serde(default)]
    maybe_executed: bool,
}

impl Line<'_> {
    fn ended(&self) -> Ended {
        Ended { ok: self.ok, maybe_executed: self.maybe_executed }
    }
}

impl Results {
    pub(super) fn open(target: Target, resume: bool, fsync: bool) -> io::Result<Self> {
        let sink = match target {
            Target::Nowhere => Sink::Nowhere,
            Target::Writer(writer) => Sink::Writer(writer),
            Target::Path(path) => return Self::file(path, resume, fsync),
        };
        Ok(Self { sink, table: Table::default(), sums: Sums::default(), stale: 0, unlocked: None })
    }

    fn file(path: PathBuf, resume: bool, fsync: bool) -> io::Result<Self> {
        let (mut file, unlocked) = files::open_alone(&path)?;
        let length = file.metadata()?.len();
        if length > 0 && !resume {
            let why = "it has results already: resume that run, or remove it";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        if fsync {
            files::sync_folder(&path)?;
        }
        let (mut table, mut sums, mut stale) = (Table::default(), Sums::default(), 0);
        let size = each_result(&mut file, |_, line| match line {
            Some(line) => {
                sums.attempts += line.attempts;
                sums.throttled += line.throttled;
                stale += u64::from(sums.count(table.put(line.line, &line.id, line.ended()), line.ended()));
            }
            None => stale += 1,
        })?;
        // The torn line of a run that was killed.
        if size < length {
            file.set_len(size)?;
        }
        file.seek(SeekFrom::Start(size))?;
        Ok(Self { sink: Sink::File { path, file, size, fsync }, table, sums, stale, unlocked })
    }

    pub(super) fn is_file(&self) -> bool {
        matches!(self.sink, Sink::File { .. })
    }

    pub(super) fn is_nowhere(&self) -> bool {
        matches!(self.sink, Sink::Nowhere)
    }

    /// Appends a line for each; when that fails no part of them stays in a file.
    pub(super) fn write<'a>(&mut self, mut outcomes: impl Iterator<Item = &'a Outcome>) -> io::Result<()> {
        match &mut self.sink {
            Sink::Nowhere => Ok(()),
            Sink::Writer(writer) => {
                let mut writer = io::BufWriter::with_capacity(1 << 16, writer);
                outcomes.try_for_each(|outcome| outcome.write_to(&mut writer)).and_then(|()| writer.flush())
            }
            Sink::File { file, size, fsync, .. } => {
                *size = files::append(file, *size, |file| outcomes.try_for_each(|outcome| outcome.write_to(file)))?;
                if *fsync { file.sync_data() } else { Ok(()) }
            }
        }
    }

    /// Another run may go on with them.
    pub(super) fn release(&self) {
        if let Sink::File { file, .. } = &self.sink {
            files::release(file);
        }
    }

    /// The row has its line.
    pub(super) fn count(&mut self, outcome: &Outcome) {
        self.sums.attempts += u64::from(outcome.attempts);
        self.sums.throttled += u64::from(outcome.throttled);
        let ended = Ended { ok: outcome.is_ok(), maybe_executed: outcome.maybe_executed };
        let before = if self.is_file() { self.table.put(outcome.line, &outcome.id, ended) } else { None };
        self.stale += u64::from(self.sums.count(before, ended));
    }

    /// Leaves the last line of each row; attempts and throttles of the lines that are gone.
    pub(super) fn compact(&mut self) -> io::Result<(u64, u64)> {
        let Sink::File { path, file, size, fsync } = &mut self.sink else { return Ok((0, 0)) };
        if self.stale == 0 {
            return Ok((0, 0));
        }
        let mut extra = repeated(file)?;
        let (mut gone, mut kept) = ((0, 0), 0);
        let copied = files::replace_with(path, *fsync, |new| {
            let mut new = io::BufWriter::new(new);
            let mut written = Ok(());
            each_result(file, |text, line| {
                let Some(line) = line else { return };
                match extra.get_mut(&line.line) {
                    Some(more) if *more > 0 => {
                        *more -= 1;
                        gone = (gone.0 + line.attempts, gone.1 + line.throttled);
                    }
                    _ if written.is_ok() => {
                        kept += text.len() as u64;
                        written = new.write_all(text);
                    }
                    _ => {}
                }
            })?;
            written.and_then(|()| new.flush())
        })?;
        (*file, *size, self.stale) = (copied, kept, 0);
        Ok(gone)
    }
}

/// Rows with several lines, and how many too many.
fn repeated(file: &mut File) -> io::Result<HashMap<u64, u32>> {
    let (mut seen, mut extra) = (Table::default(), HashMap::new());
    each_result(file, |_, line| {
        if let Some(line) = line
            && seen.put(line.line, "", line.ended()).is_some()
        {
            *extra.entry(line.line).or_default() += 1;
        }
    })?;
    Ok(extra)
}

/// Each line of a file of results, `None` if it is no result; where the last whole one ends.
fn each_result(file: &mut File, mut each: impl FnMut(&[u8], Option<Line<'_>>)) -> io::Result<u64> {
    let (mut number, mut wrong) = (0_u64, None);
    let size = files::each_line(file, |text| {
        number += 1;
        match serde_json::from_slice::<Line<'_>>(text).ok() {
            Some(line) if !table::is_line(line.line) => drop(wrong.get_or_insert((number, line.line))),
            line => each(text, line),
        }
    })?;
    let Some((number, line)) = wrong else { return Ok(size) };
    let why =
        format!("its line {number} is the result of a row {line}, which no input has: mend that line, or remove it");
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

/// What a file of results says of its rows.
pub(super) fn table(file: &mut File) -> io::Result<Table> {
    let mut table = Table::default();
    each_result(file, |_, line| {
        if let Some(line) = line {
            table.put(line.line, &line.id, line.ended());
        }
    })?;
    Ok(table)
}

impl Sums {
    /// Counts a row; whether it takes the place of an earlier result.
    fn count(&mut self, before: Option<Ended>, now: Ended) -> bool {
        if let Some(before) = before {
            self.ok -= u64::from(before.ok);
            self.failed -= u64::from(!before.ok);
            self.maybe_executed -= u64::from(before.maybe_executed);
        }
        self.ok += u64::from(now.ok);
        self.failed += u64::from(!now.ok);
        self.maybe_executed += u64::from(now.maybe_executed);
        before.is_some()
    }
}

/// A file's own error, named.
pub(super) fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bulk::table::Known;

    fn line(line: u64, ok: bool) -> String {
        format!("{{\"id\":\"r{line}\",\"line\":{line},\"ok\":{ok},\"attempts\":2}}\n")
    }

    #[test]
    fn a_torn_line_goes_and_the_last_line_of_a_row_counts() {
        let path = files::scratch("results");
        let text = [line(1, true), line(2, false), line(3, false), line(2, true), "junk\n".into()].concat();
        std::fs::write(&path, format!("{text}{{\"id\":\"r4\",\"li")).unwrap();
        let mut results = Results::open(Target::Path(path.clone()), true, false).unwrap();
        let looks: Vec<Known> = (1..5).map(|n| results.table.look(n, &format!("r{n}"))).collect();
        let result = |ok| Known::Result(Ended { ok, maybe_executed: false });
        assert_eq!(looks, [result(true), result(true), result(false), Known::No]);
        assert_eq!(results.table.look(1, "r7"), Known::Other);
        assert_eq!((results.sums.ok, results.sums.failed, results.sums.attempts), (2, 1, 8));
        let good =
            |line| Outcome { id: format!("r{line}"), line, status: Some(http::StatusCode::OK), ..Outcome::blank() };
        results.write([good(3)].iter()).unwrap();
        results.count(&good(3));
        assert_eq!(results.compact().unwrap(), (4, 0));
        let text = std::fs::read_to_string(&path).unwrap();
        let last = text.strip_prefix(&[line(1, true), line(2, true)].concat()).unwrap();
        assert!(
            last.starts_with("{\"id\":\"r3\",\"line\":3,\"status\":200,\"ok\":true") && last.lines().count() == 1,
            "{last}"
        );
        assert_eq!((results.sums.ok, results.sums.failed), (3, 0));
        results.write([good(5)].iter()).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().strip_prefix(&text).unwrap().contains("r5"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn results_are_not_overwritten() {
        let path = files::scratch("there");
        std::fs::write(&path, line(1, true)).unwrap();
        assert!(Results::open(Target::Path(path.clone()), false, false).is_err());
        std::fs::remove_file(path).unwrap();
    }
}
