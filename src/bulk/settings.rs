//! `Bulk`: the settings of a run.

use std::{collections::BTreeMap, fmt, io, io::Write, path::PathBuf};

use futures_core::Stream;

use super::{
    Job, Run,
    books::{Books, Settings},
    plan::{self, Plan, Planning, Resolved},
    results::Target,
    rules::Rules,
    run::Start,
    space::Space,
    table::Table,
};
use crate::Client;

/// A run of many requests: see the [module](super).
///
/// # Examples
///
/// ```no_run
/// use abide::{bulk::{Bulk, Job}, http::Method, reqwest::{Request, Url}};
/// use futures_util::{StreamExt, stream};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let url = Url::parse("https://api.example.com/v1/things")?;
/// let jobs = (0..1000).map(move |n| Job::new(format!("thing-{n}"), Request::new(Method::GET, url.clone())));
/// let bulk = Bulk::new(abide::Client::new()).concurrency(50).journal("things.journal");
/// let mut outcomes = bulk.run(stream::iter(jobs));
/// while let Some(outcome) = outcomes.next().await {
///     println!("{} {:?} after {} attempts", outcome.id, outcome.status, outcome.attempts);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "run() runs it"]
pub struct Bulk {
    client: Client,
    concurrency: usize,
    journal: Option<PathBuf>,
    target: Target,
    resume: bool,
    retry_failed: bool,
    fsync: bool,
    keys: bool,
    rules: Rules,
    options: BTreeMap<String, String>,
}

/// Requests on the wire at once, unless told otherwise: 1,000 a second at a latency of 250 ms.
const CONCURRENCY: usize = 256;

impl Bulk {
    /// A run of this client's calls, under its policy and limits.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            concurrency: CONCURRENCY,
            journal: None,
            target: Target::Nowhere,
            resume: false,
            retry_failed: false,
            fsync: false,
            keys: false,
            rules: Rules::default(),
            options: BTreeMap::new(),
        }
    }

    /// Most requests on the wire at once, in the whole run. Default 256; zero is an error of the run. Below it
    /// concurrency follows the limits: about rate × latency.
    ///
    /// Bodies of answers take 256 MiB at most, up to a concurrency of 2,048: 128 MiB are shared out evenly among the rows
    /// on the wire, up to 8 MiB each; longer bodies share 64 MiB, and one of them more if it must. They wait for that
    /// room unread, and while they do, one that brings less than 1 MiB in 5 s fails. A body that breaks off is fetched
    /// again as long as its row's own part holds it. A row whose body is longer than 64 MiB fails.
    pub fn concurrency(self, concurrency: usize) -> Self {
        Self { concurrency, ..self }
    }

    /// Keeps a journal here, so that the run can be resumed. Without [`results`](Self::results) an outcome counts as
    /// dealt with when the stream is polled again after it. One that another run is writing is an error of the run.
    pub fn journal(self, path: impl Into<PathBuf>) -> Self {
        Self { journal: Some(path.into()), ..self }
    }

    /// Writes result lines to this file, readable by its owner only, before the outcomes come out of the stream. It
    /// decides what is done when the run is resumed. A file that has results is an error of the run, unless it is
    /// resumed; one that another run is writing always is (on Unix; where its file system has no locks
    /// [`Run::warnings`] says so).
    pub fn results(self, path: impl Into<PathBuf>) -> Self {
        Self { target: Target::Path(path.into()), ..self }
    }

    /// Writes result lines there. It is waited for: a slow reader slows the run.
    pub fn results_to(self, writer: impl Write + Send + 'static) -> Self {
        Self { target: Target::Writer(Box::new(writer)), ..self }
    }

    /// Goes on with the run of the journal and the results, if there are any: rows with a result are skipped, rows of
    /// unknown fate are sent again with the same key if they are keyed or idempotent, else they come out
    /// [unknown](super::Outcome::is_unknown).
    pub fn resume(self) -> Self {
        Self { resume: true, ..self }
    }

    /// As [`resume`](Self::resume), and rows that failed are sent again; their last result counts. A failed row may
    /// have been executed, and is then executed twice unless it is keyed or idempotent:
    /// [`Run::warnings`] says how many there are.
    pub fn retry_failed(self) -> Self {
        Self { resume: true, retry_failed: true, ..self }
    }

    /// Safe against loss of power, not only against the end of the process: claims are on the disk before a row is
    /// sent, results before it is done.
    pub fn fsync(self) -> Self {
        Self { fsync: true, ..self }
    }

    /// An idempotency key for each row that brings none, derived from the run and the row's line: the same one in a
    /// resumed run.
    pub fn auto_idempotency_keys(self) -> Self {
        Self { keys: true, ..self }
    }

    /// Stops once so many rows of this run have failed; zero is an error of the run. What is on the wire may come back.
    /// Default: never.
    pub fn stop_after(mut self, failed: u64) -> Self {
        self.rules.stop_after = Some(failed);
        self
    }

    /// Stops once more than this share, 0 to 1 (anything else is an error of the run), of the rows of this run have
    /// failed; judged from 20 rows on. Default: never.
    pub fn stop_rate(mut self, share: f64) -> Self {
        self.rules.stop_rate = Some(share);
        self
    }

    /// Stops when the first 10 answers of an origin (all, if there are fewer) were 401 or 403: the credentials are
    /// refused. Default: it goes on.
    pub fn stop_on_refused_credentials(mut self) -> Self {
        self.rules.credentials = true;
        self
    }

    /// A setting of the caller's for the journal's head and the report. Nothing secret.
    pub fn note(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.insert(name.into(), value.into());
        self
    }

    /// What [`run`](Self::run) would do, without doing it: `each` is told of every row that would be sent. Nothing is
    /// written.
    ///
    /// # Errors
    /// The results of the run that would be resumed cannot be read.
    pub fn plan(&self, jobs: impl IntoIterator<Item = Job>, mut each: impl FnMut(Resolved)) -> io::Result<Plan> {
        let table = match &self.target {
            Target::Path(path) if self.resume => plan::table(path)?,
            _ => Table::default(),
        };
        let (mut planning, mut line) = (Planning::default(), 0);
        for job in jobs {
            line = job.line.unwrap_or(line + 1);
            if planning.add(&self.client, &job, table.look(line, &job.id), self.retry_failed) {
                each(plan::resolved(&self.client, &job, line));
            }
        }
        Ok(planning.plan(self.client.limiter().quotas()))
    }

    /// Runs the jobs. Nothing happens unless the stream is polled. Dropping it stops at once; with a journal the run
    /// can be resumed.
    ///
    /// If it cannot start (a journal that cannot be written, a setting that makes no sense) or cannot go on (a full
    /// disk) the stream ends, and [`Run::error`] says why.
    pub fn run<S: Stream<Item = Job>>(self, jobs: S) -> Run<S> {
        let settings = Settings {
            target: self.target,
            journal: self.journal,
            resume: self.resume,
            retry_failed: self.retry_failed,
            fsync: self.fsync,
            key_header: self.client.key_header().to_owned(),
            key_lifetime: self.client.key_lifetime(),
            options: self.options.clone(),
        };
        let checked = if self.concurrency == 0 {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "concurrency must be at least 1"))
        } else {
            self.rules.check().and_then(|()| Books::open(settings))
        };
        let start = Start {
            client: self.client,
            concurrency: self.concurrency,
            space: Space::new(self.concurrency),
            keys: self.keys,
            rules: self.rules,
            options: self.options,
        };
        Run::new(start, checked, jobs)
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk")
            .field("concurrency", &self.concurrency)
            .field("journal", &self.journal)
            .field("results", &self.target)
            .field("resume", &self.resume)
            .finish_non_exhaustive()
    }
}
