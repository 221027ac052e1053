//! What happened in one call: its attempts, its waits, and why it stopped.

use std::time::Duration;

use http::StatusCode;

use crate::sent::{Cause, SentState};

/// Why a call came to an end: the first that applies, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// The answer was accepted.
    Answered,
    /// Another attempt would not mend it.
    NotRetryable,
    /// It may not be repeated: not idempotent, not keyed, or past the lifetime of its key.
    NotIdempotent,
    /// Its body was a stream that is used up.
    NotReplayable,
    /// All attempts are used up.
    MaxAttempts,
    /// The next wait, or the limiter's, would end past the deadline, or the deadline came.
    Deadline,
    /// The server asked for more than [`Policy::max_server_wait`](crate::Policy::max_server_wait).
    ServerWaitTooLong,
    /// The retry budget of the key is spent.
    BudgetSpent,
    /// The limiter let nothing through.
    Refused,
    /// The redirect was not taken: too many, a loop, a user name in its target, from https to http, or a body that
    /// cannot be sent again.
    RedirectRefused,
    /// Nothing was sent; also the history of a response or an error that abide did not make.
    #[default]
    NotSent,
}

/// What a caller should know besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Note {
    /// A 412 after an attempt that was sent and has no usable answer: that attempt may have been the one that changed
    /// the resource.
    MaybeApplied,
    /// The body is longer than the buffer, so it was neither classified nor retried.
    BufferLimit,
}

/// What one attempt waited for before it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waited {
    /// For a permit of the limiter.
    pub limiter: Duration,
    /// The backoff that abide chose.
    pub backoff: Duration,
    /// What the server asked for, and the jitter on top.
    pub server: Duration,
}

impl Waited {
    /// All of it.
    pub fn total(&self) -> Duration {
        self.limiter.saturating_add(self.backoff).saturating_add(self.server)
    }
}

/// One try of a call, with its redirect hops and polls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub(crate) number: u32,
    pub(crate) status: Option<StatusCode>,
    pub(crate) error: Option<Cause>,
    pub(crate) waited: Waited,
    pub(crate) elapsed: Duration,
    pub(crate) sent: SentState,
}

impl Attempt {
    /// From 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Of the answer, if there was one.
    pub fn status(&self) -> Option<StatusCode> {
        self.status
    }

    /// What went wrong, if there was no usable answer.
    pub fn error(&self) -> Option<Cause> {
        self.error
    }

    /// What it waited for before it was sent.
    pub fn waited(&self) -> Waited {
        self.waited
    }

    /// From the send to the head of the answer, or to the failure; hops and the waits between them included.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// How far the request got.
    pub fn sent(&self) -> SentState {
        self.sent
    }
}

/// What happened in one call. In the extensions of its response ([`ResponseExt::history`]), or in its error
/// ([`Error::history`](crate::Error::history)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub(crate) attempts: Attempts,
    pub(crate) stop: Stop,
    pub(crate) asked_wait: Option<Duration>,
    pub(crate) notes: Vec<Note>,
}

impl History {
    /// Of what abide did not make.
    pub(crate) const EMPTY: &'static Self =
        &Self { attempts: Attempts::NONE, stop: Stop::NotSent, asked_wait: None, notes: Vec::new() };

    /// The attempts that were sent, in order.
    pub fn attempts(&self) -> &[Attempt] {
        self.attempts.all()
    }

    /// Why the call came to an end.
    pub fn stop(&self) -> Stop {
        self.stop
    }

    /// The wait that the server asked for last, even if it was not waited.
    pub fn asked_wait(&self) -> Option<Duration> {
        self.asked_wait
    }

    /// What a caller should know besides.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// All waits before the attempts.
    pub fn waited(&self) -> Duration {
        self.attempts().iter().fold(Duration::ZERO, |sum, attempt| sum.saturating_add(attempt.waited.total()))
    }
}

/// Attempts in order; most calls have one, which needs no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attempts {
    only: Option<Attempt>,
    several: Vec<Attempt>,
}

impl Attempts {
    const NONE: Self = Self { only: None, several: Vec::new() };

    pub(crate) fn push(&mut self, attempt: Attempt) {
        match self.only.take() {
            None if self.several.is_empty() => self.only = Some(attempt),
            first => self.several.extend(first.into_iter().chain([attempt])),
        }
    }

    pub(crate) fn all(&self) -> &[Attempt] {
        if self.several.is_empty() { self.only.as_slice() } else { &self.several }
    }
}

/// The history that a response carries.
pub trait ResponseExt {
    /// What happened in the call; empty, with [`Stop::NotSent`], for a response that abide did not make.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use abide::{Client, ResponseExt, Stop};
    ///
    /// # async fn run() -> Result<(), abide::Error> {
    /// let response = Client::new().get("https://api.example.com/v1/things").send().await?;
    /// if response.history().stop() == Stop::MaxAttempts {
    ///     println!("gave up after {} attempts", response.history().attempts().len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn history(&self) -> &History;
}

impl ResponseExt for reqwest::Response {
    fn history(&self) -> &History {
        self.extensions().get().unwrap_or(History::EMPTY)
    }
}

impl<B> ResponseExt for http::Response<B> {
    fn history(&self) -> &History {
        self.extensions().get().unwrap_or(History::EMPTY)
    }
}
