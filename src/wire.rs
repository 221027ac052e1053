//! What the main loop does with the world: permits, requests, answers. No rule lives here.

use std::{
    convert::Infallible,
    time::{Duration, SystemTime},
};

use http::HeaderMap;
use rand::{Rng, TryRng};
use reqwest::Response;
use tokio::time::Instant;
use tracing::Span;

use crate::{
    BoxError, Error, Key, Verdict,
    body::{self, End},
    call::{Call, Onward, Outcome},
    client::Inner,
    clock,
    event::{Event, emit, is_heard},
    head::{Head, Needs, earliest},
    headers::{self, Hints},
    limit::{Ask, Permit, Refused, Route},
    outgoing::Outgoing,
    redirect::Hop,
    sent::{Cause, SentState},
    telemetry::{self, Sending},
    told,
    transport::Transport,
    verdict::Answer,
};

/// The driver's hands.
pub(crate) struct Wire<'a, T> {
    client: &'a Inner,
    transport: T,
    request: &'a mut Outgoing,
    permit: Option<Permit>,
    withdrawal: Option<Withdrawal<'a>>,
    /// What the call ends with if nothing better comes; a response stays whole until the next commit.
    last: Option<Result<Response, Error>>,
    hop: Option<Hop>,
    /// Requests on the wire so far.
    sent: u32,
    span: Span,
}

/// What of an unwanted body is read, so that its connection can be used again: beyond, a new one costs less.
const DRAIN: (usize, Duration) = (64 * 1024, Duration::from_millis(50));

/// How long after the end of its answer an HTTP/1 connection is back in the pool: hyper does it in tasks of its own. Who
/// asks sooner is given a new one.
const POOLED: Duration = Duration::from_millis(1);

impl<'a, T: Transport> Wire<'a, T> {
    pub(crate) fn new(
        client: &'a Inner,
        request: &'a mut Outgoing,
        (transport, span): (T, Span),
        (call, now): (&Call, Instant),
    ) -> Self {
        if let Some(budget) = call.policy().retry_budget() {
            client.ledgers().deposit(request.key, budget, now);
        }
        Self { client, transport, request, permit: None, withdrawal: None, last: None, hop: None, sent: 0, span }
    }

    /// Waits for a permit. Tells when it is, as all steps do.
    pub(crate) async fn acquire(&mut self, call: &mut Call) -> Instant {
        let ask = Ask {
            key: &self.request.key,
            route: Some(Route::of(self.request.method(), self.request.url().path())),
            units: self.request.units(),
            deadline: call.deadline(),
            max_pause: call.policy().longest_wait(),
        };
        let escort = self.request.options.escort.clone();
        let admitted = async {
            escort.iter().for_each(|escort| escort.asks());
            let permit = self.client.limiter.admit(&ask).await?;
            if let Some(escort) = escort {
                escort.boards().await;
            }
            Ok::<_, Refused>(permit)
        };
        let admitted = clock::before(call.deadline(), admitted).await;
        let now = clock::now();
        match admitted {
            Some(Ok(permit)) => {
                self.permit = Some(permit);
                call.on_permit(now);
            }
            Some(Err(refused)) => {
                let (key, retry_at) = (self.request.key, refused.retry_at());
                emit(self.client.observer(), || Event::Refused { key, retry_at });
                call.on_refused(refused.is_deadline());
                self.last.get_or_insert_with(|| Err(Error::limited(refused)));
            }
            None => {
                let key = self.request.key;
                emit(self.client.observer(), || Event::Refused { key, retry_at: None });
                call.on_refused(true);
                self.last.get_or_insert_with(|| Err(Error::cut(Cause::Deadline, SentState::NotSent)));
            }
        }
        now
    }

    /// Asks the retry budget.
    pub(crate) fn withdraw(&mut self, call: &mut Call) -> Instant {
        let (key, now) = (self.request.key, clock::now());
        let granted =
            call.policy().retry_budget().is_none_or(|budget| self.client.ledgers().withdraw(key, budget, now));
        self.withdrawal = granted.then(|| Withdrawal { client: self.client, key, spent: false });
        call.on_budget(granted);
        self.tell_wait(call);
        now
    }

    /// Sends one request and takes in what came of it.
    pub(crate) async fn send(&mut self, call: &mut Call, number: u32) -> Instant {
        let prepared = clock::before(call.deadline(), self.prepare(number)).await;
        let now = clock::now();
        match prepared.unwrap_or_else(|| Err(Error::cut(Cause::Deadline, SentState::NotSent))) {
            Ok(()) if call.may_send(now) => {}
            Ok(()) => {
                self.permit = None;
                self.last.get_or_insert_with(|| Err(Error::cut(Cause::Deadline, SentState::NotSent)));
                return now;
            }
            Err(error) => {
                self.unsent(call, error, now);
                return now;
            }
        }
        self.commit(call, number, now);
        let result = self.exchange(call, now).await;
        match self.take_in(call, number, result) {
            (Some(verdict), _) if !call.is_over() => Box::pin(self.keep(call, verdict)).await,
            (_, now) => now,
        }
    }

    /// The end: the last response with its history, else the error with it.
    pub(crate) fn finish(&mut self, call: &mut Call) -> Result<Response, Error> {
        let history = call.take_history();
        let (key, stop, attempts) = (self.request.key, history.stop(), history.attempts().len());
        emit(self.client.observer(), || Event::Ended { key, stop, attempts });
        let late = || Err(Error::cut(Cause::Deadline, SentState::NotSent).with_url(self.request.url()));
        let result = self.last.take().unwrap_or_else(late);
        telemetry::ended(&self.span, self.request.url().host_str(), &history, &result);
        #[cfg(feature = "metrics")]
        crate::metrics::limits(self.request.url().host_str().unwrap_or_default(), &self.client.limiter, &key);
        match result {
            Ok(mut response) => {
                response.extensions_mut().insert(history);
                Ok(response)
            }
            Err(error) => Err(error.with_history(history)),
        }
    }

    /// What the caller adds to the request of this attempt.
    async fn prepare(&mut self, number: u32) -> Result<(), Error> {
        let client = self.client;
        self.request.collect().await?;
        self.transport.ready().await.map_err(Error::transport)?;
        let mut fresh = None;
        if self.request.is_home() {
            for headers_with in [&client.headers_with, &self.request.options.headers_with].into_iter().flatten() {
                let more = headers_with(number).await.map_err(Error::headers)?;
                replace(fresh.get_or_insert_default(), more);
            }
        }
        let touch = self.request.options.on_attempt.clone().filter(|_| self.request.is_home());
        if fresh.is_none() && touch.is_none() && !self.request.makes_body() {
            return Ok(());
        }
        self.request.touch(client, |request| {
            replace(request.headers_mut(), fresh.unwrap_or_default());
            if let Some(touch) = touch {
                touch(request, number);
            }
        })
    }

    fn unsent(&mut self, call: &mut Call, error: Error, now: Instant) {
        self.permit = None;
        if !matches!(self.last, Some(Ok(_))) {
            self.last = Some(Err(error));
        }
        call.on_unsent(now);
    }

    /// The point of no return.
    fn commit(&mut self, call: &mut Call, number: u32, now: Instant) {
        self.last = None;
        if let Some(mut withdrawal) = self.withdrawal.take() {
            withdrawal.spent = true;
        }
        if let Some(permit) = &mut self.permit {
            permit.commit();
        }
        call.on_sent(now);
        self.request.options.escort.iter().for_each(|escort| escort.sent());
        let (key, waited) = (self.request.key, call.waited());
        emit(self.client.observer(), || Event::Sent { key, attempt: number, waited });
    }

    /// One request on the wire: the head, and as much of the body as the verdict needs.
    async fn exchange(&mut self, call: &Call, now: Instant) -> Result<Head, (Error, Hints)> {
        let cut = call.cut(now);
        let sending = Sending::start(self.request.shown(), self.sent);
        self.sent = self.sent.saturating_add(1);
        let sent = clock::before(cut.0, sending.within(self.transport.send(|| self.request.wire()))).await;
        let head = self.head(call, sending, sent.ok_or(cut.1))?;
        match head.needs {
            Needs::Nothing => Ok(head),
            _ => Box::pin(head.with_body(call, cut)).await,
        }
    }

    fn head(
        &mut self,
        call: &Call,
        sending: Sending,
        sent: Result<Result<Response, BoxError>, Cause>,
    ) -> Result<Head, (Error, Hints)> {
        let result = match sent {
            Ok(result) => result.map_err(Error::transport),
            Err(cause) => Err(Error::cut(cause, SentState::Unknown)),
        };
        let response = match result {
            Ok(response) => response,
            Err(error) => {
                sending.failed(&error);
                return Err((error, Hints::default()));
            }
        };
        let (received, wall) = (clock::now(), clock::wall());
        sending.answered(&response, received);
        let hints = headers::read(response.status(), response.headers(), None, wall);
        self.tell_unread(&response, wall);
        let (onward, hop) = self.request.onward(&response, &hints, self.client, call);
        self.hop = hop;
        let limit = self.request.options.buffered.max(call.policy().body_limit());
        let needs = match limit {
            Some(limit) if onward == Onward::No => Needs::Whole(limit),
            _ if told::may_be_in_body(&response, &hints, call.policy()) => Needs::Wait,
            _ => Needs::Nothing,
        };
        Ok(Head { response, hints, body: None, received, wall, onward, long: false, needs })
    }

    /// What came of it, for the call and for the limiter.
    fn take_in(
        &mut self,
        call: &mut Call,
        number: u32,
        result: Result<Head, (Error, Hints)>,
    ) -> (Option<Verdict>, Instant) {
        match result {
            Ok(head) => {
                let received = head.received;
                (Some(self.answered(call, number, head)), received)
            }
            Err((error, hints)) => (None, self.failed(call, number, error, &hints)),
        }
    }

    fn answered(&mut self, call: &mut Call, number: u32, head: Head) -> Verdict {
        let answer = Answer {
            method: self.request.method(),
            status: Some(head.response.status()),
            headers: head.response.headers(),
            error: None,
            sent: SentState::Sent,
            attempt: number,
            word: self.transport.word(),
        };
        let repeat = self.request.repeat(self.client);
        let outcome = Outcome { answer, hints: &head.hints, body: head.body.as_deref(), onward: head.onward, repeat };
        if head.long {
            call.on_long_body();
        }
        let verdict = call.on_result(&outcome, head.received, &mut Chance(self.client));
        self.request.options.escort.iter().for_each(|escort| escort.landed(verdict.is_throttled()));
        self.tell_answer(call, number, &head, verdict);
        if let Some(permit) = &mut self.permit
            && let Some(hints) = told::to_limiter(&head.response, head.hints, verdict, self.request.is_home())
        {
            permit.observe(&hints);
        }
        match call.is_over() {
            true => self.hand_over(head.response),
            false => self.last = Some(Ok(head.response)),
        }
        verdict
    }

    fn failed(&mut self, call: &mut Call, number: u32, error: Error, hints: &Hints) -> Instant {
        let now = clock::now();
        let (cause, sent) = (error.cause().unwrap_or(Cause::Other), error.sent());
        let answer = Answer {
            method: self.request.method(),
            status: None,
            headers: &HeaderMap::new(),
            error: Some(cause),
            sent,
            attempt: number,
            word: self.transport.word(),
        };
        let repeat = self.request.repeat(self.client);
        let outcome = Outcome { answer, hints, body: None, onward: Onward::No, repeat };
        let _ = call.on_result(&outcome, now, &mut Chance(self.client));
        self.request.options.escort.iter().for_each(|escort| escort.landed(false));
        let key = self.request.key;
        emit(self.client.observer(), || Event::Failed { key, attempt: number, cause, sent });
        if let (Some(mut permit), Some(hints)) = (self.permit.take(), told::broken_to_limiter(hints)) {
            permit.observe(hints);
        }
        self.last = Some(Err(error.with_url(self.request.url())));
        self.tell_wait(call);
        now
    }

    /// The last response, with the slot that it holds until its end.
    fn hand_over(&mut self, response: Response) {
        let permit = if self.permit.as_ref().is_some_and(Permit::holds_slot) { self.permit.take() } else { None };
        self.permit = None;
        self.last = Some(Ok(match permit {
            Some(permit) => body::hold(response, permit),
            None => response,
        }));
    }

    /// Keeps the response until the next commit, so that its connection and its slot are free.
    async fn keep(&mut self, call: &Call, verdict: Verdict) -> Instant {
        let Some(Ok(response)) = self.last.take() else {
            return clock::now();
        };
        let status = response.status();
        let until = earliest(clock::now().checked_add(DRAIN.1), call.deadline());
        let one_at_a_time = response.version() <= http::Version::HTTP_11;
        let (taken, end) = body::read(response, DRAIN.0, until).await;
        if end == End::Whole && one_at_a_time {
            let _ = clock::before(call.deadline(), clock::sleep_until(clock::now() + POOLED)).await;
        }
        self.permit = None;
        self.last = Some(Ok(taken.into_response()));
        if let Some(hop) = self.hop.take().filter(|_| verdict == Verdict::Accept) {
            self.request.follow(hop, self.client);
            let key = self.request.key;
            emit(self.client.observer(), || Event::Redirected { key, status });
        }
        self.tell_wait(call);
        clock::now()
    }

    /// Headers that could not be read are absent; one event says so.
    fn tell_unread(&self, response: &Response, wall: SystemTime) {
        if is_heard(self.client.observer()) {
            let headers = headers::explain(response.status(), response.headers(), None, wall).not_understood;
            if !headers.is_empty() {
                let key = self.request.key;
                emit(self.client.observer(), || Event::Unread { key, headers });
            }
        }
    }

    fn tell_answer(&self, call: &Call, number: u32, head: &Head, verdict: Verdict) {
        let (key, status) = (self.request.key, head.response.status());
        let asked_wait = call.history().asked_wait();
        emit(self.client.observer(), || Event::Answered { key, attempt: number, status, verdict, asked_wait });
    }

    fn tell_wait(&self, call: &Call) {
        if let Some((cause, until)) = call.wait() {
            let key = self.request.key;
            emit(self.client.observer(), || Event::Waiting { key, cause, until });
        }
    }
}

/// Each name in `fresh` takes the place of what was there.
fn replace(headers: &mut HeaderMap, fresh: HeaderMap) {
    let mut last = None;
    for (name, value) in fresh {
        match (name, &last) {
            (Some(name), _) => {
                headers.insert(name.clone(), value);
                last = Some(name);
            }
            (None, Some(name)) => drop(headers.append(name, value)),
            (None, None) => {}
        }
    }
}

/// One retry of the budget's, given back if it is not sent.
struct Withdrawal<'a> {
    client: &'a Inner,
    key: Key,
    spent: bool,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        if !self.spent {
            self.client.ledgers().refund(self.key);
        }
    }
}

/// The client's rng, locked only when something is drawn.
struct Chance<'a>(&'a Inner);

impl TryRng for Chance<'_> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.0.chance().next_u32())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.chance().next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.0.chance().fill_bytes(bytes);
        Ok(())
    }
}
