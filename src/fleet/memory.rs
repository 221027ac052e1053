//! A store in memory, for tests in virtual time: the script's decisions, made with the limiter of one process.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    store::{Answer, Granted, Line, Lost, Reply, Request, Store},
    task::{Connecting, Place},
};
use crate::{
    clock,
    limit::{
        Quota,
        meter::Meter,
        tick::{Epoch, Tick},
        whole,
    },
};

/// As in the script: each asks again about a slow limit within this time, in microseconds.
const SOON: u64 = 2_000_000;

/// As in the script: so many members take no turns.
const FEW: u64 = 4;

/// What all its connections share.
#[derive(Clone, Debug)]
pub(crate) struct Memory(Arc<Mutex<Books>>);

#[derive(Debug)]
pub(crate) struct Books {
    keys: HashMap<String, Book>,
    epoch: Epoch,
    /// Nothing is answered, and nothing connects.
    pub(crate) down: bool,
    /// There and back.
    pub(crate) latency: Duration,
    pub(crate) exchanges: u64,
    pub(crate) connects: u64,
    births: u64,
}

#[derive(Debug, Default)]
struct Book {
    generation: String,
    pause: Tick,
    gap: u64,
    members: HashMap<u64, Tick>,
    lines: HashMap<Box<str>, Kept>,
}

#[derive(Debug)]
struct Kept {
    meter: Meter,
    meta: Box<str>,
    quota: Quota,
}

impl Memory {
    pub(crate) fn new(latency: Duration) -> Self {
        let epoch = Epoch::new(clock::now());
        let books = Books { keys: HashMap::new(), epoch, down: false, latency, exchanges: 0, connects: 0, births: 0 };
        Self(Arc::new(Mutex::new(books)))
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As after a restart: nothing is known any more.
    pub(crate) fn forget(&self) {
        self.books().keys.clear();
    }
}

/// One process's way to it.
#[derive(Clone, Debug)]
pub(crate) struct Member(pub(crate) Memory, pub(crate) u64);

impl Place for Member {
    fn connect(&self, _: Option<String>) -> Connecting {
        let member = self.clone();
        Box::pin(async move {
            let down = {
                let mut books = member.0.books();
                books.connects += 1;
                books.down
            };
            if down { Err(Lost("refused".into())) } else { Ok(Box::new(member) as Box<dyn Store>) }
        })
    }

    fn name(&self) -> String {
        "memory".into()
    }
}

impl Store for Member {
    fn exchange(&self, request: &Request) -> Answer<Reply> {
        let (member, request) = (self.clone(), request.clone());
        Box::pin(async move {
            let half = member.0.books().latency / 2;
            pass(half).await;
            let reply = {
                let mut books = member.0.books();
                if books.down { None } else { Some(books.decide(member.1, &request)) }
            };
            let Some(reply) = reply else { return std::future::pending().await };
            pass(half).await;
            Ok(reply)
        })
    }

    fn ping(&self) -> Answer<()> {
        let latency = self.0.books().latency;
        Box::pin(async move {
            pass(latency).await;
            Ok(())
        })
    }
}

async fn pass(time: Duration) {
    let until: Instant = clock::now() + time;
    clock::sleep_until(until).await;
}

impl Books {
    fn decide(&mut self, member: u64, request: &Request) -> Reply {
        self.exchanges += 1;
        let now = self.epoch.tick(clock::now());
        let births = &mut self.births;
        let book = self.keys.entry(request.key.clone()).or_insert_with(|| {
            *births += 1;
            Book { generation: births.to_string(), ..Book::default() }
        });
        book.members.insert(member, now);
        book.members.retain(|_, seen| now.since(*seen) <= 5_000_000_000);
        let lately = 2 * book.gap + 250_000_000;
        let active = book.members.values().filter(|seen| now.since(**seen) <= lately).count() as u64;
        let part = if u64::from(request.expected) > active { 1 } else { 2 };
        let active = active.max(request.expected.into());
        for line in &request.lines {
            book.keep(line, now);
        }
        if request.pause > 0 {
            book.pause = book.pause.max(now.plus(request.pause * 1_000));
        }
        let has: Vec<u64> = request.lines.iter().map(|line| book.has(line, (active, part), now)).collect();
        let fits = now >= book.pause && request.lines.iter().zip(&has).all(|(line, has)| *has >= line.need);
        let share = request.lines.iter().zip(&has).filter(|(line, _)| line.want > 0);
        let share = share.map(|(line, has)| *has as f64 / line.want as f64).fold(1.0, f64::min);
        let mut reply = Reply {
            generation: book.generation.clone().into(),
            members: u32::try_from(book.members.len()).unwrap_or(u32::MAX),
            pause: book.pause.since(now) / 1_000,
            ..Reply::default()
        };
        for (line, has) in request.lines.iter().zip(has) {
            let part = if fits { line.need.max(has.min(whole(line.want as f64 * share))) } else { 0 };
            let retry = book.grant(line, part, active, now);
            reply.retry = reply.retry.max(retry);
            let left = book.lines[&line.id].meter.guard().map_or(0, |guard| guard.room(0, now));
            let meta = book.lines[&line.id].meta.clone();
            reply.granted.push(Granted { units: part + line.must, slice: now.nanos(), left, meta });
        }
        let named = |id: &str| request.lines.iter().any(|line| &*line.id == id);
        let others = book.lines.iter().filter(|(id, kept)| !kept.meta.is_empty() && !named(id));
        reply.others = others.map(|(id, kept)| (id.clone(), kept.meta.clone())).collect();
        reply
    }
}

impl Book {
    fn keep(&mut self, line: &Line, now: Tick) {
        let terms = &line.terms;
        let burst = u32::try_from(whole(terms.burst)).unwrap_or(u32::MAX);
        let quota = match terms.window {
            true => Quota::window(terms.limit, Duration::from_micros(terms.span)).burst(burst),
            false => {
                Quota::bucket(terms.limit, Duration::from_micros(terms.per * u64::from(terms.limit) / terms.refill))
                    .burst(burst)
            }
        };
        let kept = self.lines.entry(line.id.clone()).or_insert_with(|| Kept {
            meter: Meter::with_level(&quota, line.birth, now),
            meta: line.meta.clone(),
            quota: quota.clone(),
        });
        kept.meter.advance(now, false);
        if line.fresh && kept.quota != quota {
            kept.meter.rerate(&quota);
            (kept.quota, kept.meta) = (quota, line.meta.clone());
        }
        for (slice, units) in &line.returns {
            kept.meter.settle(*units, 0, Tick::from_nanos(*slice), now);
        }
        for (age, units) in &line.owed {
            kept.meter.cut_to_one();
            match kept.meter.guard_mut() {
                Some(guard) => guard.commit(*units, Tick::from_nanos(now.nanos().saturating_sub(age * 1_000))),
                None => kept.meter.adopt_held(*units),
            }
        }
        kept.meter.hold(line.must);
        kept.meter.commit(line.must, now);
        kept.meter.advance(now, false);
    }

    fn has(&self, line: &Line, (active, part): (u64, u64), now: Tick) -> u64 {
        let left = self.lines[&line.id].meter.left(now);
        let refilled = part * line.terms.refill * line.terms.lease / line.terms.per;
        let saved = if part == 2 { left.div_ceil(active) } else { 0 };
        left.min(saved.max(refilled.div_ceil(active)).max(line.need))
    }

    fn grant(&mut self, line: &Line, units: u64, active: u64, now: Tick) -> u64 {
        let Some(kept) = self.lines.get_mut(&line.id) else { return 0 };
        kept.meter.hold(units);
        kept.meter.commit(units, now);
        if units >= line.want {
            return 0;
        }
        let fills = whole(line.terms.burst) * line.terms.per / line.terms.refill / 2;
        let turn = if active <= FEW { 0 } else { (active * line.terms.per / line.terms.refill / 2).min(SOON) };
        self.gap = turn.max(fills.min(line.terms.lease * 9 / 10)) * 1_000;
        let ready = kept.meter.ready_at(0, line.need.max(1), now, false).since(now);
        ready.max(self.gap).max(self.pause.since(now)) / 1_000
    }
}
