//! Cases of one limit for many processes: members of a fleet, each on a thread and a runtime of its own, and a store to
//! which things happen.
//!
//! Attempts come in open loop. *Admitted* is a permit granted and committed. A caller waits until the load ends; only
//! where the case bounds the time of an attempt and more is asked than the limit gives, no longer than half of that
//! bound: else the limit alone would break it. A refusal is no error of a caller; a call that has no answer when its
//! deadline has long passed is one, and so is a fleet that does not connect.

use serde::Deserialize;

use super::{
    case::{Window, Windows},
    members::{self, Played},
};

/// One case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedisCase {
    pub(crate) processes: usize,
    pub(crate) load: Load,
    #[serde(rename = "redis")]
    pub(crate) store: StoreSpec,
    pub(crate) config: FleetConfig,
    expect: Expect,
    /// By how much wall clocks of processes differ. A fleet reads none, so that there is nothing to set: the store
    /// tells the time of its books, and processes count from what they send on a clock that never steps (`fleet.rs` has
    /// a test that no file of the fleet or of the limits names the wall clock).
    #[serde(default, rename = "process_skew_ms")]
    skews: Vec<i64>,
}

/// What every process asks for, at even distances.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Load {
    pub(crate) per_process_rps: u32,
    pub(crate) duration_ms: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreSpec {
    pub(crate) topology: Topology,
    pub(crate) nodes: Option<u16>,
    #[serde(default)]
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Topology {
    Standalone,
    Cluster,
    Sentinel,
}

/// What happens to the store, or to a process.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Event {
    ScriptFlush {
        t_ms: u64,
    },
    #[serde(alias = "flush_all")]
    Flushall {
        t_ms: u64,
    },
    /// It is killed, and comes back with nothing in its memory.
    Restart {
        t_ms: u64,
        down_ms: u64,
    },
    /// There is none: killed too. That its memory is gone is the worse of the two things that "down" may mean.
    Down {
        t_ms: u64,
        for_ms: u64,
    },
    /// It answers nothing and closes nothing.
    Hang {
        t_ms: u64,
        for_ms: u64,
    },
    CutConnectionMidCommand {
        t_ms: u64,
    },
    KillProcess {
        t_ms: u64,
        process: usize,
    },
}

impl Event {
    pub(crate) fn at_ms(self) -> u64 {
        match self {
            Self::ScriptFlush { t_ms }
            | Self::Flushall { t_ms }
            | Self::Restart { t_ms, .. }
            | Self::Down { t_ms, .. }
            | Self::Hang { t_ms, .. }
            | Self::CutConnectionMidCommand { t_ms }
            | Self::KillProcess { t_ms, .. } => t_ms,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FleetConfig {
    pub(crate) limiter: Limit,
    pub(crate) on_redis_down: Option<OnDown>,
    pub(crate) fleet_size: Option<u32>,
    pub(crate) redis_timeout_ms: Option<u64>,
    pub(crate) redis_reconnect: Option<Reconnect>,
    /// Attempts go to so many keys in turn, and the limit is each key's.
    pub(crate) keys: Option<usize>,
}

/// A bucket, or with `window: true` as many in any window.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limit {
    pub(crate) rate: u32,
    pub(crate) per_ms: u64,
    pub(crate) burst: Option<u32>,
    #[serde(default)]
    pub(crate) window: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnDown {
    LocalShare,
    LiveShare,
    #[serde(alias = "fail_closed")]
    Closed,
    #[serde(alias = "fail_open")]
    Open,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reconnect {
    pub(crate) base_ms: u64,
    pub(crate) cap_ms: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    caller_errors: Option<usize>,
    max_admitted: Option<usize>,
    min_admitted: Option<usize>,
    /// Of each key.
    max_per_window: Option<Windows>,
    keys_without_ttl: Option<usize>,
    /// So long after the load, and how many keys are left then.
    keys_left_after_idle_ms: Option<(u64, usize)>,
    slots_per_limiter_key: Option<usize>,
    connects_per_process_max: Option<usize>,
    connects_max_per_window: Option<Connects>,
    log_lines_per_process_max: Option<usize>,
    acquire_p99_ms_max: Option<f64>,
    shared_again_by_ms: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Connects {
    window_ms: f64,
    n: usize,
    #[serde(default)]
    after_ms: f64,
}

impl RedisCase {
    /// How long a caller waits, if not to the end of the load.
    pub(crate) fn patience_ms(&self) -> Option<f64> {
        let Limit { rate, per_ms, .. } = self.config.limiter;
        let keys = self.config.keys.unwrap_or(1) as f64;
        let given = f64::from(rate) * 1000.0 / per_ms as f64 * keys;
        let asked = f64::from(self.load.per_process_rps) * self.processes as f64;
        self.expect.acquire_p99_ms_max.filter(|_| asked > given).map(|max| max / 2.0)
    }

    /// How long to wait when the load is over.
    pub(crate) fn idle_ms(&self) -> Option<u64> {
        self.expect.keys_left_after_idle_ms.map(|(idle, _)| idle)
    }

    pub(crate) fn by_slot(&self) -> bool {
        self.expect.slots_per_limiter_key.is_some()
    }

    /// When the last thing that takes the store away is over.
    fn back_at_ms(&self) -> f64 {
        let ends = self.store.events.iter().map(|event| match *event {
            Event::Restart { t_ms, down_ms } => t_ms + down_ms,
            Event::Down { t_ms, for_ms } | Event::Hang { t_ms, for_ms } => t_ms + for_ms,
            _ => 0,
        });
        ends.max().unwrap_or(0) as f64
    }
}

/// All that is wrong with a case.
pub(crate) async fn run(case: RedisCase) -> Vec<String> {
    if case.skews.len() > case.processes {
        return vec!["process_skew_ms has more entries than there are processes".into()];
    }
    match Box::pin(members::play(&case)).await {
        Ok(played) => {
            println!("{} processes: {played:?}", case.processes);
            [played.problems.clone(), admitted(&case, &played), store(&case, &played)].concat()
        }
        Err(problem) => vec![problem],
    }
}

fn admitted(case: &RedisCase, played: &Played) -> Vec<String> {
    let (expect, mut failures) = (&case.expect, Vec::new());
    if expect.caller_errors.is_some_and(|max| played.errors.len() > max) {
        failures.push(format!("{} errors of callers, first: {}", played.errors.len(), played.errors[0]));
    }
    let count = played.admitted.len();
    if expect.max_admitted.is_some_and(|max| count > max) || expect.min_admitted.is_some_and(|min| count < min) {
        failures.push(format!("{count} admitted, expected {:?} to {:?}", expect.min_admitted, expect.max_admitted));
    }
    let windows = match &expect.max_per_window {
        None => &[],
        Some(Windows::One(window)) => std::slice::from_ref(window),
        Some(Windows::Many(windows)) => windows.as_slice(),
    };
    for Window { window_ms, n } in windows {
        let (min, max) = n.bounds();
        let most = (0..case.config.keys.unwrap_or(1)).map(|key| most_in(&played.of_key(key), *window_ms)).max();
        if most.is_none_or(|most| most < min || most > max) {
            failures.push(format!("{most:?} in a window of {window_ms} ms, expected {n:?}"));
        }
    }
    let mut waits = played.waits.clone();
    waits.sort_by(f64::total_cmp);
    let p99 = waits.get(waits.len() * 99 / 100).copied().unwrap_or_default();
    if expect.acquire_p99_ms_max.is_some_and(|max| p99 > max) {
        failures.push(format!("99 % of {} attempts take up to {p99:.1} ms", waits.len()));
    }
    failures.extend(expect.shared_again_by_ms.and_then(|by| shared_again(case, played, by)));
    failures
}

/// What a process shows of a limit that is shared: if it said that the store was lost, it said since the store's return
/// that it was regained, and answers of the store reached it within the second before `by`. After that the bucket's
/// contract holds for all together, unless a store is lost again.
fn shared_again(case: &RedisCase, played: &Played, by: f64) -> Option<String> {
    for (number, member) in played.members.iter().enumerate().filter(|(_, member)| !member.is_killed) {
        let says = |word: &str, from: f64| {
            member.lines.iter().any(|(at, line)| (from..=by).contains(at) && line.contains(word))
        };
        if says("lost", 0.0) && !says("regained", case.back_at_ms()) {
            return Some(format!("process {number} does not say until {by} ms that the store is back"));
        }
        let since = case.back_at_ms().max(by - 1_000.0);
        if !played.answers_to(number).any(|at| (since..=by).contains(&at)) {
            return Some(format!("process {number} has no answer of the store from {since} to {by} ms"));
        }
    }
    if played.members.iter().any(|member| member.lines.iter().any(|(at, _)| *at > by)) {
        // It was lost again.
        return None;
    }
    let Limit { rate, per_ms, burst, window } = case.config.limiter;
    let span = case.load.duration_ms as f64 - by;
    let most = f64::from(burst.unwrap_or(rate)) + f64::from(rate) * (span + 5.0) / per_ms as f64;
    let all = played.admitted.iter().filter(|admitted| admitted.at_ms > by).count();
    let many = !window && all as f64 > most * case.config.keys.unwrap_or(1) as f64;
    many.then(|| format!("{all} admitted from {by} ms on, {most:.0} are shared"))
}

fn store(case: &RedisCase, played: &Played) -> Vec<String> {
    let (expect, mut failures) = (&case.expect, Vec::new());
    let lasting: Vec<&str> = played.keys.iter().filter(|(_, ttl)| *ttl < 0).map(|(key, _)| key.as_str()).collect();
    if expect.keys_without_ttl.is_some_and(|max| lasting.len() > max) {
        failures.push(format!("keys without an end: {lasting:?}"));
    }
    // What is not there has no fault: the check must not be empty.
    if played.keys.is_empty() && (expect.keys_without_ttl.is_some() || case.by_slot()) {
        failures.push("no keys in the store at the end of the load".into());
    }
    if expect.keys_left_after_idle_ms.is_some_and(|(_, max)| played.left.len() > max) {
        failures.push(format!("keys left: {:?}", played.left));
    }
    if let Some(max) = expect.slots_per_limiter_key {
        failures
            .extend(played.slots.iter().filter(|(_, slots)| slots.len() > max).map(|odd| format!("slots: {odd:?}")));
        if played.slots.len() != case.config.keys.unwrap_or(1) {
            failures.push(format!("{} limiter keys in the store", played.slots.len()));
        }
    }
    if let Some(max) = expect.connects_per_process_max {
        failures.extend(played.connects_of_one().filter(|count| *count > max).map(|count| format!("{count} connects")));
    }
    if let Some(Connects { window_ms, n, after_ms }) = expect.connects_max_per_window {
        let late: Vec<f64> = played.connects().filter(|at| *at >= after_ms).collect();
        let most = most_in(&late, window_ms);
        if most > n {
            failures.push(format!("{most} connects in {window_ms} ms"));
        }
    }
    for member in &played.members {
        if expect.log_lines_per_process_max.is_some_and(|max| member.lines.len() > max) {
            failures.push(format!("{} lines of a process: {:?}", member.lines.len(), member.lines));
        }
    }
    failures
}

/// Most of them in any span that begins with one and is shorter than `window_ms`.
fn most_in(times: &[f64], window_ms: f64) -> usize {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    let until = |start: &f64| times.partition_point(|at| *at < start + window_ms);
    times.iter().enumerate().map(|(first, start)| until(start) - first).max().unwrap_or(0)
}
