//! What a fleet asks of the place that it keeps its limits in, and what it is told.

use std::{fmt, future::Future, pin::Pin};

use super::terms::Terms;

/// A place that all processes of a fleet reach. Each exchange is one decision, all of it or nothing.
pub(crate) trait Store: fmt::Debug + Send {
    fn exchange(&self, request: &Request) -> Answer<Reply>;

    /// There and back.
    fn ping(&self) -> Answer<()>;
}

pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Lost>> + Send>>;

/// The store did not answer, or not as it should: why, without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lost(pub(crate) Box<str>);

/// All that one process has to say about one limiter key. Times in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Request {
    /// SHA-256 of the key's text, in hexadecimal digits.
    pub(crate) key: String,
    /// A pause that the server asked this process for: so much of it remains.
    pub(crate) pause: u64,
    /// Processes that are known to use the key, while they come back from an outage; else zero.
    pub(crate) expected: u32,
    pub(crate) lines: Vec<Line>,
}

/// One quota of a [`Request`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    /// The same in all processes that keep the same quota.
    pub(crate) id: Box<str>,
    pub(crate) terms: Terms,
    /// An answer of the server told it since the last exchange, or it is configured: the terms hold from now on.
    pub(crate) fresh: bool,
    /// Units that it starts with if the store does not know it.
    pub(crate) birth: u32,
    /// What others need to know of a learned quota; empty for a configured one.
    pub(crate) meta: Box<str>,
    /// So many units would be of use, …
    pub(crate) want: u64,
    /// … no fewer than these are, …
    pub(crate) need: u64,
    /// … and these are out already: they are booked whatever is left.
    pub(crate) must: u64,
    pub(crate) told: Option<Told>,
    /// Leased and not used: the slice it came from, and how much.
    pub(crate) returns: Vec<(u64, u64)>,
    /// Sent without a lease: how long ago, and how much.
    pub(crate) owed: Vec<(u64, u64)>,
}

/// What the latest answer of the server said is left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    /// Zero: not told.
    pub(crate) reset: u64,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reply {
    /// Which life of the key's state this is: another one means that the store has lost its memory.
    pub(crate) generation: Box<str>,
    /// Processes that used the key lately.
    pub(crate) members: u32,
    /// So much remains of the key's pause.
    pub(crate) pause: u64,
    /// Asking again before that is of no use, if less was granted than wanted.
    pub(crate) retry: u64,
    /// In the order of the request's lines.
    pub(crate) granted: Vec<Granted>,
    /// Learned quotas that the request did not name: id and meta.
    pub(crate) others: Vec<(Box<str>, Box<str>)>,
}

/// What one line got.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Granted {
    pub(crate) units: u64,
    /// Where they are booked.
    pub(crate) slice: u64,
    /// What is left of the quota for the whole fleet.
    pub(crate) left: u64,
    pub(crate) meta: Box<str>,
}

/// What a process does while the store is away. Chosen beforehand, with
/// [`FleetBuilder::on_store_loss`](super::FleetBuilder::on_store_loss).
///
/// With the first two each process goes on with a share of the limit of its own. Until a window and a lease after the
/// store's last reply that is a share of what was left of the window then; so the bound in an outage is the limit and
/// what was leased between a process's last reply and the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreLoss {
    /// The limit divided by the processes that used the key in the last 5 s before the loss.
    #[default]
    LiveShare,
    /// The limit divided by this number of processes; zero is an error of `connect()`.
    LocalShare(u32),
    /// Every call is refused at once; [`retry_at`](crate::Refused::retry_at) is when the store is tried next.
    Closed,
    /// No shared limit. Pauses and `max_in_flight` still hold.
    Open,
}
