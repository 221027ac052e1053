//! Rows from a file or a pipe, read as they are needed.

use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use flate2::bufread::MultiGzDecoder;
use futures_core::Stream;
use tokio::sync::mpsc;

use super::{Job, hash, results::named, rows};

/// A stream of [`Job`]s from lines: each a JSON object or a bare URL, which is a GET. Compressed or not is told by the
/// first bytes. A thread reads, a few rows ahead.
///
/// | field | meaning |
/// | --- | --- |
/// | `url` | where it goes |
/// | `id` | its name; default: its line number and a hash of the line |
/// | `method` | default `GET` |
/// | `headers` | an object of texts |
/// | `body` | a text as it is; anything else as JSON |
/// | `body_file` | a file that is the body |
/// | `cost`, `units` | requests that it counts for; an object of units |
/// | `idempotency_key` | its own key |
/// | `meta` | anything, handed through to the result |
///
/// A line that makes no sense is a job that fails and says why. Empty lines are skipped.
pub struct Input {
    stage: Stage,
    sample: Option<f64>,
    error: Arc<OnceLock<io::Error>>,
}

enum Stage {
    Closed(Option<Box<dyn Read + Send>>),
    Open(mpsc::Receiver<Job>),
}

/// Rows between the thread and the run.
const BETWEEN: usize = 16;

/// A longer line is no row.
const LONGEST: u64 = 64 << 20;

impl Input {
    /// A file.
    ///
    /// # Errors
    /// It cannot be opened, or is a folder.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| named(path, &error))?;
        if file.metadata().map_err(|error| named(path, &error))?.is_dir() {
            return Err(named(path, &io::ErrorKind::IsADirectory.into()));
        }
        Ok(Self::from_reader(file))
    }

    /// Anything that can be read.
    pub fn from_reader(reader: impl Read + Send + 'static) -> Self {
        Self { stage: Stage::Closed(Some(Box::new(reader))), sample: None, error: Arc::default() }
    }

    /// A part of the rows, 0 to 1, by their lines: always the same ones, so that a later run without it sends the rest.
    #[must_use]
    pub fn sample(self, share: f64) -> Self {
        Self { sample: Some(share), ..self }
    }

    /// Why reading broke off, if it did; to be looked at when the run is over.
    pub fn trouble(&self) -> Arc<OnceLock<io::Error>> {
        Arc::clone(&self.error)
    }

    /// The rows, read by whoever asks. Reading breaks off at an error: see [`trouble`](Self::trouble).
    pub fn into_rows(self) -> impl Iterator<Item = Job> + Send {
        self.into_texts().map(|Text { line, text, whole, head }| {
            let job = if whole { rows::job(line, &text) } else { rows::broken(line, &text, TOO_LONG) };
            job.read_from(head)
        })
    }

    /// The lines that are rows, as they stand there.
    pub(super) fn into_texts(self) -> impl Iterator<Item = Text> + Send {
        let reader: Box<dyn Read + Send> = match self.stage {
            Stage::Closed(Some(reader)) => reader,
            _ => Box::new(io::empty()),
        };
        Rows { lines: Lines::Raw(BufReader::new(reader)), line: 0, head: None, sample: self.sample, error: self.error }
    }

    fn receiver(&mut self) -> &mut mpsc::Receiver<Job> {
        if let Stage::Closed(reader) = &mut self.stage {
            let (sender, receiver) = mpsc::channel(BETWEEN);
            let closed = Self { stage: Stage::Closed(reader.take()), sample: self.sample, error: self.trouble() };
            // A failed send: the run is over.
            let read = move || closed.into_rows().all(|job| sender.blocking_send(job).is_ok());
            if let Err(error) = std::thread::Builder::new().name("abide-input".into()).spawn(read) {
                let _ = self.error.set(error);
            }
            self.stage = Stage::Open(receiver);
        }
        match &mut self.stage {
            Stage::Open(receiver) => receiver,
            Stage::Closed(_) => unreachable!("opened above"),
        }
    }
}

impl Stream for Input {
    type Item = Job;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Job>> {
        self.receiver().poll_recv(cx)
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("sample", &self.sample).finish_non_exhaustive()
    }
}

type Raw = BufReader<Box<dyn Read + Send>>;

enum Lines {
    /// Not looked at yet.
    Raw(Raw),
    Plain(Raw),
    Packed(Box<BufReader<MultiGzDecoder<Raw>>>),
    Over,
}

/// A line.
pub(super) struct Text {
    pub(super) line: u64,
    pub(super) text: Vec<u8>,
    /// It is no longer than a line may be.
    pub(super) whole: bool,
    /// Of the first row.
    head: u64,
}

/// What is wrong with a line that is not whole.
pub(super) const TOO_LONG: &str = "longer than 64 MiB";

struct Rows {
    lines: Lines,
    line: u64,
    /// Of the first row.
    head: Option<u64>,
    sample: Option<f64>,
    error: Arc<OnceLock<io::Error>>,
}

impl Rows {
    /// The next line without its end, and whether it is whole.
    fn next_line(&mut self) -> io::Result<Option<(Vec<u8>, bool)>> {
        if let Lines::Raw(raw) = &mut self.lines {
            let packed = raw.fill_buf()?.starts_with(&[0x1f, 0x8b]);
            let Lines::Raw(raw) = std::mem::replace(&mut self.lines, Lines::Over) else { return Ok(None) };
            self.lines = match packed {
                true => Lines::Packed(Box::new(BufReader::new(MultiGzDecoder::new(raw)))),
                false => Lines::Plain(raw),
            };
        }
        let reader: &mut dyn BufRead = match &mut self.lines {
            Lines::Plain(reader) => reader,
            Lines::Packed(reader) => reader,
            Lines::Raw(_) | Lines::Over => return Ok(None),
        };
        let mut text = Vec::new();
        if reader.take(LONGEST).read_until(b'\n', &mut text)? == 0 {
            return Ok(None);
        }
        let whole = text.last() == Some(&b'\n') || (text.len() as u64) < LONGEST;
        if !whole {
            reader.skip_until(b'\n')?;
        }
        while matches!(text.last(), Some(b'\n' | b'\r')) {
            text.pop();
        }
        Ok(Some((text, whole)))
    }

    fn is_picked(&self) -> bool {
        let bits = hash(&self.line.to_le_bytes()) >> 32;
        self.sample.is_none_or(|share| super::stats::float(bits) < share * 4_294_967_296.0)
    }
}

impl Iterator for Rows {
    type Item = Text;

    fn next(&mut self) -> Option<Text> {
        loop {
            let (mut text, whole) = match self.next_line() {
                Ok(line) => line?,
                Err(error) => {
                    self.lines = Lines::Over;
                    let _ = self.error.set(error);
                    return None;
                }
            };
            self.line += 1;
            if self.line == 1 && text.starts_with(b"\xef\xbb\xbf") {
                text.drain(..3);
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            let head = *self.head.get_or_insert_with(|| hash(&text));
            if !self.is_picked() {
                continue;
            }
            return Some(Text { line: self.line, text, whole, head });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn ids(input: Input) -> Vec<String> {
        input.into_rows().map(|job| job.id().to_owned()).collect()
    }

    #[test]
    fn packed_or_not_the_rows_are_the_same() {
        let text = "\u{feff}http://h.example/1\r\n\n{\"id\":\"x\",\"url\":\"http://h.example/2\"}";
        let plain = ids(Input::from_reader(text.as_bytes()));
        assert_eq!(plain.len(), 2);
        assert!(plain[0].starts_with("1-"), "{plain:?}");
        assert_eq!(plain[1], "x");
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(ids(Input::from_reader(io::Cursor::new(packed.clone()))), plain);
        let torn = Input::from_reader(io::Cursor::new(packed[..packed.len() - 9].to_vec()));
        let trouble = torn.trouble();
        drop(ids(torn));
        assert!(trouble.get().is_some());
    }

    #[test]
    fn a_sample_is_a_share_and_always_the_same() {
        let text = "http://h.example/\n".repeat(10_000);
        let sample = |share| ids(Input::from_reader(io::Cursor::new(text.clone().into_bytes())).sample(share));
        let some = sample(0.05);
        assert!((400..600).contains(&some.len()), "{}", some.len());
        assert_eq!(some, sample(0.05));
        assert_eq!((sample(0.0).len(), sample(1.0).len()), (0, 10_000));
    }
}
