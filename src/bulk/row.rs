//! One row on its way: its rounds, and what came of the last one.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use reqwest::{Request, Response};
use tokio::time::Instant;

use super::{
    Job, Outcome,
    claim::Over,
    gate::{Gate, Standing, Ticket},
    outcome::Failure,
    run::Start,
    space::{Held, LONGEST, Space},
};
use crate::{
    Attempt, Error, Key, ResponseExt, Stop, clock,
    outgoing::{KeyFrom, Options, Overrides},
};

/// A job in a lane.
pub(super) struct Row {
    pub(super) job: Job,
    pub(super) line: u64,
    pub(super) lane: Key,
    pub(super) origin: Key,
    pub(super) weight: usize,
    /// An earlier run claimed it.
    pub(super) inherited: bool,
    /// Its first start.
    started: Option<Instant>,
    pub(super) attempts: u32,
    pub(super) throttled: u32,
    waited: Duration,
    history: Vec<Attempt>,
}

/// What came of one round.
pub(super) struct Landing {
    pub(super) row: Row,
    pub(super) standing: Standing,
    /// `None`: the run stopped before it was answered.
    pub(super) end: Option<Result<Answer, Error>>,
}

/// A response, read to its end.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Result<Bytes, Failure>,
    held: Held,
    pub(super) attempts: Vec<Attempt>,
    pub(super) stop: Stop,
    /// The wait that the server asked for last.
    pub(super) asked: Option<Duration>,
}

pub(super) type Flight = Pin<Box<dyn Future<Output = Landing> + Send>>;

/// Attempts of a row that are kept.
const HISTORY: usize = 20;

impl Row {
    pub(super) fn new(job: Job, line: u64, (lane, origin): (Key, Key), inherited: bool) -> Self {
        Self {
            weight: job.weight(),
            job,
            line,
            lane,
            origin,
            inherited,
            started: None,
            attempts: 0,
            throttled: 0,
            waited: Duration::ZERO,
            history: Vec::new(),
        }
    }

    /// Its next round, under this ticket.
    pub(super) fn fly(mut self, start: &Start, gate: &Arc<Gate>, ticket: Arc<Ticket>, now: Instant) -> Flight {
        self.started.get_or_insert(now);
        if let Some(claim) = &mut self.job.claim {
            claim.start();
        }
        let request = self.request();
        let mut options = Options::from(Overrides {
            key: self.job.key,
            // Inside the attempt, so that a broken one is retried.
            buffered: Some(start.space.each),
            idempotency_key: self.job.idempotency_key.clone().map(KeyFrom::Caller),
            escort: Some(Arc::<Ticket>::clone(&ticket)),
            ..Overrides::default()
        });
        for (unit, units) in &self.job.units {
            options.state(unit.clone(), *units);
        }
        let (client, space, gate) = (start.client.clone(), start.space.clone(), Arc::clone(gate));
        // Of this round, the rest of a long body included.
        let until = client.deadline().and_then(|whole| now.checked_add(whole));
        Box::pin(async move {
            let leaving = Leaving(ticket);
            let call = async {
                let mut request = client.outgoing(request?, options)?;
                let response = client.run(&mut request).await?;
                leaving.0.set_answered();
                Ok(answer(response, &space, until).await)
            };
            let end = unless_stopped(call, &gate, &leaving.0).await;
            let standing = *leaving.0.standing();
            Landing { row: self, standing, end }
        })
    }

    /// The first round takes what cannot be copied.
    fn request(&mut self) -> Result<Request, Error> {
        let request = self.job.request.as_mut().map_err(|why| Error::builder(why.clone()))?;
        if let Some(copy) = request.try_clone() {
            return Ok(copy);
        }
        let empty = Request::new(request.method().clone(), request.url().clone());
        Ok(std::mem::replace(request, empty))
    }

    /// A round is over.
    pub(super) fn note(&mut self, attempts: &[Attempt], standing: Standing) {
        let number = u32::try_from(attempts.len()).unwrap_or(u32::MAX);
        self.attempts = self.attempts.saturating_add(number);
        self.throttled = self.throttled.saturating_add(standing.throttled);
        for attempt in attempts {
            self.waited = self.waited.saturating_add(attempt.waited().total());
            if self.history.len() == HISTORY {
                self.history.remove(0);
            }
            self.history.push(attempt.clone());
        }
    }

    /// The end of the row.
    pub(super) fn over(mut self, answer: Option<Answer>, error: Option<Failure>, now: Instant) -> Over {
        let elapsed = self.started.map_or(Duration::ZERO, |started| now.saturating_duration_since(started));
        let (status, headers, body, held) = match answer {
            Some(answer) => (Some(answer.status), answer.headers, answer.body, answer.held),
            None => (None, HeaderMap::new(), Ok(Bytes::new()), Held::default()),
        };
        let (body, broken) = match body {
            Ok(body) => (body, None),
            Err(broken) => (Bytes::new(), Some(broken)),
        };
        let claim = self.job.claim.take();
        let outcome = Outcome {
            id: self.job.id,
            line: self.line,
            status,
            headers,
            body,
            error: error.or(broken),
            attempts: self.attempts,
            throttled: self.throttled,
            elapsed,
            waited: self.waited,
            history: self.history,
            idempotency_key: self.job.idempotency_key,
            meta: self.job.meta,
            entry: claim.as_ref().map(|claim| claim.entry.clone()),
            maybe_executed: false,
        };
        Over { outcome, claim, _held: held }
    }
}

/// Gives up its place, also when the run is dropped.
struct Leaving(Arc<Ticket>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// What the call comes to; `None` if the run stops while it is not on the wire, or its row is another worker's.
async fn unless_stopped<F: Future>(call: F, gate: &Gate, ticket: &Ticket) -> Option<F::Output> {
    let (mut call, mut closing) = (pin!(call), pin!(gate.closing()));
    poll_fn(|cx| {
        // Wakes this when the gate closes.
        if !gate.is_closed() {
            let _ = closing.as_mut().poll(cx);
        }
        let stopped = || gate.is_closed() && ticket.is_idle() || ticket.is_lost();
        if stopped() {
            return Poll::Ready(None);
        }
        match call.as_mut().poll(cx) {
            Poll::Ready(end) => Poll::Ready(Some(end)),
            Poll::Pending if stopped() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn answer(mut response: Response, space: &Space, until: Option<Instant>) -> Answer {
    let history = response.history();
    let (attempts, stop, asked) = (history.attempts().to_vec(), history.stop(), history.asked_wait());
    let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
    let late = || Err(Failure::new("deadline", "deadline of the row reached while its body was read"));
    let mut held = Held::default();
    let body = clock::before(until, body(response, space, &mut held)).await.unwrap_or_else(late);
    if body.is_err() {
        held = Held::default();
    }
    Answer { status, headers, body, held, attempts, stop, asked }
}

async fn body(mut response: Response, space: &Space, held: &mut Held) -> Result<Bytes, Failure> {
    let mut whole = BytesMut::new();
    let mut first = Bytes::new();
    loop {
        let piece = clock::before(held.until(), response.chunk()).await;
        if held.is_slow(space, whole.len(), clock::now()) {
            return Err(Failure::new("body", "the body came too slowly while others waited for memory"));
        }
        let Some(piece) = piece else { continue };
        match piece {
            Ok(None) if whole.is_empty() => return Ok(first),
            Ok(None) => return Ok(whole.freeze()),
            Ok(Some(chunk)) if first.is_empty() && whole.is_empty() => first = chunk,
            Ok(Some(chunk)) => {
                whole.extend_from_slice(&std::mem::take(&mut first));
                whole.extend_from_slice(&chunk);
            }
            Err(error) => return Err(Failure::of(&Error::body(error.into()))),
        }
        if whole.len() > LONGEST {
            return Err(Failure::new("body", "the body is longer than 64 MiB"));
        }
        space.make(held, whole.len()).await;
    }
}
