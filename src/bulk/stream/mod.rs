//! Rows from a stream of Redis or Valkey, shared by the workers of a consumer group.
//!
//! | what | how |
//! | --- | --- |
//! | a row | an entry with the field `row`: a line as in a file of jobs |
//! | its id | its own, else the entry's |
//! | its idempotency key | its own, else derived from stream and entry: the same one for every worker |
//! | done | the result is written, then the entry is acknowledged |
//! | a sign of life | entries that this worker has are claimed anew, whatever they wait for |
//! | a dead worker | no sign of life for [`claim_after`](Source::claim_after): another one takes its rows over |
//! | about to be sent | marked in the stream first, if it is not safe to repeat |
//! | unknown | taken over, marked, without a key: moved to the stream `STREAM:unknown`, never sent |

mod desk;
mod group;
mod push;

use std::{
    collections::HashSet,
    fmt,
    fs::File,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use redis::RedisError;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::{sync::mpsc, task::JoinHandle};

use self::{
    desk::{Desk, State},
    group::{AT_ONCE, Group, Taken},
};
use super::{
    Job,
    claim::{Claim, Room, Told},
    files, hash, journal,
    results::named,
    rows,
};
use crate::{
    clock,
    fleet::link::{Address, Link},
};

pub use push::{Push, Pushed};

/// Where rows come from: a consumer group of a stream.
///
/// # Examples
///
/// ```no_run
/// use abide::bulk::{Bulk, Source};
/// use futures_util::StreamExt;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let mut rows = Source::redis("redis://localhost/jobs", "workers").resume("results.jsonl").connect().await?;
/// let ending = rows.ending();
/// let bulk = Bulk::new(abide::Client::new()).auto_idempotency_keys();
/// let mut outcomes = bulk.results("results.jsonl").journal("results.jsonl.journal").resume().run(rows);
/// while let Some(outcome) = outcomes.next().await {
///     println!("{} {:?}", outcome.id, outcome.status);
/// }
/// drop(outcomes);
/// ending.await;
/// # Ok(())
/// # }
/// ```
#[must_use = "connect() connects"]
pub struct Source {
    url: String,
    group: String,
    claim_after: Duration,
    follow: bool,
    results: Option<PathBuf>,
    news: Option<News>,
}

pub(super) type News = Arc<dyn Fn(&str) + Send + Sync>;

/// A worker that gave no sign of life for so long is dead, unless told otherwise.
const CLAIM_AFTER: Duration = Duration::from_secs(60);

/// A shorter time is that of a busy machine.
const SHORTEST: Duration = Duration::from_secs(1);

impl Source {
    /// A group of a stream: `redis[s]://[USER:PASSWORD@]HOST[:PORT][/DB]/STREAM`,
    /// `redis[s]+cluster://HOST:PORT,HOST:PORT/STREAM` or
    /// `redis[s]+sentinel://HOST:PORT,HOST:PORT/MASTER[/DB]/STREAM`. A group that is not there is made, and begins at
    /// the start of the stream.
    pub fn redis(url: impl Into<String>, group: impl Into<String>) -> Self {
        let (url, group) = (url.into(), group.into());
        Self { url, group, claim_after: CLAIM_AFTER, follow: false, results: None, news: None }
    }

    /// Takes over the rows of a worker that gave no sign of life for so long. Default 60 s, at least 1 s; the same one
    /// for all workers. A worker gives four in that time, however long its rows wait.
    pub fn claim_after(self, claim_after: Duration) -> Self {
        Self { claim_after, ..self }
    }

    /// Waits for more rows at the end of the stream, and for a stream that is not there yet. Default: it is over when the
    /// stream is read to its end and every row of the group is acknowledged, also those of other workers, which might die.
    pub fn follow(self) -> Self {
        Self { follow: true, ..self }
    }

    /// Results of an earlier run of this worker: rows that have one there and are not acknowledged are acknowledged
    /// first, and not sent again. Their journal is the file of that name and `.journal`.
    pub fn resume(self, results: impl Into<PathBuf>) -> Self {
        Self { results: Some(results.into()), ..self }
    }

    /// Is told when the store goes away and when it is back, of a stream that is not there yet, and of one that had
    /// nothing left for this worker.
    pub fn on_news(self, news: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { news: Some(Arc::new(news)), ..self }
    }

    /// Connects, and makes the group if it is not there.
    ///
    /// # Errors
    /// A URL or a setting that makes no sense, a store that is not there or refuses, a stream that is not there (unless
    /// it is [followed](Self::follow)), results of another input.
    ///
    /// # Cancel safety
    /// Dropped before it is done it may have made the group, and acknowledged rows that have their result.
    pub async fn connect(self) -> io::Result<Claims> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let (address, stream) = Address::with_stream(&self.url).map_err(|error| invalid(error.to_string()))?;
        if self.group.is_empty() {
            return Err(invalid("the group has no name".into()));
        }
        if self.claim_after < SHORTEST {
            return Err(invalid(format!("claim_after must be at least {SHORTEST:?}")));
        }
        let group = Group { address, stream, name: self.group.clone(), consumer: consumer() };
        let mut link = group.connect().await.map_err(|error| as_io(&group, &error))?;
        if !group.has_stream(&mut link).await.map_err(|error| as_io(&group, &error))? {
            let missing = format!("{}: there is no stream {}", group.address, group.stream);
            if !self.follow {
                return Err(io::Error::new(io::ErrorKind::NotFound, missing));
            }
            self.say(&format!("{missing} yet: waiting for it"));
        }
        group.create(&mut link).await.map_err(|error| as_io(&group, &error))?;
        if let Some(results) = &self.results {
            acknowledge_done(&group, &mut link, results).await?;
        }
        Ok(self.open(group, link))
    }

    fn say(&self, text: &str) {
        if let Some(news) = &self.news {
            news(text);
        }
    }

    fn open(self, group: Group, link: Link) -> Claims {
        let (tell, told) = mpsc::unbounded_channel();
        let (send, jobs) = mpsc::unbounded_channel();
        let (want, wants) = mpsc::channel(1);
        let (trouble, input) = (Arc::default(), input(&group));
        let place = format!("{}: {}", group.address, group.stream);
        let desk = Desk {
            group,
            claim_after: self.claim_after,
            follow: self.follow,
            news: self.news,
            trouble: Arc::clone(&trouble),
            room: Room::default(),
            told,
            tell: tell.downgrade(),
            jobs: Some(send),
            wants,
            link: Some(link),
            state: State::new(clock::now()),
        };
        let task = tokio::spawn(desk.run());
        Claims { jobs, want, _tell: tell, input, place, trouble, task: Some(task) }
    }
}

/// Rows of a stream, claimed as they are asked for, to be run by [`Bulk::run`](super::Bulk::run). A task reads and
/// acknowledges; it ends when this and all its rows are gone. A job that is dropped is handed back.
#[must_use = "a stream does nothing unless it is polled"]
pub struct Claims {
    jobs: mpsc::UnboundedReceiver<Job>,
    want: mpsc::Sender<()>,
    _tell: mpsc::UnboundedSender<Told>,
    input: u64,
    place: String,
    trouble: Arc<OnceLock<io::Error>>,
    task: Option<JoinHandle<usize>>,
}

impl Claims {
    /// Why reading broke off, if it did; to be looked at when the run is over.
    pub fn trouble(&self) -> Arc<OnceLock<io::Error>> {
        Arc::clone(&self.trouble)
    }

    /// Where the rows come from: the store without its login, and the stream.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The end of the work with the stream, to be waited for when the run is dropped: what is done is acknowledged,
    /// what was not sent is handed back. Once; a later one is over at once.
    pub fn ending(&mut self) -> Ending {
        Ending(self.task.take())
    }
}

impl Stream for Claims {
    type Item = Job;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Job>> {
        let polled = self.jobs.poll_recv(cx);
        if polled.is_pending() {
            // Full: it is asked for already.
            let _ = self.want.try_send(());
        }
        let input = self.input;
        polled.map(|job| job.map(|job| job.read_from(input)))
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims").finish_non_exhaustive()
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Source");
        debug.field("group", &self.group).field("claim_after", &self.claim_after).field("follow", &self.follow);
        debug.finish_non_exhaustive()
    }
}

/// The end of the work with a stream: see [`Claims::ending`]. A future.
///
/// # Cancel safety
/// Dropped, the work ends all the same.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Ending(Option<JoinHandle<usize>>);

impl Future for Ending {
    /// How many rows could not be settled, for the store was away: others take them over in time.
    type Output = usize;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<usize> {
        let Some(task) = &mut self.0 else { return Poll::Ready(0) };
        let ended = Pin::new(task).poll(cx).map(Result::unwrap_or_default);
        if ended.is_ready() {
            self.0 = None;
        }
        ended
    }
}

/// Unique in every run, and readable: host, process, a few random digits.
fn consumer() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = kernel.or_else(|| std::env::var("HOSTNAME").or_else(|_none| std::env::var("COMPUTERNAME")).ok());
    let host: String = host.unwrap_or_default().trim().chars().filter(|letter| !letter.is_control()).take(64).collect();
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("abide-{host}-{}-{}", std::process::id(), &random[..8])
}

/// What the journal of a worker belongs to.
fn input(group: &Group) -> u64 {
    hash(format!("{}\0{}", group.stream, group.name).as_bytes())
}

/// One entry as a job.
fn job(stream: &str, taken: Taken, mut claim: Claim) -> Job {
    claim.key = key(stream, &taken.entry, &taken.seed);
    let job = match &taken.row {
        Some(row) => rows::entry(&taken.entry, row),
        None => rows::broken_entry(&taken.entry, "the entry has no field `row`"),
    };
    job.claimed(claim)
}

/// A UUID of version 8, from stream and entry; the seed of its push tells streams of one name in several stores apart.
fn key(stream: &str, entry: &str, seed: &[u8]) -> String {
    let mut digest = Sha256::new();
    for part in [b"abide".as_slice(), stream.as_bytes(), entry.as_bytes(), seed] {
        digest.update(part.len().to_be_bytes());
        digest.update(part);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.finalize()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

/// Acknowledges what is open and has a result: a worker that was killed wrote it and came no further.
async fn acknowledge_done(group: &Group, link: &mut Link, results: &Path) -> io::Result<()> {
    let mut file = match File::open(results) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(|error| named(results, &error))?,
    };
    if file.metadata().map_err(|error| named(results, &error))?.len() == 0 {
        return Ok(());
    }
    let mut path = results.as_os_str().to_owned();
    path.push(".journal");
    let bound = journal::input_of(Path::new(&path)).map_err(|error| named(Path::new(&path), &error))?;
    if bound.is_some_and(|bound| bound != input(group)) {
        let what = format!("{} has results of another input", results.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let open = group.pending(link, None).await.map_err(|error| as_io(group, &error))?;
    let open: HashSet<String> = open.into_iter().map(|(entry, _)| entry).collect();
    let mut done = Vec::new();
    let each = |text: &[u8]| {
        if let Ok(Line { entry: Some(entry) }) = serde_json::from_slice(text)
            && open.contains(entry.as_ref())
        {
            done.push(entry.into_owned());
        }
    };
    files::each_line(&mut file, each).map_err(|error| named(results, &error))?;
    if bound.is_none() && !done.is_empty() {
        let what = format!("{} has results and no journal: it is not known what they belong to", results.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    for some in done.chunks(AT_ONCE) {
        group.acknowledge(link, some).await.map_err(|error| as_io(group, &error))?;
    }
    Ok(())
}

/// What a result line says of its row's place.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow, default)]
    entry: Option<std::borrow::Cow<'a, str>>,
}

/// The store's own words, and which store it is; no login stands in either.
fn as_io(group: &Group, error: &RedisError) -> io::Error {
    let Group { address, stream, name, .. } = group;
    match error.code() {
        Some("NOGROUP") => {
            let why = format!("{address}: the stream {stream} or its group {name} is gone");
            let then = "and with it what its workers did: a new group begins at the start of the stream";
            io::Error::new(io::ErrorKind::NotFound, format!("{why}, {then}"))
        }
        Some("WRONGTYPE") => io::Error::new(io::ErrorKind::InvalidInput, format!("{address}: {stream} is no stream")),
        _ => io::Error::other(format!("{address}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_from_stream_entry_and_push() {
        let one = key("jobs", "1-0", b"s");
        assert_eq!(one, key("jobs", "1-0", b"s"));
        assert_eq!(uuid::Uuid::parse_str(&one).unwrap().get_version_num(), 8);
        for other in
            [key("jobs", "1-1", b"s"), key("job", "s1-0", b"s"), key("jobs", "1-0", b""), key("jobs", "1-0s", b"")]
        {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn consumers_differ() {
        let (one, other) = (consumer(), consumer());
        assert!(one != other && one.starts_with("abide-") && one.len() < 120, "{one}");
    }
}
