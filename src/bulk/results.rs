//! The results: whole lines, and what the lines of earlier runs say.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::files;

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
}

impl Results {
    pub(super) fn open(target: Target, resume: bool, fsync: bool) -> io::Result<Self> {
        let sink = match target {
            Target::Nowhere => Sink::Nowhere,
            Target::Writer(writer) => Sink::Writer(writer),
            Target::Path(path) => return Self::file(path, resume, fsync),
        };
        Ok(Self { sink, table: Table::default(), sums: Sums::default(), stale: 0 })
    }

    fn file(path: PathBuf, resume: bool, fsync: bool) -> io::Result<Self> {
        let mut file = files::private().read(true).write(true).create(true).truncate(false).open(&path)?;
        let length = file.metadata()?.len();
        if length > 0 && !resume {
            let why = "it has results already: resume that run, or remove it";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        if fsync {
            files::sync_folder(&path)?;
        }
        let (mut table, mut sums, mut stale) = (Table::default(), Sums::default(), 0);
        let size = files::each_line(&mut file, |text| match serde_json::from_slice::<Line<'_>>(text) {
            Ok(line) if Table::takes(line.line) => {
                sums.attempts += line.attempts;
                sums.throttled += line.throttled;
                stale += u64::from(sums.count(table.put(line.line, mark(&line.id), line.ok), line.ok));
            }
            _ => stale += 1,
        })?;
        // The torn line of a run that was killed.
        if size < length {
            file.set_len(size)?;
        }
        file.seek(SeekFrom::Start(size))?;
        Ok(Self { sink: Sink::File { path, file, size, fsync }, table, sums, stale })
    }

    pub(super) fn is_file(&self) -> bool {
        matches!(self.sink, Sink::File { .. })
    }

    pub(super) fn is_nowhere(&self) -> bool {
        matches!(self.sink, Sink::Nowhere)
    }

    /// Appends lines; when that fails no part of them stays in a file.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match &mut self.sink {
            Sink::Nowhere => Ok(()),
            Sink::Writer(writer) => writer.write_all(lines).and_then(|()| writer.flush()),
            Sink::File { file, size, fsync, .. } => {
                files::append(file, lines, *size)?;
                *size += lines.len() as u64;
                if *fsync { file.sync_data() } else { Ok(()) }
            }
        }
    }

    /// The row has its line.
    pub(super) fn count(&mut self, line: u64, id: &str, ok: bool) {
        let before = if self.is_file() { self.table.put(line, mark(id), ok) } else { None };
        self.stale += u64::from(self.sums.count(before, ok));
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
            files::each_line(file, |text| {
                let Ok(line) = serde_json::from_slice::<Line<'_>>(text) else { return };
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
    files::each_line(file, |text| {
        if let Ok(line) = serde_json::from_slice::<Line<'_>>(text)
            && Table::takes(line.line)
            && seen.put(line.line, 1, line.ok).is_some()
        {
            *extra.entry(line.line).or_default() += 1;
        }
    })?;
    Ok(extra)
}

impl Sums {
    /// Counts a row; whether it takes the place of an earlier result.
    fn count(&mut self, before: Option<bool>, ok: bool) -> bool {
        match before {
            Some(true) => self.ok -= 1,
            Some(false) => self.failed -= 1,
            None => {}
        }
        match ok {
            true => self.ok += 1,
            false => self.failed += 1,
        }
        before.is_some()
    }
}

/// Which rows have a result: a byte a row, by line.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// 0: none; else 7 bits of the id's hash, and the lowest for ok.
    marks: Vec<u8>,
}

/// What the table knows of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It has no result.
    No,
    /// It has one.
    Result { ok: bool },
    /// There is one for this line, of another row.
    Other,
}

impl Table {
    /// More lines than any file has are a sign of a broken one.
    fn takes(line: u64) -> bool {
        line > 0 && line < 1 << 34
    }

    /// Of the rows that have a result, or had one.
    pub(super) fn last_line(&self) -> u64 {
        (self.marks.len() as u64).saturating_sub(1)
    }

    /// From a file of results.
    pub(super) fn read(file: &mut File) -> io::Result<Self> {
        let mut table = Self::default();
        files::each_line(file, |text| {
            if let Ok(line) = serde_json::from_slice::<Line<'_>>(text)
                && Self::takes(line.line)
            {
                table.put(line.line, mark(&line.id), line.ok);
            }
        })?;
        Ok(table)
    }

    fn put(&mut self, line: u64, mark: u8, ok: bool) -> Option<bool> {
        let place = usize::try_from(line).ok()?;
        if self.marks.len() <= place {
            self.marks.resize(place + 1, 0);
        }
        let before = std::mem::replace(&mut self.marks[place], mark << 1 | u8::from(ok));
        (before != 0).then_some(before & 1 == 1)
    }

    pub(super) fn look(&self, line: u64, id: &str) -> Known {
        let found = usize::try_from(line).ok().and_then(|place| self.marks.get(place)).copied().unwrap_or(0);
        match found {
            0 => Known::No,
            found if found >> 1 == mark(id) => Known::Result { ok: found & 1 == 1 },
            _ => Known::Other,
        }
    }
}

/// 1 to 127.
fn mark(id: &str) -> u8 {
    u8::try_from(super::hash(id.as_bytes()) % 127).unwrap_or(0) + 1
}

/// A file's own error, named.
pub(super) fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let result = |ok| Known::Result { ok };
        assert_eq!(looks, [result(true), result(true), result(false), Known::No]);
        assert_eq!(results.table.look(1, "r7"), Known::Other);
        assert_eq!((results.sums.ok, results.sums.failed, results.sums.attempts), (2, 1, 8));
        results.write(line(3, true).as_bytes()).unwrap();
        results.count(3, "r3", true);
        assert_eq!(results.compact().unwrap(), (4, 0));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), [line(1, true), line(2, true), line(3, true)].concat());
        assert_eq!((results.sums.ok, results.sums.failed), (3, 0));
        results.write(line(5, true).as_bytes()).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().ends_with(&line(5, true)));
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
