//! Rows of a file into a stream, each once: a batch is there or not, and after a loss of the connection the stream is
//! asked which.

use std::{fmt, io, sync::Arc, time::Duration};

use redis::{RedisError, RedisResult, Value, cmd};
use tokio::{sync::mpsc, time::Instant};

use super::group::{ANSWER, AT_ONCE, CONNECT, ROW, SEED, is_final};
use crate::{
    Backoff,
    bulk::{
        Input, Stopper,
        gate::Gate,
        input::{TOO_LONG, Text},
        rows,
    },
    clock,
    fleet::link::{Address, Link},
};

/// Fills a stream with the rows of an input.
///
/// # Examples
///
/// ```no_run
/// use abide::bulk::{Input, Push};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let mut push = Push::connect("redis://localhost/jobs").await?;
/// let pushed = push.rows(Input::open("jobs.jsonl")?, |bad| eprintln!("{bad}")).await;
/// println!("{} rows", pushed.rows);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Push {
    address: Address,
    stream: String,
    link: Option<Link>,
    gate: Arc<Gate>,
    /// Tells this push from others.
    name: String,
    /// The place of the last row that is certainly there.
    last: String,
    from: u64,
}

/// How far a push came.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Pushed {
    /// Rows that are in the stream.
    pub rows: u64,
    /// Lines that are no rows, and are not.
    pub bad: u64,
    /// The line to go on from; `None`: the input was read to its end.
    pub go_on: Option<u64>,
    /// From there up to this line rows may be in the stream already: the store went away before it told.
    pub unsure_to: Option<u64>,
    /// Why it stopped, unless it was asked to.
    pub error: Option<io::Error>,
}

/// Lines between the thread that reads and the push, and rows in one command, at most.
const BATCH: usize = 256;

/// Bytes in one command, roughly.
const BYTES: usize = 1 << 20;

/// How long a store may be away.
const PATIENCE: Duration = Duration::from_secs(30);

/// A row and its line.
struct Row {
    line: u64,
    text: Vec<u8>,
}

impl Push {
    /// Connects to `redis://HOST/STREAM`; forms of the URL as for [`Source::redis`](super::Source::redis).
    ///
    /// # Errors
    /// A URL that makes no sense, a store that is not there or refuses.
    ///
    /// # Cancel safety
    /// Dropped before it is done it leaves nothing behind.
    pub async fn connect(url: &str) -> io::Result<Self> {
        let invalid = |error: crate::Error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string());
        let (address, stream) = Address::with_stream(url).map_err(invalid)?;
        let name = uuid::Uuid::new_v4().simple().to_string()[..16].to_owned();
        let (gate, last) = (Gate::new(clock::now()), "0".to_owned());
        let mut push = Self { address, stream, link: None, gate, name, last, from: 1 };
        push.last = push.end().await.map_err(|error| push.named(&error))?;
        Ok(push)
    }

    /// Begins with this line of the input. Default 1.
    #[must_use]
    pub fn from_line(self, line: u64) -> Self {
        Self { from: line, ..self }
    }

    /// Stops it from elsewhere, between two batches.
    pub fn stopper(&self) -> Stopper {
        Stopper::of(&self.gate)
    }

    /// Adds the rows of an input; if there are none the stream is there all the same. `bad` is told of each line that is
    /// none; it is left out.
    ///
    /// # Cancel safety
    /// Dropped it may have added rows that nobody counted: stop it by [`stopper`](Self::stopper).
    pub async fn rows(&mut self, input: Input, mut bad: impl FnMut(&str)) -> Pushed {
        let (trouble, from) = (input.trouble(), self.from);
        let mut pushed = Pushed::default();
        let (sender, mut lines) = mpsc::channel(BATCH);
        // A failed send: the push is over.
        let read =
            move || input.into_texts().filter(|text| text.line >= from).all(|text| sender.blocking_send(text).is_ok());
        if let Err(error) = std::thread::Builder::new().name("abide-input".into()).spawn(read) {
            pushed.error = Some(error);
            return pushed;
        }
        let mut next = from;
        while let Some(first) = self.unless_stopped(lines.recv()).await {
            let Some(first) = first else {
                pushed.error = match trouble.get() {
                    Some(error) => Some(io::Error::new(error.kind(), error.to_string())),
                    None if pushed.rows == 0 => self.make().await.err().map(|error| self.named(&error)),
                    None => None,
                };
                pushed.go_on = pushed.error.is_some().then_some(next);
                return pushed;
            };
            let (batch, last) = batch(first, &mut lines, &mut pushed, &mut bad);
            if let Err(error) = self.add(batch, &mut pushed).await {
                (pushed.error, pushed.go_on) = (Some(error), Some(next));
                return pushed;
            }
            next = last + 1;
        }
        pushed.go_on = Some(next);
        pushed
    }

    async fn unless_stopped<F: Future>(&self, future: F) -> Option<F::Output> {
        let (mut future, mut closing) = (std::pin::pin!(future), std::pin::pin!(self.gate.closing()));
        std::future::poll_fn(|cx| {
            if self.gate.is_closed() || closing.as_mut().poll(cx).is_ready() {
                return std::task::Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// Adds a batch, also when the store is away in between.
    async fn add(&mut self, mut batch: Vec<Row>, pushed: &mut Pushed) -> io::Result<()> {
        let mut away: Option<Instant> = None;
        let (mut failures, mut doubt) = (0, false);
        while !batch.is_empty() {
            // Once tried, it may be there.
            let done = match failures {
                0 => Ok(0),
                _ => self.arrived().await,
            };
            let sent = match done {
                Ok(line) => {
                    let before = batch.len();
                    batch.retain(|row| row.line > line);
                    pushed.rows += (before - batch.len()) as u64;
                    self.send(&batch).await
                }
                Err(error) => Err(error),
            };
            match sent {
                Ok(()) => {
                    pushed.rows += batch.len() as u64;
                    return Ok(());
                }
                Err(error) => {
                    self.link = None;
                    // A store that refuses has added nothing.
                    doubt |= error.code().is_none();
                    let now = clock::now();
                    let late = now >= *away.get_or_insert(now + PATIENCE);
                    if is_final(&error) || late || self.gate.is_closed() {
                        pushed.unsure_to = batch.last().map(|row| row.line).filter(|_| doubt);
                        return Err(self.named(&error));
                    }
                }
            }
            let backoff = Backoff::equal_jitter(Duration::from_millis(100), Duration::from_secs(2));
            let pause = backoff.wait(failures, None, &mut rand::rng());
            failures += 1;
            clock::sleep_until(clock::now() + pause).await;
        }
        Ok(())
    }

    async fn send(&mut self, batch: &[Row]) -> RedisResult<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut add = cmd("EVAL");
        add.arg(include_str!("push.lua")).arg(1).arg(&self.stream).arg(ROW).arg(SEED);
        for row in batch {
            add.arg(&row.text).arg(format!("{}:{}", self.name, row.line));
        }
        self.last = add.query_async(self.link().await?).await?;
        Ok(())
    }

    /// Makes the stream if it is not there: workers tell one that is empty from a name that is wrong.
    async fn make(&mut self) -> RedisResult<()> {
        let mut make = cmd("EVAL");
        make.arg(include_str!("make.lua")).arg(1).arg(&self.stream);
        make.query_async(self.link().await?).await
    }

    /// The line of the last row of this push that is there, as far as it is not known yet.
    async fn arrived(&mut self) -> RedisResult<u64> {
        let mut line = 0;
        loop {
            let mut range = cmd("XRANGE");
            range.arg(&self.stream).arg(format!("({}", self.last)).arg("+").arg("COUNT").arg(AT_ONCE);
            let page: Vec<(String, Vec<Vec<u8>>)> = range.query_async(self.link().await?).await?;
            let full = page.len() == AT_ONCE;
            for (place, fields) in page {
                let seeds = fields.chunks_exact(2).filter(|field| field[0] == SEED.as_bytes());
                let seeds = seeds.filter_map(|field| std::str::from_utf8(&field[1]).ok()?.split_once(':'));
                let ours = seeds.filter(|(push, _)| *push == self.name).filter_map(|(_, line)| line.parse().ok());
                line = ours.fold(line, u64::max);
                self.last = place;
            }
            if !full {
                return Ok(line);
            }
        }
    }

    /// The place of the last row that is in the stream, whoever added it.
    async fn end(&mut self) -> RedisResult<String> {
        let mut range = cmd("XREVRANGE");
        range.arg(&self.stream).arg("+").arg("-").arg("COUNT").arg(1);
        let last: Vec<(String, Value)> = range.query_async(self.link().await?).await?;
        Ok(last.into_iter().next().map_or_else(|| "0".to_owned(), |(place, _)| place))
    }

    async fn link(&mut self) -> RedisResult<&mut Link> {
        let link = match self.link.take() {
            Some(link) => link,
            None => self.address.connect(CONNECT, Some(ANSWER)).await?,
        };
        Ok(self.link.insert(link))
    }

    /// The store's own words, and which store it is; no login stands in either.
    fn named(&self, error: &RedisError) -> io::Error {
        match error.code() {
            Some("WRONGTYPE") => io::Error::other(format!("{}: {} is no stream", self.address, self.stream)),
            _ => io::Error::other(format!("{}: {error}", self.address)),
        }
    }
}

/// The rows that are there already, after this one; and the last line among them.
fn batch(
    first: Text,
    lines: &mut mpsc::Receiver<Text>,
    pushed: &mut Pushed,
    bad: &mut impl FnMut(&str),
) -> (Vec<Row>, u64) {
    let (mut batch, mut bytes, mut next) = (Vec::new(), 0, Some(first));
    let mut last = 0;
    while let Some(Text { line, text, whole, .. }) = next {
        last = line;
        let job = if whole { rows::elsewhere(line, &text) } else { rows::broken(line, b"", TOO_LONG) };
        match job.request() {
            Ok(_) => {
                bytes += text.len();
                batch.push(Row { line, text });
            }
            Err(why) => {
                pushed.bad += 1;
                bad(why);
            }
        }
        next = if batch.len() < BATCH && bytes < BYTES { lines.try_recv().ok() } else { None };
    }
    (batch, last)
}

impl fmt::Display for Pushed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pushed {} rows", self.rows)?;
        if self.bad > 0 {
            write!(f, ", left out {} lines that are none", self.bad)?;
        }
        match (self.go_on, self.unsure_to) {
            (Some(line), Some(to)) => write!(
                f,
                "; lines {line} to {to} may be there or not, all or none: --from-line {line} goes on if they are not"
            ),
            (Some(line), None) => write!(f, "; --from-line {line} goes on"),
            (None, _) => Ok(()),
        }
    }
}
