//! The state of one call, and every decision about it.
//!
//! Invariant: pure. No I/O, no clock, no rng of its own: `now` and the rng are arguments. Drivers ask [`Call::next`]
//! what to do, do it, and tell what came of it.

use std::{mem, sync::Arc, time::Duration};

use rand::Rng;
use tokio::time::Instant;

use crate::{
    Policy, Verdict,
    event::WaitCause,
    headers::{Hints, asked_wait},
    history::{Attempt, History, Note, Stop, Waited},
    pause::Bounds,
    repeat::Repeat,
    sent::{Cause, SentState},
    verdict::{self, Answer, Evidence},
};

/// What a driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the call waits for its driver"]
pub(crate) enum Step {
    /// Ask the limiter; then [`Call::on_permit`] or [`Call::on_refused`].
    Acquire,
    /// Ask the retry budget; then [`Call::on_budget`].
    Withdraw,
    /// Send attempt n (from 1); then [`Call::on_result`] or [`Call::on_unsent`].
    Send(u32),
    /// Wait.
    WaitUntil(Instant),
    /// The call is over.
    Return,
}

/// Where an answer points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Onward {
    /// Nowhere.
    #[default]
    No,
    /// A redirect to be followed.
    Follow,
    /// A redirect that is not taken.
    Refuse,
    /// A 202 whose result is asked for.
    Poll,
}

/// What came of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome<'a> {
    pub(crate) answer: Answer<'a>,
    pub(crate) hints: &'a Hints,
    pub(crate) body: Option<&'a [u8]>,
    pub(crate) onward: Onward,
    pub(crate) repeat: Repeat,
}

/// One call, across its attempts.
#[derive(Debug)]
pub(crate) struct Call {
    policy: Arc<Policy>,
    deadline: Option<Instant>,
    state: State,
    /// Of the attempt that is next or under way; hops stay within one.
    number: u32,
    hop: bool,
    asked_at: Instant,
    /// The first request on the wire: the lifetime of the key runs from here.
    first_sent: Option<Instant>,
    /// The end of the key, where only the key makes the retry safe.
    good_until: Option<Instant>,
    sent_at: Instant,
    waiting: Option<WaitCause>,
    waited: Waited,
    last_backoff: Option<Duration>,
    /// The attempt as far as it got, while its next hop waits.
    open: Option<Attempt>,
    history: History,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Admit,
    Ready,
    /// The retry is decided, if the budget has one; it then waits until.
    Budget(Instant),
    Wait(Instant),
    Over,
}

impl Call {
    /// A call that starts now; `deadline` in place of the policy's.
    pub(crate) fn new(policy: Arc<Policy>, deadline: Option<Duration>, now: Instant) -> Self {
        let whole = deadline.or_else(|| policy.whole());
        Self {
            deadline: whole.and_then(|whole| now.checked_add(whole)),
            policy,
            state: State::Admit,
            number: 1,
            hop: false,
            asked_at: now,
            first_sent: None,
            good_until: None,
            sent_at: now,
            waiting: None,
            waited: Waited::default(),
            last_backoff: None,
            open: None,
            history: History::default(),
        }
    }

    /// What to do next.
    pub(crate) fn next(&mut self, now: Instant) -> Step {
        match self.state {
            State::Wait(until) if now < until => return Step::WaitUntil(until),
            State::Wait(_) => self.state = State::Admit,
            _ => {}
        }
        if self.state == State::Admit {
            if self.is_late(now) {
                self.stop(Stop::Deadline);
            }
            self.asked_at = now;
        }
        match self.state {
            State::Admit | State::Wait(_) => Step::Acquire,
            State::Budget(_) => Step::Withdraw,
            State::Ready => Step::Send(self.number),
            State::Over => Step::Return,
        }
    }

    /// The limiter let it through.
    pub(crate) fn on_permit(&mut self, now: Instant) {
        self.waited.limiter += now.saturating_duration_since(self.asked_at);
        self.state = State::Ready;
    }

    /// The limiter did not, or not before the deadline.
    pub(crate) fn on_refused(&mut self, by_deadline: bool) {
        self.stop(if by_deadline { Stop::Deadline } else { Stop::Refused });
    }

    /// What the retry budget said.
    pub(crate) fn on_budget(&mut self, granted: bool) {
        match self.state {
            State::Budget(until) if granted => self.state = State::Wait(until),
            _ => self.stop(Stop::BudgetSpent),
        }
    }

    /// Nothing was sent after all.
    pub(crate) fn on_unsent(&mut self, now: Instant) {
        self.stop(if self.is_late(now) { Stop::Deadline } else { Stop::NotSent });
    }

    /// Whether the request may still go on the wire: grant, headers and a busy executor take time. If not, the call is
    /// over.
    pub(crate) fn may_send(&mut self, now: Instant) -> bool {
        if self.is_late(now) {
            self.stop(Stop::Deadline);
        } else if self.good_until.is_some_and(|end| end <= now) {
            self.stop(Stop::NotIdempotent);
        }
        !self.is_over()
    }

    /// The request goes on the wire now.
    pub(crate) fn on_sent(&mut self, now: Instant) {
        self.first_sent.get_or_insert(now);
        if !self.hop {
            self.sent_at = now;
        }
    }

    /// What came of the request, at the instant its head was received or it failed.
    pub(crate) fn on_result(&mut self, outcome: &Outcome<'_>, now: Instant, rng: &mut dyn Rng) -> Verdict {
        let retry_conflict = outcome.repeat.retry_conflict && outcome.repeat.key_lifetime.is_some();
        let evidence = Evidence { answer: outcome.answer, hints: outcome.hints, body: outcome.body, retry_conflict };
        let verdict = verdict::of(&evidence, &self.policy);
        let asked = self.asked(verdict, outcome.hints);
        self.history.asked_wait = asked.or(self.history.asked_wait);
        match (verdict, outcome.onward) {
            _ if outcome.answer.error == Some(Cause::Deadline) => self.end(outcome, now, Stop::Deadline),
            (Verdict::Accept, Onward::Follow | Onward::Poll) => self.go_on(outcome, asked, now, rng),
            (Verdict::Accept, Onward::Refuse) => self.end(outcome, now, Stop::RedirectRefused),
            (Verdict::Accept, Onward::No) => self.end(outcome, now, Stop::Answered),
            (Verdict::Stop, _) => self.end(outcome, now, Stop::NotRetryable),
            _ => self.retry(outcome, verdict, asked, (now, rng)),
        }
        verdict
    }

    /// The body was longer than the buffer.
    pub(crate) fn on_long_body(&mut self) {
        self.note(Note::BufferLimit);
    }

    /// End of the whole call.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// End of an attempt that is sent now, and what it means when it comes.
    pub(crate) fn cut(&self, now: Instant) -> (Option<Instant>, Cause) {
        let attempt = now.checked_add(self.policy.per_attempt());
        match (attempt, self.deadline) {
            (Some(attempt), Some(deadline)) if deadline <= attempt => (Some(deadline), Cause::Deadline),
            (None, Some(deadline)) => (Some(deadline), Cause::Deadline),
            (attempt, _) => (attempt, Cause::Timeout),
        }
    }

    /// Whether an attempt of this call may have been executed.
    pub(crate) fn may_have_run(&self) -> bool {
        self.history.attempts().iter().any(|attempt| match (attempt.sent, attempt.status) {
            (SentState::NotSent, _) => false,
            // RFC 8470 §5.2, RFC 6585 §4.
            (_, Some(status)) => !matches!(status.as_u16(), 425 | 429),
            (_, None) => true,
        })
    }

    /// What the request that is next waited for the limiter.
    pub(crate) fn waited(&self) -> Duration {
        self.waited.limiter
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The wait that is under way, and its end.
    pub(crate) fn wait(&self) -> Option<(WaitCause, Instant)> {
        match self.state {
            State::Wait(until) => self.waiting.map(|cause| (cause, until)),
            _ => None,
        }
    }

    /// Whether an answer is in hand, and nothing more is to be done.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    pub(crate) fn take_history(&mut self) -> History {
        mem::take(&mut self.history)
    }

    fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    fn stop(&mut self, stop: Stop) {
        if let Some(open) = self.open.take() {
            self.history.attempts.push(open);
        }
        self.state = State::Over;
        self.history.stop = stop;
    }

    fn note(&mut self, note: Note) {
        if !self.history.notes.contains(&note) {
            self.history.notes.push(note);
        }
    }

    fn end(&mut self, outcome: &Outcome<'_>, now: Instant, stop: Stop) {
        self.record(outcome, now);
        self.stop(stop);
    }

    /// The attempt is complete.
    fn record(&mut self, outcome: &Outcome<'_>, now: Instant) {
        let unknown = |attempt: &Attempt| attempt.sent != SentState::NotSent && attempt.status.is_none();
        // RFC 9110 §13.1.1: the precondition may have failed because the earlier attempt was applied.
        if outcome.answer.status.is_some_and(|status| status.as_u16() == 412)
            && self.history.attempts().iter().any(unknown)
        {
            self.note(Note::MaybeApplied);
        }
        let attempt = self.attempt(outcome, now);
        self.history.attempts.push(attempt);
        (self.open, self.waited) = (None, Waited::default());
    }

    fn attempt(&self, outcome: &Outcome<'_>, now: Instant) -> Attempt {
        let sent = match outcome.answer.sent {
            // An earlier hop of it was answered.
            SentState::NotSent if self.hop => SentState::Unknown,
            sent => sent,
        };
        Attempt {
            number: self.number,
            status: outcome.answer.status,
            error: outcome.answer.error,
            waited: self.waited,
            elapsed: now.saturating_duration_since(self.sent_at),
            sent,
        }
    }

    /// What the server asks for by this answer.
    fn asked(&self, verdict: Verdict, hints: &Hints) -> Option<Duration> {
        let named = hints.retry_after;
        let asked = match verdict {
            Verdict::Throttled => asked_wait(hints),
            Verdict::ThrottledFor(wait) => Some(named.map_or(wait, |named| named.max(wait))),
            _ => named,
        };
        // RFC 9110 §10.2.3 names the least wait: 0, and a date that is past, leave it to the backoff.
        asked.filter(|wait| !wait.is_zero())
    }

    /// A hop or a poll: the attempt goes on, and the next request asks the limiter anew.
    fn go_on(&mut self, outcome: &Outcome<'_>, asked: Option<Duration>, now: Instant, rng: &mut dyn Rng) {
        let poll = outcome.onward == Onward::Poll;
        self.hop = true;
        self.waiting = None;
        self.open = Some(self.attempt(outcome, now));
        let until = match (asked, poll) {
            (None, false) => Ok(now),
            _ => self.until(asked, false, (now, rng)),
        };
        match until {
            Ok(until) => self.state = State::Wait(until),
            Err(stop) => self.end(outcome, now, stop),
        }
    }

    fn retry(
        &mut self,
        outcome: &Outcome<'_>,
        verdict: Verdict,
        asked: Option<Duration>,
        (now, rng): (Instant, &mut dyn Rng),
    ) {
        self.record(outcome, now);
        let until =
            self.may_retry(outcome, verdict).and_then(|()| self.until(asked, verdict.is_throttled(), (now, rng)));
        let until = until.and_then(|until| self.keeps_key(outcome, verdict, until));
        let pays = !verdict.is_throttled() && self.policy.retry_budget().is_some();
        match until {
            Ok(until) if pays => self.state = State::Budget(until),
            Ok(until) => self.state = State::Wait(until),
            Err(stop) => self.stop(stop),
        }
        self.number = self.number.saturating_add(1);
        self.hop = false;
    }

    fn may_retry(&self, outcome: &Outcome<'_>, verdict: Verdict) -> Result<(), Stop> {
        outcome.repeat.check(&outcome.answer, verdict, self.policy.non_idempotent())?;
        if self.number < self.policy.attempts() { Ok(()) } else { Err(Stop::MaxAttempts) }
    }

    fn keeps_key(&mut self, outcome: &Outcome<'_>, verdict: Verdict, until: Instant) -> Result<Instant, Stop> {
        let unkeyed = Repeat { key_lifetime: None, ..outcome.repeat };
        let alone = unkeyed.check(&outcome.answer, verdict, self.policy.non_idempotent());
        self.good_until = outcome.repeat.key_ends(self.first_sent).filter(|_| alone.is_err());
        match self.good_until {
            Some(end) if end <= until => alone.map(|()| until),
            _ => Ok(until),
        }
    }

    /// When to go on, or why not.
    fn until(
        &mut self,
        asked: Option<Duration>,
        throttled: bool,
        (now, rng): (Instant, &mut dyn Rng),
    ) -> Result<Instant, Stop> {
        let backoff = self.policy.backoff_after(throttled);
        let bounds = Bounds { now, deadline: self.deadline, longest: self.policy.longest_wait() };
        let pause = match asked {
            Some(floor) => bounds.asked(floor, &backoff, rng)?,
            None => bounds.backoff(&backoff, self.number.saturating_sub(1), self.last_backoff, rng)?,
        };
        let waited = match pause.cause {
            WaitCause::Server => &mut self.waited.server,
            WaitCause::Backoff => {
                self.last_backoff = Some(pause.wait);
                &mut self.waited.backoff
            }
        };
        *waited = waited.saturating_add(pause.wait);
        self.waiting = Some(pause.cause);
        Ok(pause.until)
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method, StatusCode};
    use rand::{SeedableRng, rngs::SmallRng};

    use super::*;
    use crate::{Backoff, clock};

    const SAFE: Repeat = Repeat { idempotent: true, key_lifetime: None, retry_conflict: false, replayable: true };
    const KEYED: Repeat =
        Repeat { idempotent: false, key_lifetime: Some(Duration::MAX), retry_conflict: false, replayable: true };
    const BARE: Repeat = Repeat { idempotent: false, ..SAFE };

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn policy() -> Policy {
        Policy::default().backoff(Backoff::constant(ms(50))).no_budget()
    }

    fn asked(wait: Duration) -> Hints {
        Hints { retry_after: Some(wait), ..Hints::default() }
    }

    /// One attempt, answered at once; what the call does next.
    fn answer(call: &mut Call, status: u16, hints: &Hints, repeat: Repeat, now: Instant) -> Step {
        assert_eq!(call.next(now), Step::Acquire);
        call.on_permit(now);
        assert!(matches!(call.next(now), Step::Send(_)));
        call.on_sent(now);
        let answer = Answer {
            method: &Method::GET,
            status: StatusCode::from_u16(status).ok(),
            headers: &HeaderMap::new(),
            error: None,
            sent: SentState::Sent,
            attempt: 1,
            word: None,
        };
        let outcome = Outcome { answer, hints, body: None, onward: Onward::No, repeat };
        let _ = call.on_result(&outcome, now, &mut SmallRng::seed_from_u64(1));
        call.next(now)
    }

    #[track_caller]
    fn check(policy: Policy, status: u16, hints: &Hints, repeat: Repeat, expected: Result<Duration, Stop>) {
        let now = clock::now();
        let mut call = Call::new(Arc::new(policy), None, now);
        let step = answer(&mut call, status, hints, repeat, now);
        let found = match step {
            Step::WaitUntil(until) => Ok(until - now),
            _ => Err(call.history().stop()),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn the_first_reason_to_stop_is_told() {
        let none = Hints::default();
        check(policy(), 200, &none, SAFE, Err(Stop::Answered));
        check(policy(), 404, &none, SAFE, Err(Stop::NotRetryable));
        check(policy().max_attempts(1), 503, &none, Repeat { replayable: false, ..BARE }, Err(Stop::NotIdempotent));
        check(policy().max_attempts(1), 503, &none, Repeat { replayable: false, ..SAFE }, Err(Stop::NotReplayable));
        check(policy().max_attempts(1).deadline(ms(1)), 503, &none, SAFE, Err(Stop::MaxAttempts));
        let hour = asked(Duration::from_secs(3600));
        check(policy(), 503, &hour, SAFE, Err(Stop::Deadline));
        check(policy().no_deadline(), 503, &hour, SAFE, Err(Stop::ServerWaitTooLong));
        check(policy().no_deadline(), 429, &asked(Duration::MAX), SAFE, Err(Stop::ServerWaitTooLong));
        check(policy(), 503, &none, SAFE, Ok(ms(50)));
        check(policy(), 503, &none, KEYED, Ok(ms(50)));
        check(policy(), 503, &asked(Duration::ZERO), SAFE, Ok(ms(50)));
        check(policy().backoff(Backoff::none()), 429, &asked(ms(7)), SAFE, Ok(ms(7)));
    }

    #[test]
    fn a_retry_pays_the_budget_and_a_throttle_does_not() {
        let now = clock::now();
        let budgeted = || Call::new(Arc::new(policy().budget(crate::RetryBudget::default())), None, now);
        let mut call = budgeted();
        assert_eq!(answer(&mut call, 500, &Hints::default(), SAFE, now), Step::Withdraw);
        call.on_budget(false);
        assert_eq!((call.next(now), call.history().stop()), (Step::Return, Stop::BudgetSpent));
        assert!(matches!(answer(&mut budgeted(), 429, &Hints::default(), SAFE, now), Step::WaitUntil(_)));
    }
}
