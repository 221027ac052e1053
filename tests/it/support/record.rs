//! What the test network saw, and which entry of its scripts comes next.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};

use tokio::time::Instant;

use super::{
    clock,
    script::{Entry, Values},
};

/// The header that says which call of a case a request belongs to.
pub(crate) const TAG: &str = "x-case-call";

/// What was seen: a request, or an attempt that ended before there was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Handshake,
    LookUp,
}

/// Where something was seen: on which host and which of its connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) host: &'static str,
    pub(crate) connection: u64,
}

/// The head of a request and its body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// The first field of that name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(held, _)| held.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// One attempt as the network saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) kind: Kind,
    pub(crate) host: &'static str,
    pub(crate) connection: u64,
    pub(crate) arrived: Instant,
    /// Just before the last byte of the answer, or the fault; of a stall, when the client gave up.
    pub(crate) ended: Option<Instant>,
    pub(crate) request: Request,
    pub(crate) entry: Entry,
}

/// Shared by all parts of one network.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) values: Values,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    scripts: Scripts,
    seen: Vec<Seen>,
    problems: Vec<String>,
    connections: u64,
}

/// Who is answered with what.
#[derive(Clone, Debug)]
pub(crate) enum Scripts {
    /// One entry a request, in this order, whoever asks.
    InOrder(VecDeque<Entry>),
    /// In order, each host for itself: for calls that run side by side.
    InOrderByHost(VecDeque<Entry>),
    /// A script for each call.
    PerCall(Vec<VecDeque<Entry>>),
}

impl Scripts {
    /// The next entry for a request on `host`, of `call`, `since_first` ms after the first arrival.
    fn take(&mut self, host: &str, call: Option<usize>, since_first: u64) -> Result<Entry, String> {
        let queue = match self {
            Self::InOrder(queue) => {
                let next = queue.front().filter(|entry| entry.window_ms.is_none());
                if let Some(other) = next.filter(|entry| entry.host() != host) {
                    return Err(format!("a request on host {host}, the script wants one on {}", other.host()));
                }
                queue
            }
            Self::InOrderByHost(queue) => queue,
            Self::PerCall(queues) => {
                let call = call.ok_or("a request without the mark of its call")?;
                queues.get_mut(call).ok_or_else(|| format!("no script for call {call}"))?
            }
        };
        let fits =
            |entry: &&Entry| entry.window_ms.is_some_and(|window| window.holds(since_first)) && entry.host() == host;
        if let Some(entry) = queue.iter().find(fits) {
            return Ok(entry.clone());
        }
        let place = queue.iter().position(|entry| entry.window_ms.is_none() && entry.host() == host);
        place.and_then(|place| queue.remove(place)).ok_or_else(|| format!("a request on host {host} beyond the script"))
    }

    fn front(&self) -> Option<&Entry> {
        match self {
            Self::InOrder(queue) | Self::InOrderByHost(queue) => queue.front(),
            Self::PerCall(queues) => queues.iter().find_map(VecDeque::front),
        }
    }
}

impl Hub {
    pub(crate) fn new(scripts: Scripts, values: Values) -> Self {
        let state = State { scripts, seen: Vec::new(), problems: Vec::new(), connections: 0 };
        Self { values, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The number of a new connection.
    pub(crate) fn connection(&self) -> u64 {
        let mut state = self.state();
        state.connections += 1;
        state.connections
    }

    /// The entry that comes next if it is of this kind.
    pub(crate) fn next_is(&self, wanted: impl Fn(&Entry) -> bool) -> bool {
        self.state().scripts.front().is_some_and(wanted)
    }

    /// Records an attempt and says with what to answer it: its number and entry.
    pub(crate) fn take(
        &self,
        kind: Kind,
        Peer { host, connection }: Peer,
        request: Request,
        arrived: Instant,
    ) -> Option<(usize, Entry)> {
        let mut state = self.state();
        let first = state.seen.first().map_or(arrived, |seen| seen.arrived);
        let since_first = u64::try_from(arrived.duration_since(first).as_millis()).unwrap_or(u64::MAX);
        let call = request.header(TAG).and_then(|tag| tag.parse().ok());
        let entry = state.scripts.take(host, call, since_first);
        let entry = entry.map_err(|problem| {
            state.problems.push(format!("{problem}: {} {}", request.method, request.path));
        });
        let known = entry.clone().ok();
        let entry = entry.unwrap_or_default();
        state.seen.push(Seen { kind, host, connection, arrived, ended: None, request, entry });
        let number = state.seen.len() - 1;
        known.map(|entry| (number, entry))
    }

    /// The answer of attempt `number` ends now.
    pub(crate) fn end(&self, number: usize) {
        let now = clock::now();
        self.state().seen[number].ended.get_or_insert(now);
    }

    /// Adds the body that came after the head.
    pub(crate) fn body(&self, number: usize, body: Vec<u8>) {
        self.state().seen[number].request.body = body;
    }

    /// Something that no script foresaw.
    pub(crate) fn problem(&self, problem: impl Into<String>) {
        self.state().problems.push(problem.into());
    }

    /// All attempts so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    /// All problems so far.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.state().problems.clone()
    }
}
