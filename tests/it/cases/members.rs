//! Plays a case of mode `redis`: starts the store, the processes and what stands between them, and notes what comes of
//! it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

use abide::{
    Backoff, Key, Limiter, Quota,
    fleet::{Fleet, StoreLoss},
};
use tokio::{
    runtime,
    sync::{Mutex as Lock, oneshot, watch},
    task::JoinSet,
    time::{Instant, timeout},
};
use tracing::{Event as Line, Level, Metadata, Subscriber, field, span};

use super::redis::{Event, FleetConfig, OnDown, RedisCase, Topology};
use crate::support::{
    clock::{self, as_ms, ms},
    proxy::Proxy,
    redis::Redis,
};

/// What happened, in milliseconds from the first attempts.
pub(super) struct Played {
    pub(super) problems: Vec<String>,
    pub(super) admitted: Vec<Admitted>,
    /// How long each attempt took.
    pub(super) waits: Vec<f64>,
    pub(super) errors: Vec<String>,
    pub(super) members: Vec<Seen>,
    /// Each process has a proxy of its own.
    is_apart: bool,
    /// Of each proxy.
    passed: Vec<Passed>,
    /// Keys in the store when the load ended, and what they had to live.
    pub(super) keys: Vec<(String, i64)>,
    /// When it had been idle.
    pub(super) left: Vec<(String, i64)>,
    /// Of the keys of each limiter key.
    pub(super) slots: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Admitted {
    pub(super) key: usize,
    pub(super) at_ms: f64,
}

/// What one process showed.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Its warnings and errors.
    pub(super) lines: Vec<(f64, String)>,
    pub(super) is_killed: bool,
}

#[derive(Clone, Debug)]
struct Passed {
    connects: Vec<f64>,
    answers: Vec<f64>,
}

impl Played {
    pub(super) fn of_key(&self, key: usize) -> Vec<f64> {
        self.admitted.iter().filter(|admitted| admitted.key == key).map(|admitted| admitted.at_ms).collect()
    }

    /// Where nobody can tell processes apart, those to any.
    pub(super) fn answers_to(&self, member: usize) -> impl Iterator<Item = f64> {
        let apart = self.is_apart;
        let own = self.passed.iter().enumerate().filter(move |(number, _)| !apart || *number == member);
        own.flat_map(|(_, passed)| passed.answers.iter().copied())
    }

    pub(super) fn connects(&self) -> impl Iterator<Item = f64> {
        self.passed.iter().flat_map(|passed| passed.connects.iter().copied())
    }

    /// Of each process; where nobody can tell them apart, the mean.
    pub(super) fn connects_of_one(&self) -> impl Iterator<Item = usize> {
        let mean = self.connects().count().div_ceil(self.members.len());
        let each = self.passed.iter().map(|passed| passed.connects.len());
        if self.is_apart { each.collect() } else { vec![mean] }.into_iter()
    }
}

impl fmt::Debug for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slowest = self.waits.iter().copied().fold(0.0, f64::max);
        write!(f, "{} of {} admitted, the slowest in {slowest:.1} ms; ", self.admitted.len(), self.waits.len())?;
        let (connects, answers) = (self.connects().count(), self.passed.iter().map(|passed| passed.answers.len()));
        write!(f, "{connects} connects, {} answers; {} keys at the end", answers.sum::<usize>(), self.keys.len())?;
        for (number, member) in self.members.iter().enumerate().filter(|(_, member)| !member.lines.is_empty()) {
            write!(f, "; process {number}: {:?}", member.lines)?;
        }
        Ok(())
    }
}

/// An answer that comes so long after an attempt's deadline is none.
const LATE: u64 = 1_000;

pub(super) async fn play(case: &RedisCase) -> Result<Played, String> {
    let stage = Stage::start(case).await?;
    let (go, start) = watch::channel(None);
    let log = Arc::new(Log::default());
    let mut members = Vec::new();
    for number in 0..case.processes {
        members.push(Member::start(Plan::of(case, stage.url(number), number)?, start.clone(), Arc::clone(&log)));
    }
    let mut problems = Vec::new();
    for member in &mut members {
        problems.extend((&mut member.ready).await.unwrap_or_else(|_| Err("a process has died".into())).err());
    }
    let began = clock::now() + ms(20);
    go.send_replace(Some(began));
    let members = Arc::new(Lock::new(members));
    let stage = Arc::new(stage);
    let mut events = JoinSet::new();
    for event in case.store.events.iter().copied() {
        let (stage, members) = (Arc::clone(&stage), Arc::clone(&members));
        events.spawn(async move {
            clock::sleep_until(began + ms(event.at_ms())).await;
            stage.happen(event, &members).await
        });
    }
    let over = began + ms(case.load.duration_ms);
    clock::sleep_until(over + ms(200)).await;
    problems.extend(events.join_all().await.into_iter().flatten());
    let redis = stage.redis.lock().await;
    let keys = redis.keys();
    let slots = if case.by_slot() { slots(&redis, &keys)? } else { BTreeMap::new() };
    let mut left = Vec::new();
    if let Some(idle) = case.idle_ms() {
        clock::sleep_until(over + ms(idle)).await;
        left = redis.keys();
    }
    let seen = std::mem::take(&mut *members.lock().await).into_iter().map(|member| member.end(began)).collect();
    let log = log.taken();
    let admitted = log.admitted.iter().map(|(key, at)| Admitted { key: *key, at_ms: since(began, *at) }).collect();
    let passed = stage.proxies.iter().map(|proxy| Passed {
        connects: proxy.connects().into_iter().map(|at| since(began, at)).collect(),
        answers: proxy.answers().into_iter().map(|at| since(began, at)).collect(),
    });
    Ok(Played {
        problems,
        admitted,
        waits: log.waits,
        errors: log.errors,
        members: seen,
        is_apart: stage.url.is_none(),
        passed: passed.collect(),
        keys,
        left,
        slots,
    })
}

/// Before the start it is below zero.
fn since(began: Instant, at: Instant) -> f64 {
    as_ms(at.saturating_duration_since(began)) - as_ms(began.saturating_duration_since(at))
}

fn slots(redis: &Redis, keys: &[(String, i64)]) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let mut slots: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (key, _) in keys {
        // The SHA-256 of the limiter key's text.
        let digits = |part: &&str| part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let of = key.split(|letter: char| !letter.is_ascii_alphanumeric()).find(digits);
        let of = of.ok_or_else(|| format!("the store's key {key:?} names no limiter key"))?;
        slots.entry(of.to_owned()).or_default().insert(redis.cli(&["CLUSTER", "KEYSLOT", key]));
    }
    Ok(slots)
}

/// The store, and what stands before it.
struct Stage {
    redis: Lock<Redis>,
    proxies: Vec<Proxy>,
    /// As the members take it; none if each has a proxy of its own.
    url: Option<String>,
}

impl Stage {
    async fn start(case: &RedisCase) -> Result<Self, String> {
        let spec = &case.store;
        if spec.nodes.is_some_and(|nodes| nodes == 0) || (spec.nodes.is_some() && spec.topology != Topology::Cluster) {
            return Err("nodes are those of a cluster".into());
        }
        let count = match spec.topology {
            Topology::Standalone => case.processes,
            Topology::Cluster => spec.nodes.unwrap_or(3).into(),
            Topology::Sentinel => 1,
        };
        let mut proxies = Vec::new();
        for _ in 0..count {
            proxies.push(Proxy::start().await);
        }
        let ports: Vec<u16> = proxies.iter().map(Proxy::port).collect();
        let (redis, url) = match spec.topology {
            Topology::Standalone => (Redis::standalone().await, None),
            Topology::Cluster => {
                let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
                let announced: Vec<Option<u16>> = ports.iter().copied().map(Some).collect();
                (Redis::cluster_behind(&announced).await, Some(format!("redis+cluster://{}", hosts.join(","))))
            }
            Topology::Sentinel => {
                let redis = Redis::sentinel_before(|port| {
                    proxies[0].lead_to(port);
                    ports[0]
                });
                let redis = redis.await;
                let url = redis.url();
                (redis, Some(url))
            }
        };
        let servers = redis.ports();
        for (proxy, server) in proxies.iter().zip(servers.iter().cycle()) {
            proxy.lead_to(*server);
        }
        Ok(Self { redis: Lock::new(redis), proxies, url })
    }

    fn url(&self, member: usize) -> String {
        self.url.clone().unwrap_or_else(|| format!("redis://127.0.0.1:{}", self.proxies[member].port()))
    }

    /// Gives what is wrong with the event.
    async fn happen(&self, event: Event, members: &Lock<Vec<Member>>) -> Option<String> {
        match event {
            Event::ScriptFlush { .. } => drop(self.redis.lock().await.cli_each(&["SCRIPT", "FLUSH"])),
            Event::Flushall { .. } => drop(self.redis.lock().await.cli_each(&["FLUSHALL"])),
            Event::Restart { down_ms: away, .. } | Event::Down { for_ms: away, .. } => {
                self.redis.lock().await.restart(ms(away)).await;
            }
            Event::Hang { for_ms, .. } => {
                self.redis.lock().await.pause();
                clock::sleep(ms(for_ms)).await;
                self.redis.lock().await.resume();
            }
            Event::CutConnectionMidCommand { .. } => self.proxies.iter().for_each(Proxy::cut),
            Event::KillProcess { process, .. } => match members.lock().await.get_mut(process) {
                Some(member) => member.kill(),
                None => return Some(format!("there is no process {process}")),
            },
        }
        None
    }
}

/// What one process does.
struct Plan {
    number: usize,
    fleet: abide::fleet::FleetBuilder,
    quota: Quota,
    keys: usize,
    rps: u32,
    load_ms: u64,
    patience_ms: f64,
}

impl Plan {
    fn of(case: &RedisCase, url: String, number: usize) -> Result<Self, String> {
        let FleetConfig { limiter, keys, .. } = &case.config;
        let per = ms(limiter.per_ms);
        let mut quota =
            if limiter.window { Quota::window(limiter.rate, per) } else { Quota::bucket(limiter.rate, per) };
        if let Some(burst) = limiter.burst {
            quota = quota.burst(burst);
        }
        let (rps, load_ms) = (case.load.per_process_rps, case.load.duration_ms);
        let patience_ms = case.patience_ms().unwrap_or(f64::MAX);
        let (fleet, keys) = (fleet(&case.config, &url)?, keys.unwrap_or(1));
        Ok(Self { number, fleet, quota, keys, rps, load_ms, patience_ms })
    }
}

fn fleet(config: &FleetConfig, url: &str) -> Result<abide::fleet::FleetBuilder, String> {
    let mut fleet = Fleet::redis(url);
    if let Some(timeout) = config.redis_timeout_ms {
        fleet = fleet.timeout(ms(timeout));
    }
    if let Some(reconnect) = config.redis_reconnect {
        fleet = fleet.reconnect(Backoff::full_jitter(ms(reconnect.base_ms), ms(reconnect.cap_ms)));
    }
    Ok(match (config.on_redis_down, config.fleet_size) {
        (None, _) => fleet,
        (Some(OnDown::LocalShare), Some(size)) => fleet.on_store_loss(StoreLoss::LocalShare(size)),
        (Some(OnDown::LocalShare), None) => return Err("local_share without fleet_size".into()),
        (Some(OnDown::LiveShare), _) => fleet.on_store_loss(StoreLoss::LiveShare),
        (Some(OnDown::Closed), _) => fleet.on_store_loss(StoreLoss::Closed),
        (Some(OnDown::Open), _) => fleet.on_store_loss(StoreLoss::Open),
    })
}

/// What all processes note.
#[derive(Default)]
struct Log(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    admitted: Vec<(usize, Instant)>,
    waits: Vec<f64>,
    errors: Vec<String>,
}

impl Log {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap()
    }

    fn taken(&self) -> Noted {
        std::mem::take(&mut *self.noted())
    }
}

/// A process: a thread with its runtime, its fleet and its log.
struct Member {
    ready: oneshot::Receiver<Result<(), String>>,
    /// Its end without a word: the runtime is left with all that it had.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    is_killed: bool,
    lines: Lines,
}

impl Member {
    fn start(plan: Plan, start: watch::Receiver<Option<Instant>>, log: Arc<Log>) -> Self {
        let ((up, ready), (stop, stopped), lines) = (oneshot::channel(), oneshot::channel(), Lines::default());
        let own = lines.clone();
        let thread = thread::spawn(move || {
            let _guard = tracing::subscriber::set_default(own);
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = live(plan, up, start, log) => {}
                }
            });
            runtime.shutdown_background();
        });
        Self { ready, stop: Some(stop), thread: Some(thread), is_killed: false, lines }
    }

    fn kill(&mut self) {
        self.is_killed = true;
        self.stop.take();
    }

    fn end(mut self, began: Instant) -> Seen {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        let lines = self.lines.0.lock().unwrap();
        let lines = lines.iter().map(|(at, line)| (since(began, *at), line.clone())).collect();
        Seen { lines, is_killed: self.is_killed }
    }
}

/// Connects, makes its attempts, and is there until it is stopped.
async fn live(
    plan: Plan,
    ready: oneshot::Sender<Result<(), String>>,
    mut start: watch::Receiver<Option<Instant>>,
    log: Arc<Log>,
) {
    let built = match plan.fleet.connect().await {
        Ok(fleet) => Limiter::builder().quota(plan.quota).fleet(fleet).build(),
        Err(error) => Err(error),
    };
    let limiter = match built {
        Ok(limiter) => limiter,
        Err(error) => return drop(ready.send(Err(format!("a process does not start: {error}")))),
    };
    let _ = ready.send(Ok(()));
    let Ok(began) = start.wait_for(Option::is_some).await.map(|began| began.unwrap_or_else(clock::now)) else { return };
    let keys: Vec<Key> = (0..plan.keys).map(|key| Key::from(format!("key {key}"))).collect();
    let mut calls = JoinSet::new();
    let over = began + ms(plan.load_ms);
    for number in 0..u64::from(plan.rps) * plan.load_ms / 1_000 {
        clock::sleep_until(began + std::time::Duration::from_nanos(number * 1_000_000_000 / u64::from(plan.rps))).await;
        let patience = ms(clock::whole_ms(plan.patience_ms.min(1e9)));
        let deadline = over.min(clock::now() + patience);
        let place = (plan.number + usize::try_from(number).unwrap_or_default()) % plan.keys;
        calls.spawn(attempt(limiter.clone(), (place, keys[place]), deadline, Arc::clone(&log)));
        while calls.try_join_next().is_some() {}
    }
    calls.join_all().await;
    std::future::pending::<()>().await;
}

async fn attempt(limiter: Limiter, (place, key): (usize, Key), deadline: Instant, log: Arc<Log>) {
    let asked = clock::now();
    let outcome = timeout(deadline + ms(LATE) - asked, limiter.acquire(&key, 1, Some(deadline))).await;
    let mut noted = log.noted();
    noted.waits.push(as_ms(clock::now() - asked));
    match outcome {
        Ok(Ok(mut permit)) => {
            permit.commit();
            noted.admitted.push((place, clock::now()));
        }
        Ok(Err(refused)) if refused.is_never() || refused.is_full() => noted.errors.push(refused.to_string()),
        Ok(Err(_)) => {}
        Err(_) => noted.errors.push("no answer".into()),
    }
}

/// Keeps warnings and errors of abide on its thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Instant, String)>>>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "abide" && *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Line<'_>) {
        let mut text = String::new();
        event.record(&mut |field: &field::Field, value: &dyn fmt::Debug| text += &format!("{field}={value:?} "));
        self.0.lock().unwrap().push((clock::now(), text));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
