//! The one task of a fleet: it owns the connection to the store, carries what keys ask and are told, and notices that
//! the store is gone or back. It ends with the last clone of the fleet and the last limiter that uses it.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    sync::mpsc,
    time::{Instant, Sleep},
};

use super::{
    hub::{GONE, NO_RUNTIME, Notice, View},
    store::{Lost, Reply, Request, Store},
};
use crate::{
    Backoff, clock,
    limit::{Cell, Step},
};

/// Where stores are made.
pub(crate) trait Place: Send {
    /// Connects, and asks for nothing on a key, if one is named: the store is back when it answers there.
    fn connect(&self, key: Option<String>) -> Connecting;

    /// What it is called in logs: no credentials.
    fn name(&self) -> String;
}

pub(crate) type Connecting = Pin<Box<dyn Future<Output = Result<Box<dyn Store>, Lost>> + Send>>;

/// The settings that hold for all exchanges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// An exchange that takes longer has failed.
    pub(crate) timeout: Duration,
    pub(crate) reconnect: Backoff,
}

/// A store that answered for so long is trusted again: reconnects start with the shortest wait.
const TRUSTED: Duration = Duration::from_secs(5);

/// So many exchanges are under way at once: more would wait at the store, and leases, which count from before they are
/// asked for, would be over when they come.
const AT_ONCE: usize = 32;

pub(crate) struct Task {
    place: Box<dyn Place>,
    manners: Manners,
    view: Arc<View>,
    notices: mpsc::UnboundedReceiver<Notice>,
    link: Link,
    flights: FuturesUnordered<Airborne>,
    /// Keys that are looked at when an exchange under way is over.
    standing: VecDeque<Weak<Cell>>,
    /// Keys that are to be looked at when the store is back.
    asking: Asking<Cell>,
    timers: Timers,
    timer: Pin<Box<Sleep>>,
    rng: SmallRng,
}

/// The way to the store.
enum Link {
    Up {
        store: Box<dyn Store>,
        since: Instant,
    },
    /// It is tried again at this instant; `key` failed.
    Down {
        until: Instant,
        key: Option<String>,
    },
    Trying {
        connecting: Connecting,
        key: Option<String>,
    },
}

/// An exchange under way.
struct Airborne {
    cell: Weak<Cell>,
    exchange: Pin<Box<dyn Future<Output = Flight> + Send>>,
}

impl Future for Airborne {
    type Output = Flight;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Flight> {
        self.exchange.as_mut().poll(cx)
    }
}

/// An exchange that is over.
struct Flight {
    cell: Weak<Cell>,
    request: Request,
    sent: Instant,
    result: Result<Reply, Lost>,
}

enum Event {
    Noticed(Notice),
    Landed(Box<Flight>),
    Connected(Result<Box<dyn Store>, Lost>),
    Time,
    /// Nobody uses the fleet any more.
    Over,
}

impl Task {
    pub(crate) fn new(
        (place, store): (Box<dyn Place>, Box<dyn Store>),
        manners: Manners,
        (view, notices): (Arc<View>, mpsc::UnboundedReceiver<Notice>),
        (seed, now): (u64, Instant),
    ) -> Self {
        Self {
            place,
            manners,
            view,
            notices,
            link: Link::Up { store, since: now },
            flights: FuturesUnordered::new(),
            standing: VecDeque::new(),
            asking: Asking::default(),
            timers: Timers::default(),
            timer: Box::pin(clock::sleep_until(now)),
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    pub(crate) async fn run(mut self) {
        let mut failures = 0;
        loop {
            match poll_fn(|cx| self.poll_event(cx)).await {
                Event::Noticed(notice) => self.noticed(notice),
                Event::Landed(flight) => {
                    self.landed(*flight, &mut failures);
                    self.look_on();
                }
                Event::Connected(result) => self.connected(result, &mut failures),
                Event::Time => self.tick(),
                Event::Over => return,
            }
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        match self.notices.poll_recv(cx) {
            Poll::Ready(Some(notice)) => return Poll::Ready(Event::Noticed(notice)),
            Poll::Ready(None) => return Poll::Ready(Event::Over),
            Poll::Pending => {}
        }
        if !self.flights.is_empty()
            && let Poll::Ready(Some(flight)) = self.flights.poll_next_unpin(cx)
        {
            return Poll::Ready(Event::Landed(Box::new(flight)));
        }
        if let Link::Trying { connecting, .. } = &mut self.link
            && let Poll::Ready(result) = connecting.as_mut().poll(cx)
        {
            return Poll::Ready(Event::Connected(result));
        }
        let retry = if let Link::Down { until, .. } = self.link { Some(until) } else { None };
        let look = self.timers.first();
        let Some(at) = retry.into_iter().chain(look).min() else { return Poll::Pending };
        if self.timer.deadline() != at {
            self.timer.as_mut().reset(at);
        }
        self.timer.as_mut().poll(cx).map(|()| Event::Time)
    }

    fn noticed(&mut self, notice: Notice) {
        match notice.at {
            Some(at) => self.timers.set(notice.cell, at),
            None => self.look(&notice.cell),
        }
    }

    /// An exchange is over: another may begin.
    fn look_on(&mut self) {
        while self.flights.len() < AT_ONCE
            && let Some(cell) = self.standing.pop_front()
        {
            self.look(&cell);
        }
    }

    /// What a key wants now.
    fn look(&mut self, weak: &Weak<Cell>) {
        self.timers.remove(weak);
        let Some(cell) = weak.upgrade() else { return };
        let (now, epoch) = (clock::now(), cell.config.epoch);
        let (state, members) = (self.view.state(epoch), self.view.members());
        let mut wakes = Vec::new();
        // It may have asked on another thread while the store was being lost, or was coming back.
        cell.lock().set_store(state, members, epoch.tick(now), &mut wakes);
        wakes.into_iter().for_each(Waker::wake);
        let Link::Up { store, .. } = &self.link else {
            self.asking.add(Weak::clone(weak));
            return;
        };
        if self.flights.len() >= AT_ONCE {
            self.standing.push_back(Weak::clone(weak));
            return;
        }
        match cell.lock().step(epoch.tick(now)) {
            Step::Send(mut request) => {
                request.key = cell.key.digest();
                let exchange = store.exchange(&request);
                let (asks, until) = (Weak::clone(weak), now.checked_add(self.manners.timeout));
                let exchange = Box::pin(async move {
                    let result = answer_by(until, exchange).await;
                    Flight { cell: asks, request, sent: now, result }
                });
                self.flights.push(Airborne { cell: Weak::clone(weak), exchange });
            }
            Step::LookAt(tick) => self.timers.set(Weak::clone(weak), epoch.instant(tick)),
            Step::Nothing => {}
        }
    }

    fn landed(&mut self, flight: Flight, failures: &mut u32) {
        match flight.result {
            Ok(reply) => {
                told_metrics("answered", flight.sent);
                self.view.set_members(reply.members);
                let Some(cell) = flight.cell.upgrade() else { return };
                let (draw, now, epoch) = (self.rng.random::<f64>(), clock::now(), cell.config.epoch);
                let (sent, now, rules) = (epoch.tick(flight.sent), epoch.tick(now), cell.config.rules);
                cell.with(|state, wakes| {
                    state.answered((&flight.request, &reply), (sent, draw), (now, rules), wakes);
                });
            }
            Err(lost) => {
                told_metrics("failed", flight.sent);
                self.asking.add(flight.cell);
                self.lose(&lost, Some(flight.request.key), failures);
            }
        }
    }

    /// The store is gone: whoever waits for it goes on by the rule that was chosen beforehand.
    fn lose(&mut self, lost: &Lost, key: Option<String>, failures: &mut u32) {
        let now = clock::now();
        match &self.link {
            Link::Up { since, .. } if now.saturating_duration_since(*since) >= TRUSTED => *failures = 0,
            Link::Up { .. } => {}
            // One of several that failed together.
            Link::Down { .. } | Link::Trying { .. } => return,
        }
        tracing::warn!(target: "abide", store = %self.place.name(), why = %lost.0, "store lost");
        self.wait(lost, key, failures);
        let flights = std::mem::take(&mut self.flights);
        flights.into_iter().for_each(|airborne| self.asking.add(airborne.cell));
        self.rouse();
    }

    fn wait(&mut self, lost: &Lost, key: Option<String>, failures: &mut u32) {
        let wait = self.manners.reconnect.wait(*failures, None, &mut self.rng);
        *failures = failures.saturating_add(1);
        let now = clock::now();
        let until = now.checked_add(wait).unwrap_or(now);
        self.view.lose(until, &lost.0);
        self.link = Link::Down { until, key };
    }

    fn connected(&mut self, result: Result<Box<dyn Store>, Lost>, failures: &mut u32) {
        let Link::Trying { key, .. } = std::mem::replace(&mut self.link, Link::Down { until: clock::now(), key: None })
        else {
            return;
        };
        match result {
            Ok(store) => {
                tracing::warn!(target: "abide", store = %self.place.name(), "store regained");
                self.link = Link::Up { store, since: clock::now() };
                self.view.regain();
                self.rouse();
            }
            Err(lost) => {
                tracing::debug!(target: "abide", store = %self.place.name(), why = %lost.0, "store still away");
                self.wait(&lost, key, failures);
            }
        }
    }

    /// Every key that has to do with the store learns how it is now, and says what it wants.
    fn rouse(&mut self) {
        let timed = std::mem::take(&mut self.timers);
        let asking = std::mem::take(&mut self.asking).cells.into_iter().chain(std::mem::take(&mut self.standing));
        let cells: Vec<Weak<Cell>> = asking.chain(timed.cells()).collect();
        for weak in cells {
            let Some(cell) = weak.upgrade() else { continue };
            cell.with(|_, _| ());
            self.look(&weak);
        }
    }

    fn tick(&mut self) {
        let now = clock::now();
        if let Link::Down { until, key } = &mut self.link
            && *until <= now
        {
            let key = key.take();
            self.link = Link::Trying { connecting: self.place.connect(key.clone()), key };
        }
        while let Some(cell) = self.timers.pop(now) {
            self.look(&cell);
        }
    }
}

/// The answer, by `until`. A timer that fires late says that this process was held up, not that the store was: it has
/// as long again to read what has come meanwhile.
async fn answer_by(
    until: Option<Instant>,
    mut exchange: Pin<Box<dyn Future<Output = Result<Reply, Lost>> + Send>>,
) -> Result<Reply, Lost> {
    let mut answer = clock::before(until, exchange.as_mut()).await;
    let now = clock::now();
    let late = until.map_or(Duration::ZERO, |until| now.saturating_duration_since(until));
    if answer.is_none() && late > ON_TIME {
        answer = clock::before(now.checked_add(late), exchange).await;
    }
    answer.unwrap_or_else(|| Err(Lost("no answer within the timeout".into())))
}

/// Timers have a grain of a millisecond.
const ON_TIME: Duration = Duration::from_millis(3);

/// Its runtime was shut down, or nobody uses the fleet any more: whoever still waits is not left waiting.
impl Drop for Task {
    fn drop(&mut self) {
        let now = clock::now();
        self.view.lose(now.checked_add(GONE).unwrap_or(now), NO_RUNTIME);
        self.link = Link::Down { until: now, key: None };
        let flights = std::mem::take(&mut self.flights);
        flights.into_iter().for_each(|airborne| self.asking.add(airborne.cell));
        let timed = std::mem::take(&mut self.timers);
        let asking = std::mem::take(&mut self.asking).cells.into_iter().chain(self.standing.drain(..));
        for cell in asking.chain(timed.cells()).filter_map(|cell| cell.upgrade()) {
            cell.with(|_, _| ());
        }
    }
}

/// Keys that wait for the store, once each, in the order of their asking; those that are gone meanwhile are let go before
/// they are many.
struct Asking<T> {
    cells: Vec<Weak<T>>,
    /// Their addresses, which last as long as the weak ones.
    known: HashSet<usize>,
    swept: usize,
}

/// Fewer are not looked through.
const FEW: usize = 64;

impl<T> Asking<T> {
    fn add(&mut self, cell: Weak<T>) {
        if self.cells.len() >= 2 * self.swept + FEW {
            self.cells.retain(|cell| cell.strong_count() > 0);
            self.known = self.cells.iter().map(address).collect();
            self.swept = self.cells.len();
        }
        if self.known.insert(address(&cell)) {
            self.cells.push(cell);
        }
    }
}

impl<T> Default for Asking<T> {
    fn default() -> Self {
        Self { cells: Vec::new(), known: HashSet::new(), swept: 0 }
    }
}

/// When keys are to be looked at, once each.
#[derive(Default)]
struct Timers {
    cells: BTreeMap<(Instant, usize), Weak<Cell>>,
    /// By the address of its cell, which lasts as long as the weak one in `cells`.
    places: HashMap<usize, Instant>,
}

impl Timers {
    fn set(&mut self, cell: Weak<Cell>, at: Instant) {
        self.remove(&cell);
        let place = address(&cell);
        self.places.insert(place, at);
        self.cells.insert((at, place), cell);
    }

    fn remove(&mut self, cell: &Weak<Cell>) {
        let place = address(cell);
        if let Some(at) = self.places.remove(&place) {
            self.cells.remove(&(at, place));
        }
    }

    fn first(&self) -> Option<Instant> {
        self.cells.first_key_value().map(|((at, _), _)| *at)
    }

    fn pop(&mut self, now: Instant) -> Option<Weak<Cell>> {
        let first = self.cells.first_entry().filter(|entry| entry.key().0 <= now)?;
        let ((_, place), cell) = first.remove_entry();
        self.places.remove(&place);
        Some(cell)
    }

    fn cells(self) -> impl Iterator<Item = Weak<Cell>> {
        self.cells.into_values()
    }
}

fn address<T>(cell: &Weak<T>) -> usize {
    Weak::as_ptr(cell).addr()
}

#[cfg(feature = "metrics")]
fn told_metrics(outcome: &'static str, sent: Instant) {
    let label = metrics::Label::from_static_parts("abide.outcome", outcome);
    metrics::histogram!("abide.fleet.round_trip.duration", vec![label])
        .record(clock::now().saturating_duration_since(sent));
}

#[cfg(not(feature = "metrics"))]
fn told_metrics(_: &'static str, _: Instant) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys come and go while the store is away.
    #[test]
    fn keys_that_are_gone_do_not_wait_for_the_store() {
        let mut asking = Asking::default();
        let live: Vec<Arc<u32>> = (0..100).map(Arc::new).collect();
        let mut most = 0;
        for number in 0..10_000 {
            asking.add(Arc::downgrade(&Arc::new(number)));
            live.iter().for_each(|cell| asking.add(Arc::downgrade(cell)));
            most = most.max(asking.cells.len());
        }
        assert!(most <= 2 * 100 + FEW, "{most}");
        let waiting = asking.cells.iter().filter_map(Weak::upgrade);
        assert!(waiting.map(|cell| *cell).eq(0..100), "once each, in order");
    }
}
