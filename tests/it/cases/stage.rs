//! The stage on which limiter cases are played: limiters, waiters, threads, and a clock, virtual or real.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, JoinHandle},
    time::Duration,
};

use abide::{Key, Limiter, Permit, Refused};
use tokio::{runtime::Handle, task::AbortHandle, time::Instant};

use super::{
    client::quota,
    limiter::{Ask, Crowd, LimiterCase, Op, Storm},
};
use crate::support::clock;

/// Somebody in the queue.
type Waiting = Pin<Box<dyn Future<Output = Result<Permit, Refused>> + Send>>;

/// The key of operations that name none.
const KEY: &str = "case";

/// How long a crowd may take after the last operation.
const PATIENCE: Duration = Duration::from_secs(60);

/// What happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Played {
    /// By id, in milliseconds.
    pub(crate) granted: BTreeMap<String, f64>,
    /// Grants of storms, tries and waiters.
    pub(crate) crowd: Vec<f64>,
    /// How many of a crowd asked.
    pub(crate) wanted: usize,
    /// None where the system does not tell.
    pub(crate) cpu_ms: Option<f64>,
    pub(crate) tracked_keys: usize,
    pub(crate) problems: Vec<String>,
}

/// Plays a case in a runtime of its own.
pub(crate) fn play(case: &LimiterCase) -> Result<Played, String> {
    let runtime = if case.clock.real {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name(THREAD).enable_time().build()
    } else {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()
    };
    let runtime = runtime.map_err(|error| error.to_string())?;
    let stage = {
        // Its limiters read this runtime's clock from the first.
        let _context = runtime.enter();
        Arc::new(Stage::new(case)?)
    };
    let script = case.ops.clone();
    let playing = Arc::clone(&stage);
    // On a worker, so that its time is counted with theirs.
    let driver = runtime.spawn(async move {
        playing.start();
        let mut props = Props::default();
        for op in script {
            clock::sleep_until(playing.at(op.at_ms())).await;
            props.perform(&playing, op).await;
            settle().await;
        }
        props.finish(&playing).await;
    });
    runtime.block_on(driver).map_err(|error| format!("the stage broke: {error}"))?;
    drop(runtime);
    Ok(stage.seen().clone())
}

/// Lets everything that is due run, without moving a virtual clock.
async fn settle() {
    for _ in 0..16 {
        tokio::task::yield_now().await;
    }
}

/// What all parts of a case share.
struct Stage {
    limiter: Limiter,
    limiters: HashMap<String, Limiter>,
    real: bool,
    /// Whoever is granted later than this should not be granted at all.
    until_ms: u64,
    /// Those whose permits are given back later.
    refunded: HashSet<String>,
    began: Mutex<Option<Instant>>,
    seen: Mutex<Played>,
    held: Mutex<HashMap<String, Permit>>,
}

impl Stage {
    fn new(case: &LimiterCase) -> Result<Self, String> {
        let limiter = |bucket| {
            let limiter = Limiter::builder().quota(quota(bucket)).build();
            limiter.map_err(|error| format!("no limiter: {error}"))
        };
        let limiters = case.config.limiters.iter().map(|(name, bucket)| Ok((name.clone(), limiter(*bucket)?)));
        let refunded = case.ops.iter().filter_map(|op| match op {
            Op::Refund(named) => Some(named.id.clone()),
            _ => None,
        });
        Ok(Self {
            limiter: limiter(case.config.limiter)?,
            limiters: limiters.collect::<Result<_, String>>()?,
            real: case.clock.real,
            until_ms: until_ms(case),
            refunded: refunded.collect(),
            began: Mutex::default(),
            seen: Mutex::default(),
            held: Mutex::default(),
        })
    }

    fn start(&self) {
        *self.began.lock().unwrap() = Some(clock::now());
    }

    fn at(&self, ms: u64) -> Instant {
        self.began.lock().unwrap().unwrap_or_else(clock::now) + clock::ms(ms)
    }

    fn now_ms(&self) -> f64 {
        clock::as_ms(clock::now() - self.at(0))
    }

    fn seen(&self) -> MutexGuard<'_, Played> {
        self.seen.lock().unwrap()
    }

    fn misses_some(&self) -> bool {
        let seen = self.seen();
        seen.crowd.len() < seen.wanted
    }

    fn limiter(&self, name: Option<&str>) -> Limiter {
        let Some(name) = name else { return self.limiter.clone() };
        self.limiters.get(name).cloned().unwrap_or_else(|| {
            self.seen().problems.push(format!("no limiter {name:?}"));
            self.limiter.clone()
        })
    }

    /// A grant to a named one: committed at once, or held until it is given back.
    fn granted(&self, id: &str, permit: Result<Permit, Refused>) {
        let Ok(mut permit) = permit else { return };
        let at = self.now_ms();
        self.seen().granted.insert(id.to_owned(), at);
        if self.refunded.contains(id) {
            self.held.lock().unwrap().insert(id.to_owned(), permit);
        } else {
            permit.commit();
        }
    }

    /// A grant to one of a crowd.
    fn granted_in_crowd(&self, permit: Result<Permit, Refused>) {
        if let Ok(mut permit) = permit {
            permit.commit();
            let at = self.now_ms();
            self.seen().crowd.push(at);
        }
    }

    fn acquire(&self, ask: &Ask) -> impl Future<Output = Result<Permit, Refused>> + Send + 'static {
        let limiter = self.limiter(ask.limiter.as_deref());
        let key = Key::from(ask.key.as_deref().unwrap_or(KEY));
        let cost = ask.cost.unwrap_or(1);
        let deadline = ask.deadline_ms.map(|deadline| clock::now() + clock::ms(deadline));
        async move { limiter.acquire(&key, cost, deadline).await }
    }
}

/// Well after the last operation and the last grant that is expected; a virtual clock costs nothing.
fn until_ms(case: &LimiterCase) -> u64 {
    let operations = case.ops.iter().map(Op::at_ms);
    let grants = case.expect.granted_ms.values().map(|(_, max)| clock::whole_ms(*max));
    let last = operations.chain(grants).max().unwrap_or(0);
    last + if case.clock.real { 1000 } else { 60_000 }
}

/// What an operation leaves behind for later ones.
#[derive(Default)]
struct Props {
    waiters: HashMap<String, AbortHandle>,
    unpolled: HashMap<String, Waiting>,
    threads: Vec<JoinHandle<()>>,
    cpu: Arc<Mutex<f64>>,
}

impl Props {
    async fn perform(&mut self, stage: &Arc<Stage>, op: Op) {
        match op {
            Op::Acquire(ask) => {
                let (waiting, stage) = (stage.acquire(&ask), Arc::clone(stage));
                let id = ask.id.clone();
                let task = tokio::spawn(async move { stage.granted(&ask.id, waiting.await) });
                self.waiters.insert(id, task.abort_handle());
            }
            Op::AcquireUnpolled(ask) => {
                let mut waiting: Waiting = Box::pin(stage.acquire(&ask));
                match futures_util::poll!(waiting.as_mut()) {
                    std::task::Poll::Ready(permit) => stage.granted(&ask.id, permit),
                    std::task::Poll::Pending => drop(self.unpolled.insert(ask.id, waiting)),
                }
            }
            Op::Try(ask) => {
                let limiter = stage.limiter(ask.limiter.as_deref());
                let key = Key::from(ask.key.as_deref().unwrap_or(KEY));
                stage.granted(&ask.id, limiter.try_acquire(&key, ask.cost.unwrap_or(1)));
            }
            Op::Cancel(named) => {
                let waiter = self.waiters.remove(&named.id);
                let unpolled = self.unpolled.remove(&named.id).is_some();
                match waiter {
                    Some(waiter) => waiter.abort(),
                    None if unpolled => {}
                    None => stage.seen().problems.push(format!("nobody {:?} to cancel", named.id)),
                }
            }
            Op::Refund(named) => {
                if stage.held.lock().unwrap().remove(&named.id).is_none() {
                    stage.seen().problems.push(format!("no permit of {:?} to give back", named.id));
                }
            }
            Op::WallClock(_) => {}
            Op::Storm(storm) => self.storm(stage, &storm),
            Op::TryStorm(storm) => self.try_storm(stage, &storm),
            Op::Waiters(crowd) => self.waiters(stage, &crowd),
            Op::TouchKeys(crowd) => touch_keys(stage, &crowd),
        }
    }

    fn storm(&mut self, stage: &Arc<Stage>, storm: &Storm) {
        stage.seen().wanted += storm.threads * storm.each;
        for _ in 0..storm.threads {
            let limiter = stage.limiter(storm.limiter.as_deref());
            let key = Key::from(storm.key.as_deref().unwrap_or(KEY));
            let (shared, each) = (Arc::clone(stage), storm.each);
            let acquires = async move {
                for _ in 0..each {
                    shared.granted_in_crowd(limiter.acquire(&key, 1, None).await);
                }
            };
            if stage.real {
                let handle = Handle::current();
                self.thread(move || handle.block_on(acquires));
            } else {
                tokio::spawn(acquires);
            }
        }
    }

    fn try_storm(&mut self, stage: &Arc<Stage>, storm: &Storm) {
        for _ in 0..storm.threads {
            let limiter = stage.limiter(storm.limiter.as_deref());
            let key = Key::from(storm.key.as_deref().unwrap_or(KEY));
            let (shared, each, handle) = (Arc::clone(stage), storm.each, Handle::current());
            self.thread(move || {
                let _context = handle.enter();
                for _ in 0..each {
                    shared.granted_in_crowd(limiter.try_acquire(&key, 1));
                }
            });
        }
        if !stage.real {
            // A virtual clock stands still as long as the threads run.
            self.join();
        }
    }

    fn waiters(&mut self, stage: &Arc<Stage>, crowd: &Crowd) {
        stage.seen().wanted += crowd.count;
        for _ in 0..crowd.count {
            let limiter = stage.limiter(crowd.limiter.as_deref());
            let stage = Arc::clone(stage);
            tokio::spawn(async move { stage.granted_in_crowd(limiter.acquire(&Key::from(KEY), 1, None).await) });
        }
    }

    fn thread(&mut self, work: impl FnOnce() + Send + 'static) {
        let cpu = Arc::clone(&self.cpu);
        let thread = thread::Builder::new().name("storm".into()).spawn(move || {
            work();
            *cpu.lock().unwrap() += cpu_ms("/proc/thread-self").unwrap_or_default();
        });
        self.threads.push(thread.unwrap());
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }

    /// After the last operation: waits for the crowd, then for those that may yet be granted.
    async fn finish(&mut self, stage: &Arc<Stage>) {
        let give_up = clock::now() + PATIENCE;
        while stage.misses_some() && clock::now() < give_up {
            clock::sleep(clock::ms(5)).await;
        }
        if !stage.misses_some() {
            self.join();
        }
        stage.seen().cpu_ms = workers_cpu_ms().map(|cpu| cpu + *self.cpu.lock().unwrap());
        stage.seen().tracked_keys = stage.limiter.tracked_keys();
        if !self.waiters.is_empty() || !self.unpolled.is_empty() {
            clock::sleep_until(stage.at(stage.until_ms)).await;
        }
    }
}

fn touch_keys(stage: &Arc<Stage>, crowd: &Crowd) {
    let limiter = stage.limiter(crowd.limiter.as_deref());
    let (stage, count, over) = (Arc::clone(stage), crowd.count, clock::ms(crowd.over_ms));
    let began = clock::now();
    tokio::spawn(async move {
        for number in 0..count {
            let at = began + over.mul_f64(number as f64 / count as f64);
            if at > clock::now() {
                clock::sleep_until(at).await;
            }
            match limiter.try_acquire(&Key::from(format!("key {number}")), 1) {
                Ok(mut permit) => permit.commit(),
                Err(refused) => stage.seen().problems.push(format!("key {number} refused: {refused:?}")),
            }
        }
    });
}

/// The name of the workers of a real clock's runtime.
const THREAD: &str = "limiter-case";

/// The CPU time of all workers; none where the system does not tell.
fn workers_cpu_ms() -> Option<f64> {
    let mut total = None;
    for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        let path = task.path();
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        if name.trim() == THREAD {
            *total.get_or_insert(0.0) += cpu_ms(path.to_str()?).unwrap_or_default();
        }
    }
    total
}

fn cpu_ms(task: &str) -> Option<f64> {
    let told = std::fs::read_to_string(format!("{task}/schedstat")).ok()?;
    let nanos: u64 = told.split_whitespace().next()?.parse().ok()?;
    Some(clock::as_ms(Duration::from_nanos(nanos)))
}
