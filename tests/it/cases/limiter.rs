//! Cases of the limiter alone: operations at given times, on a virtual clock unless the case asks for the real one.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::{
    case::{Bucket, ClockSpec, Range},
    check::SLACK_MS,
    stage::{self, Played},
};

/// A case of mode `limiter`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimiterCase {
    pub(crate) ops: Vec<Op>,
    pub(crate) config: LimiterConfig,
    pub(crate) expect: LimiterExpect,
    #[serde(default)]
    pub(crate) clock: ClockSpec,
}

/// One limiter, and others by name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimiterConfig {
    pub(crate) limiter: Bucket,
    #[serde(default)]
    pub(crate) limiters: HashMap<String, Bucket>,
}

/// What is done, and when.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Op {
    /// Waits for a permit and commits it at once, unless it is given back later.
    Acquire(Ask),
    /// Polled once, then kept and never polled again.
    AcquireUnpolled(Ask),
    Try(Ask),
    /// Drops the waiter.
    Cancel(Named),
    /// Drops the permit uncommitted.
    Refund(Named),
    /// The wall clock is set; the limiter is given none to read, so that nothing happens.
    WallClock(Shift),
    /// Threads that each acquire so often, one after the other.
    Storm(Storm),
    /// Threads that each try so often.
    TryStorm(Storm),
    /// So many wait at once.
    Waiters(Crowd),
    /// So many keys, one permit of each, evenly spread.
    TouchKeys(Crowd),
}

/// Who asks for what.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ask {
    pub(crate) t: u64,
    pub(crate) id: String,
    pub(crate) limiter: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) cost: Option<u32>,
    pub(crate) deadline_ms: Option<u64>,
}

/// Which one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Named {
    pub(crate) t: u64,
    pub(crate) id: String,
}

/// By how much.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shift {
    pub(crate) t: u64,
    #[serde(rename = "shift_ms")]
    pub(crate) _shift_ms: i64,
}

/// How many at once, how often.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Storm {
    pub(crate) t: u64,
    pub(crate) threads: usize,
    pub(crate) each: usize,
    pub(crate) limiter: Option<String>,
    pub(crate) key: Option<String>,
}

/// How many.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Crowd {
    pub(crate) t: u64,
    pub(crate) count: usize,
    #[serde(default)]
    pub(crate) over_ms: u64,
    pub(crate) limiter: Option<String>,
}

impl Op {
    /// When it is done.
    pub(crate) fn at_ms(&self) -> u64 {
        match self {
            Self::Acquire(ask) | Self::AcquireUnpolled(ask) | Self::Try(ask) => ask.t,
            Self::Cancel(named) | Self::Refund(named) => named.t,
            Self::WallClock(shift) => shift.t,
            Self::Storm(storm) | Self::TryStorm(storm) => storm.t,
            Self::Waiters(crowd) | Self::TouchKeys(crowd) => crowd.t,
        }
    }
}

/// What must come of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimiterExpect {
    /// First and last instant at which each may be granted.
    #[serde(default)]
    pub(crate) granted_ms: BTreeMap<String, (f64, f64)>,
    #[serde(default)]
    pub(crate) not_granted: Vec<String>,
    /// All of a storm or of waiters.
    pub(crate) all_granted_by_ms: Option<f64>,
    /// The last of them.
    pub(crate) not_before_ms: Option<f64>,
    pub(crate) cpu_ms_max: Option<f64>,
    pub(crate) tracked_keys_max_at_end: Option<usize>,
    /// How many of a storm, of waiters or of tries.
    #[serde(alias = "granted_total", alias = "admitted")]
    pub(crate) granted: Option<Range>,
    #[serde(alias = "max_granted", alias = "max_admitted")]
    pub(crate) granted_max: Option<usize>,
    #[serde(alias = "min_granted", alias = "min_admitted")]
    pub(crate) granted_min: Option<usize>,
}

/// All that is wrong with a case of mode `limiter`; blocks until it is played.
pub(crate) fn run(case: &LimiterCase) -> Vec<String> {
    if case.clock.server_skew_ms != 0 {
        return vec!["clock.server_skew_ms has no meaning without a server".into()];
    }
    match stage::play(case) {
        Ok(played) => check(case, &played),
        Err(problem) => vec![problem],
    }
}

fn check(case: &LimiterCase, played: &Played) -> Vec<String> {
    let expect = &case.expect;
    let slack = if case.clock.real { SLACK_MS } else { 0.0 };
    let mut failures = played.problems.clone();
    for (id, (min, max)) in &expect.granted_ms {
        match played.granted.get(id) {
            Some(at) if *min <= *at && *at <= max + slack => {}
            other => failures.push(format!("{id} granted at {other:?} ms, expected {min} to {max}")),
        }
    }
    for id in &expect.not_granted {
        if let Some(at) = played.granted.get(id) {
            failures.push(format!("{id} granted at {at} ms, expected never"));
        }
    }
    let crowd = &played.crowd;
    let last = crowd.iter().copied().fold(0.0, f64::max);
    if expect.all_granted_by_ms.is_some_and(|by| last > by + slack || crowd.len() < played.wanted) {
        failures.push(format!("{} of {} granted, the last at {last:.1} ms", crowd.len(), played.wanted));
    }
    if expect.not_before_ms.is_some_and(|min| last < min) {
        failures.push(format!("all granted by {last:.1} ms, expected not before {:?}", expect.not_before_ms));
    }
    let few = expect.granted_min.is_some_and(|min| crowd.len() < min);
    let many = expect.granted_max.is_some_and(|max| crowd.len() > max);
    if few || many || expect.granted.is_some_and(|range| !range.holds(crowd.len())) {
        failures.push(format!("{} granted", crowd.len()));
    }
    if expect.cpu_ms_max.is_some_and(|max| played.cpu_ms.is_some_and(|cpu| cpu > max)) {
        failures.push(format!("{:.0} ms of CPU", played.cpu_ms.unwrap_or_default()));
    }
    if expect.tracked_keys_max_at_end.is_some_and(|max| played.tracked_keys > max) {
        failures.push(format!("{} keys tracked at the end", played.tracked_keys));
    }
    failures
}
