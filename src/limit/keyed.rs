//! One set of quotas per key, bounded; keys of which nothing matters any more leave.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU32, Ordering},
    },
    task::Waker,
};

use tokio::time::Instant;

/// A test of all interleavings puts its own lock in the place of std's.
#[cfg(all(test, abide_loom))]
use loom::sync::{Mutex as StateLock, MutexGuard};
#[cfg(not(all(test, abide_loom)))]
use std::sync::{Mutex as StateLock, MutexGuard};

use super::{
    Config, Key, Route,
    learn::{Answer, Book, Rules, pause_of},
    meter::Meter,
    pause::Ramp,
    routes::{Group, GroupId, Routes},
    scope::Scope,
    tick::{SECOND, Tick},
};
use crate::{
    clock,
    fleet::{
        hub::{Hub, Notice},
        lease::Lease,
        share::Due,
    },
    headers::{Hints, QuotaHint, QuotaScope},
};

/// All that is known of one key.
#[derive(Debug)]
pub(crate) struct KeyState {
    pub(crate) scope: Scope,
    pub(super) book: Option<Box<Book>>,
    routes: Option<Box<Routes>>,
    /// It has left the map; whoever holds it looks the key up again.
    gone: bool,
}

/// Which attempt an answer belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) route: Option<Route>,
    /// Its order in the key, and in its route's group.
    pub(crate) order: u64,
    pub(crate) group: Option<(GroupId, u64)>,
    pub(crate) sent: Tick,
    /// When its answer came.
    pub(crate) now: Tick,
}

impl KeyState {
    fn new(config: &Config, now: Tick) -> Self {
        let round_trip = config.hub.as_ref().map(|hub| hub.round_trip());
        let meter = |(place, quota)| match (Meter::full(quota, now), round_trip) {
            (meter, Some(round_trip)) => meter.leased(Lease::configured((place, quota), &config.quotas, round_trip)),
            (meter, None) => meter,
        };
        let meters: Vec<Meter> = config.quotas.iter().enumerate().map(meter).collect();
        let ramp = if config.rules.learn { Ramp::default() } else { Ramp::over() };
        let scope = Scope::new(meters, config.max_in_flight, ramp);
        let scope = round_trip.into_iter().fold(scope, Scope::shared);
        Self { scope, book: None, routes: None, gone: false }
    }

    /// The group that binds a route.
    pub(crate) fn group_of(&mut self, route: Option<Route>, now: Tick) -> Option<GroupId> {
        self.routes.as_mut()?.group_of(route?, now)
    }

    pub(crate) fn group(&mut self, id: GroupId) -> Option<&mut Group> {
        self.routes.as_mut()?.group(id)
    }

    /// Reads an answer: into the key, into the route's group, and into the pause of the one or the other.
    pub(crate) fn observe(&mut self, hints: &Hints, origin: &Origin, rules: Rules, wakes: &mut Vec<Waker>) {
        let now = origin.now;
        let (refused, advertised) = (hints.refused, !hints.quotas.is_empty());
        let answer = Answer { order: origin.order, sent: origin.sent, now, refused, advertised };
        let book = self.book.get_or_insert_default();
        book.hear(&mut self.scope, &answer);
        let of_route = |hint: &&QuotaHint| hint.scope == QuotaScope::Route && origin.route.is_some();
        if rules.learn {
            book.learn(&mut self.scope, hints.quotas.iter().filter(|hint| !of_route(hint)), &answer, rules);
            self.learn_route(hints, origin, &answer, rules);
        }
        self.pause(hints, origin, now, wakes);
        self.scope.pump(now, wakes);
        for group in self.routes.iter_mut().flat_map(|routes| routes.groups()) {
            group.scope.pump(now, wakes);
        }
    }

    fn learn_route(&mut self, hints: &Hints, origin: &Origin, answer: &Answer, rules: Rules) {
        let Some(route) = origin.route else { return };
        let of_route = || hints.quotas.iter().filter(|hint| hint.scope == QuotaScope::Route);
        let Some(id) = GroupId::of(route, of_route()) else {
            if let Some(routes) = &mut self.routes {
                routes.unbind(route);
            }
            return;
        };
        // What was sent before the quota was known: this one, and where nobody tells what is left, all on the way.
        let counted = of_route().all(|hint| hint.remaining.is_some());
        let before = if counted { 1 } else { 1 + self.scope.orders().saturating_sub(answer.order) };
        let Some(group) = self.routes.get_or_insert_default().bind(route, id, (before, answer.now)) else { return };
        // An attempt sent before its route was bound has no order in the group: it counts as the newest.
        let order = origin.group.filter(|(of, _)| *of == id).map_or_else(|| group.scope.orders(), |(_, order)| order);
        let answer = Answer { order, ..*answer };
        group.book.hear(&mut group.scope, &answer);
        group.book.learn(&mut group.scope, of_route(), &answer, rules);
    }

    /// A refusal whose only quotas with nothing left are route quotas pauses those routes; anything else the key.
    fn pause(&mut self, hints: &Hints, origin: &Origin, now: Tick, wakes: &mut Vec<Waker>) {
        let Some(wait) = pause_of(hints) else { return };
        let until = now.plus(wait);
        let mut spent = hints.quotas.iter().filter(|hint| hint.remaining == Some(0.0)).peekable();
        let routes_only = spent.peek().is_some() && spent.all(|hint| hint.scope == QuotaScope::Route);
        let group = self.group_of(origin.route, now).filter(|_| routes_only);
        match group.and_then(|id| self.group(id)) {
            Some(group) => group.scope.pause_until(until, now, wakes),
            None => self.scope.pause_until(until, now, wakes),
        };
    }

    fn rests_at(&self) -> Tick {
        let book = self.book.as_ref().map_or_else(Tick::default, |book| book.rests_at());
        let routes = self.routes.as_ref().map_or_else(Tick::default, |routes| routes.rests_at());
        self.scope.rests_at().max(book).max(routes)
    }
}

/// A key's state behind its lock.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) key: Key,
    pub(crate) config: Arc<Config>,
    /// Attempts on the wire that no slot counts: their end needs no lock.
    pub(crate) loose: AtomicU32,
    state: StateLock<KeyState>,
}

impl Cell {
    pub(crate) fn new(key: Key, config: &Arc<Config>, now: Tick) -> Self {
        Self {
            key,
            config: Arc::clone(config),
            loose: AtomicU32::new(0),
            state: StateLock::new(KeyState::new(config, now)),
        }
    }

    /// Runs pure code under the lock, then wakes whom it names, outside of it.
    pub(crate) fn with<R>(self: &Arc<Self>, run: impl FnOnce(&mut KeyState, &mut Vec<Waker>) -> R) -> R {
        let mut wakes = Vec::new();
        let fleet = self.config.hub.as_deref().map(|hub| (hub, clock::now()));
        let mut state = self.lock();
        if let Some((hub, at)) = fleet {
            self.look_at_store(hub, &mut state, at, &mut wakes);
        }
        let out = run(&mut state, &mut wakes);
        if let Some((hub, at)) = fleet {
            self.tell_task(hub, &mut state, at, &mut wakes);
        }
        drop(state);
        if !wakes.is_empty() {
            wakes.into_iter().for_each(Waker::wake);
        }
        out
    }

    fn look_at_store(&self, hub: &Hub, state: &mut KeyState, at: Instant, wakes: &mut Vec<Waker>) {
        let epoch = self.config.epoch;
        state.set_store(hub.view().state(epoch), hub.view().members(), epoch.tick(at), wakes);
    }

    /// Whether the fleet's task has to look at this key.
    fn tell_task(self: &Arc<Self>, hub: &Hub, state: &mut KeyState, at: Instant, wakes: &mut Vec<Waker>) {
        let epoch = self.config.epoch;
        let Some(due) = state.notice(epoch.tick(at)) else { return };
        let when = if let Due::At(tick) = due { Some(epoch.instant(tick)) } else { None };
        if !hub.notice(Notice { cell: Arc::downgrade(self), at: when }, at) {
            self.look_at_store(hub, state, at, wakes);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, KeyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The map of keys.
#[derive(Debug, Default)]
pub(crate) struct Keyed {
    cells: RwLock<HashMap<Key, Arc<Cell>, BuildHasherDefault<Mixed>>>,
    /// Keys by the second at which they are looked at again.
    due: Mutex<BTreeMap<u64, Vec<Arc<Cell>>>>,
}

/// So many due keys are looked at when a key comes in.
const PER_TOUCH: usize = 4;

/// A key that is busy when it is due is looked at again after so long.
const BUSY: u64 = 10 * SECOND;

impl Keyed {
    /// The cell of a new key; none if all places are taken by keys that still matter.
    fn insert(&self, key: &Key, config: &Arc<Config>, now: Tick) -> Option<Arc<Cell>> {
        self.sweep(now, PER_TOUCH);
        if self.len() >= config.max_keys {
            self.sweep(now, usize::MAX);
        }
        let mut cells = self.cells.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = cells.get(key) {
            return Some(Arc::clone(cell));
        }
        if cells.len() >= config.max_keys {
            return None;
        }
        let cell = Arc::new(Cell::new(*key, config, now));
        cells.insert(*key, Arc::clone(&cell));
        drop(cells);
        self.look_again(Arc::clone(&cell), now.plus(SECOND));
        Some(cell)
    }

    #[inline]
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Cell>> {
        self.cells.read().unwrap_or_else(PoisonError::into_inner).get(key).map(Arc::clone)
    }

    pub(crate) fn len(&self) -> usize {
        self.cells.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Runs pure code on the live state of a key, and gives its cell too; none if there is no place for it.
    pub(crate) fn with<R>(
        &self,
        key: &Key,
        config: &Arc<Config>,
        now: Tick,
        mut run: impl FnMut(&mut KeyState, &mut Vec<Waker>) -> R,
    ) -> Option<(Arc<Cell>, R)> {
        loop {
            let cell = self.get(key).or_else(|| self.insert(key, config, now))?;
            let done = cell.with(|state, wakes| (!state.gone).then(|| run(state, wakes)));
            if let Some(done) = done {
                return Some((cell, done));
            }
        }
    }

    fn look_again(&self, cell: Arc<Cell>, at: Tick) {
        let second = at.nanos() / SECOND + 1;
        self.due.lock().unwrap_or_else(PoisonError::into_inner).entry(second).or_default().push(cell);
    }

    /// Looks at up to `most` keys that are due, in the order in which they are; those of which nothing matters leave.
    pub(crate) fn sweep(&self, now: Tick, most: usize) {
        for _ in 0..most {
            let Some(cell) = self.next_due(now) else { return };
            let rests = {
                let mut state = cell.lock();
                state.scope.advance(now);
                let under_way = cell.loose.load(Ordering::Acquire) > 0;
                let rests = if under_way { Tick::NEVER } else { state.rests_at() };
                state.gone = rests <= now;
                rests
            };
            if rests <= now {
                self.cells.write().unwrap_or_else(PoisonError::into_inner).remove(&cell.key);
            } else {
                self.look_again(cell, if rests == Tick::NEVER { now.plus(BUSY) } else { rests });
            }
        }
    }

    fn next_due(&self, now: Tick) -> Option<Arc<Cell>> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let mut first = due.first_entry().filter(|first| *first.key() <= now.nanos() / SECOND)?;
        let cell = first.get_mut().pop();
        if first.get().is_empty() {
            first.remove();
        }
        cell
    }
}

/// A key is a keyed hash already: its bits are used as they are.
#[derive(Debug, Default)]
pub(crate) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, bits: u64) {
        self.0 = bits;
    }
}
