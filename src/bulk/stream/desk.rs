//! The task between a run and its stream: it reads rows when the run has room, gives signs of life for those that the
//! run has, acknowledges and hands back; and comes back when the store was away.
//!
//! It ends when the run and all its rows are gone.

use std::{
    collections::HashSet,
    io,
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use redis::{RedisError, RedisResult};
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender},
        oneshot,
    },
    time::Instant,
};

use super::{
    News, as_io,
    group::{AT_ONCE, Group, Taken, is_final, is_refusal},
    job,
};
use crate::{
    Backoff,
    bulk::{
        Job,
        claim::{Claim, Fate, Mark, Room, Settled, Told},
    },
    clock,
    fleet::link::Link,
};

/// See the module.
pub(super) struct Desk {
    pub(super) group: Group,
    pub(super) claim_after: Duration,
    pub(super) follow: bool,
    pub(super) news: Option<News>,
    pub(super) trouble: Arc<OnceLock<io::Error>>,
    pub(super) room: Room,
    pub(super) told: UnboundedReceiver<Told>,
    pub(super) tell: WeakUnboundedSender<Told>,
    /// `None`: no more rows are read.
    pub(super) jobs: Option<UnboundedSender<Job>>,
    pub(super) wants: tokio::sync::mpsc::Receiver<()>,
    pub(super) link: Option<Link>,
    pub(super) state: State,
}

/// What it remembers.
pub(super) struct State {
    /// Rows of this worker that are not settled at the store.
    held: HashSet<String>,
    marks: Vec<(Mark, oneshot::Sender<bool>)>,
    done: Vec<String>,
    back: Vec<(String, u32)>,
    unknown: Vec<String>,
    wanted: bool,
    /// All that could tell something is gone.
    over: bool,
    /// When it gives up settling, and whether it need not wait for that.
    give_up: Option<Instant>,
    hopeless: bool,
    /// The last connection broke: an answer that named rows may be lost.
    recover: bool,
    /// The next sign of life, look for rows without a worker, and look at a stream that was at its end.
    beat_at: Instant,
    take_at: Instant,
    look_at: Instant,
    /// Where among the claimed rows that look goes on.
    take_from: Option<String>,
    /// Before it the dead are not told from those who were cut off as well.
    dead_from: Instant,
    looks: u32,
    connect_at: Instant,
    failures: u32,
    away: bool,
    largest: usize,
    /// There was a row for this worker.
    fed: bool,
}

enum Event {
    Told(Told),
    Over,
    Wanted,
    Due,
}

/// Between looks at a stream that is at its end.
const LOOKS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Between connections.
const CONNECTIONS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// How long the end of a run waits for a store that is away.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of rows in one answer, roughly, and rows.
const BYTES: usize = 8 << 20;
const ROWS: usize = 256;

impl State {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            held: HashSet::new(),
            marks: Vec::new(),
            done: Vec::new(),
            back: Vec::new(),
            unknown: Vec::new(),
            wanted: false,
            over: false,
            give_up: None,
            hopeless: false,
            recover: false,
            beat_at: now,
            take_at: now,
            look_at: now,
            take_from: None,
            dead_from: now,
            looks: 0,
            connect_at: now,
            failures: 0,
            away: false,
            largest: 0,
            fed: false,
        }
    }

    fn tell(&mut self, told: Told) {
        let Settled { entry, fate } = match told {
            Told::Settled(settled) => settled,
            Told::Mark(mark, done) => return self.marks.push((mark, done)),
        };
        match fate {
            Fate::Done => self.done.push(entry),
            Fate::Unknown => self.unknown.push(entry),
            Fate::Back { deliveries } => self.back.push((entry, deliveries)),
        }
    }

    fn is_settled(&self) -> bool {
        self.done.is_empty() && self.back.is_empty() && self.unknown.is_empty()
    }
}

impl Desk {
    /// Rows that could not be settled at the store: others will find them there.
    pub(super) async fn run(mut self) -> usize {
        loop {
            match self.event().await {
                Event::Told(told) => self.state.tell(told),
                Event::Over => self.state.over = true,
                Event::Wanted => self.state.wanted = true,
                Event::Due => {}
            }
            while let Ok(told) = self.told.try_recv() {
                self.state.tell(told);
            }
            let now = clock::now();
            if self.link.is_none() && now >= self.state.connect_at {
                self.connect().await;
            }
            if let Some(mut link) = self.link.take() {
                match self.turn(&mut link).await {
                    Ok(()) => self.served(link),
                    Err(error) => self.lose(&error, is_final(&error)),
                }
            }
            if self.state.over && self.is_finished() {
                return self.state.held.len();
            }
        }
    }

    /// Whether nothing is left that could be settled.
    fn is_finished(&mut self) -> bool {
        let now = clock::now();
        let give_up = *self.state.give_up.get_or_insert(now + PATIENCE);
        self.state.is_settled() && self.link.is_some() || now >= give_up || self.state.hopeless
    }

    /// Whether somebody is there for more rows.
    fn is_read(&self) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| !jobs.is_closed())
    }

    async fn event(&mut self) -> Event {
        let state = &self.state;
        let mut until = if self.link.is_some() { state.beat_at } else { state.connect_at };
        if self.link.is_some() && state.wanted && self.is_read() {
            until = until.min(state.look_at);
        }
        let (over, wanted, told, wants) = (state.over, state.wanted, &mut self.told, &mut self.wants);
        let event = std::future::poll_fn(|cx| {
            if !over && let Poll::Ready(told) = told.poll_recv(cx) {
                return Poll::Ready(told.map_or(Event::Over, Event::Told));
            }
            if !wanted && let Poll::Ready(Some(())) = wants.poll_recv(cx) {
                return Poll::Ready(Event::Wanted);
            }
            Poll::Pending
        });
        clock::before(Some(until), event).await.unwrap_or(Event::Due)
    }

    /// What is due, in the order of its weight.
    async fn turn(&mut self, link: &mut Link) -> RedisResult<()> {
        let now = clock::now();
        self.mark(link).await?;
        if self.settle(link).await? && !self.follow {
            // The stream may be done now.
            self.state.look_at = now;
        }
        if now >= self.state.beat_at {
            self.beat(link).await?;
            self.state.beat_at = now + self.claim_after / 4;
        }
        if self.state.over {
            return if self.state.is_settled() { self.group.leave(link).await } else { Ok(()) };
        }
        match self.state.wanted && self.is_read() && now >= self.state.look_at {
            true => self.fetch(link, now).await,
            false => Ok(()),
        }
    }

    /// Tells the store of rows that are about to be sent.
    async fn mark(&mut self, link: &mut Link) -> RedisResult<()> {
        while !self.state.marks.is_empty() {
            let some = self.state.marks.len().min(AT_ONCE);
            let lost = self.group.mark(link, self.state.marks[..some].iter().map(|(mark, _)| mark)).await?;
            for (mark, done) in self.state.marks.drain(..some) {
                // Nobody waits for it if the run stopped.
                let _ = done.send(!lost.contains(&mark.entry));
            }
        }
        Ok(())
    }

    /// Tells the store what became of rows; whether there were any.
    async fn settle(&mut self, link: &mut Link) -> RedisResult<bool> {
        let state = &mut self.state;
        let settled = !state.is_settled();
        while !state.done.is_empty() {
            let some = state.done.len().min(AT_ONCE);
            self.group.acknowledge(link, &state.done[..some]).await?;
            for entry in state.done.drain(..some) {
                state.held.remove(&entry);
            }
        }
        while !state.back.is_empty() {
            let some = state.back.len().min(AT_ONCE);
            self.group.hand_back(link, &state.back[..some]).await?;
            for (entry, _) in state.back.drain(..some) {
                state.held.remove(&entry);
            }
        }
        while let Some(entry) = state.unknown.first() {
            self.group.set_aside(link, entry).await?;
            let entry = state.unknown.remove(0);
            state.held.remove(&entry);
        }
        Ok(settled)
    }

    async fn beat(&mut self, link: &mut Link) -> RedisResult<()> {
        let held: Vec<String> = self.state.held.iter().cloned().collect();
        for some in held.chunks(AT_ONCE) {
            for entry in self.group.beat(link, some).await? {
                tracing::warn!(target: "abide", entry, "another worker has taken a row over");
                self.state.held.remove(&entry);
            }
        }
        Ok(())
    }

    /// Reads rows, as many as there is room for.
    async fn fetch(&mut self, link: &mut Link, now: Instant) -> RedisResult<()> {
        let most = self.room.rows().clamp(1, ROWS).min(BYTES / self.state.largest.max(1)).max(1);
        let mut found = Vec::new();
        if self.state.recover {
            found = self.group.orphans(link, &self.state.held).await?;
            self.state.recover = false;
        }
        if now >= self.state.take_at && found.len() < most {
            found.extend(self.take(link, most - found.len(), now).await?);
        }
        if found.len() < most {
            let read = self.group.read(link, most - found.len()).await;
            // Rows that are here already must not be forgotten.
            match read {
                Ok(read) => found.extend(read),
                Err(error) => {
                    self.deliver(found);
                    return Err(error);
                }
            }
        }
        if !found.is_empty() {
            self.deliver(found);
            return Ok(());
        }
        if !self.follow && self.group.open(link).await? == 0 {
            self.jobs = None;
            if !self.state.fed {
                let Group { address, stream, name, .. } = &self.group;
                self.say(&format!("{address}: the stream {stream} has nothing left for the group {name}"));
            }
            return Ok(());
        }
        let pause = Backoff::equal_jitter(LOOKS.0, LOOKS.1).wait(self.state.looks, None, &mut rand::rng());
        self.state.looks = self.state.looks.saturating_add(1);
        (self.state.look_at, self.state.take_at) = (now + pause, now + pause);
        Ok(())
    }

    /// Takes rows that nobody works on; none only when it looked at all that are claimed.
    async fn take(&mut self, link: &mut Link, most: usize, now: Instant) -> RedisResult<Vec<Taken>> {
        let idle = (now >= self.state.dead_from).then_some(self.claim_after);
        loop {
            let (taken, next) = self.group.take(link, most, idle, self.state.take_from.as_deref()).await?;
            self.state.take_from = next;
            if !taken.is_empty() {
                return Ok(taken);
            }
            if self.state.take_from.is_none() {
                self.state.take_at = now + self.claim_after / 4;
                return Ok(taken);
            }
        }
    }

    fn deliver(&mut self, found: Vec<Taken>) {
        if found.is_empty() {
            return;
        }
        // Asked before these were there.
        while self.wants.try_recv().is_ok() {}
        (self.state.wanted, self.state.looks, self.state.fed) = (false, 0, true);
        self.state.largest = found.iter().map(|taken| taken.row.as_ref().map_or(0, Vec::len)).max().unwrap_or(0);
        for taken in found {
            // Without a run they go back when this ends.
            let (Some(tell), Some(jobs)) = (self.tell.upgrade(), &self.jobs) else { continue };
            self.state.held.insert(taken.entry.clone());
            let claim = Claim::new(taken.entry.clone(), taken.before, taken.idle, &self.room, tell);
            // Dropped with its claim if the run stops just now: then it goes back.
            let _ = jobs.send(job(&self.group.stream, taken, claim));
        }
    }

    async fn connect(&mut self) {
        match self.group.connect().await {
            Ok(link) => {
                let now = clock::now();
                let state = &mut self.state;
                (state.recover, state.beat_at) = (true, now);
                // Others come back as well, and give signs of life as soon as they are here.
                state.dead_from = now + self.claim_after / 2;
                self.link = Some(link);
            }
            // One that has no room for a connection may have it later.
            Err(error) => self.lose(&error, is_refusal(&error)),
        }
    }

    /// The store did what it was asked, and has not only let somebody in.
    fn served(&mut self, link: Link) {
        (self.link, self.state.failures) = (Some(link), 0);
        if std::mem::take(&mut self.state.away) {
            self.warn(&format!("the store {} is back", self.group.address));
        }
    }

    /// Something went wrong: it is over with the stream, or it goes on later.
    fn lose(&mut self, error: &RedisError, for_good: bool) {
        if for_good {
            // Rows that wait for a mark are not sent.
            self.state.marks.clear();
            // Once more it tries to settle what is done.
            self.state.hopeless = self.trouble.set(as_io(&self.group, error)).is_err();
            self.jobs = None;
        } else if !std::mem::replace(&mut self.state.away, true) {
            self.warn(&format!("the store {} is away: {error}; rows under way go on", self.group.address));
        }
        let backoff = Backoff::equal_jitter(CONNECTIONS.0, CONNECTIONS.1);
        let pause = backoff.wait(self.state.failures, None, &mut rand::rng());
        self.state.failures = self.state.failures.saturating_add(1);
        self.state.connect_at = clock::now() + pause;
    }

    /// Of what is wrong, or right again.
    fn warn(&self, text: &str) {
        tracing::warn!(target: "abide", "{text}");
        self.say(text);
    }

    fn say(&self, text: &str) {
        if let Some(news) = &self.news {
            news(text);
        }
    }
}
