//! Members of a fleet, and what they were let out.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use abide::{
    Key, Limiter, LimiterBuilder, Permit, Quota, Refused,
    fleet::{Fleet, FleetBuilder},
    headers::{Hints, QuotaHint},
};
use tokio::{task::JoinSet, time::Instant};

use super::{
    clock::{self, ms},
    redis::Redis,
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A store's answer may take so long on a machine that is busy.
pub(crate) const PATIENT: Duration = Duration::from_millis(500);

/// Instants at which permits were committed, and how many units.
#[derive(Clone, Debug, Default)]
pub(crate) struct Starts(pub(crate) Arc<Mutex<Vec<(Instant, u32)>>>);

impl Starts {
    pub(crate) fn commit(&self, permit: &mut Permit, units: u32) {
        permit.commit();
        self.0.lock().unwrap().push((clock::now(), units));
    }

    pub(crate) fn units(&self, from: Instant, to: Instant) -> u32 {
        self.0.lock().unwrap().iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, units)| units).sum()
    }

    /// The most units in any closed window.
    pub(crate) fn most(&self, window: Duration) -> u32 {
        let first = self.0.lock().unwrap().iter().map(|(at, _)| *at).min();
        first.map_or(0, |first| self.most_from(window, first))
    }

    /// The most units in any closed window that begins then or later.
    pub(crate) fn most_from(&self, window: Duration, from: Instant) -> u32 {
        let mut starts = self.0.lock().unwrap().clone();
        starts.retain(|(at, _)| *at >= from);
        starts.sort_unstable();
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for (at, units) in &starts {
            sum += units;
            while *at - starts[first].0 > window {
                sum -= starts[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }
}

pub(crate) fn key() -> Key {
    Key::from("key")
}

pub(crate) fn fleet(redis: &Redis) -> FleetBuilder {
    Fleet::redis(redis.url()).timeout(PATIENT)
}

pub(crate) async fn limiter(fleet: FleetBuilder, quotas: impl IntoIterator<Item = Quota>) -> Limiter {
    let builder = Limiter::builder().fleet(fleet.connect().await.unwrap());
    quotas.into_iter().fold(builder, LimiterBuilder::quota).build().unwrap()
}

pub(crate) async fn member(redis: &Redis, quota: Quota) -> Limiter {
    limiter(fleet(redis), [quota]).await
}

/// So many calls at a time, each as soon as it may, until the end.
pub(crate) fn drive(
    calls: &mut JoinSet<()>,
    limiter: &Limiter,
    (workers, cost): (usize, u32),
    until: Instant,
    starts: &Starts,
) {
    for _ in 0..workers {
        let (limiter, starts) = (limiter.clone(), starts.clone());
        calls.spawn(async move {
            while clock::now() < until {
                match limiter.acquire(&key(), cost, Some(until)).await {
                    Ok(mut permit) => starts.commit(&mut permit, cost),
                    Err(_) => clock::sleep(ms(5)).await,
                }
            }
        });
    }
}

pub(crate) async fn acquire(limiter: &Limiter, key: &Key, patience: Duration) -> Result<Permit, Refused> {
    limiter.acquire(key, 1, Some(clock::now() + patience)).await
}

/// Waits until it is so.
pub(crate) async fn until(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = clock::now();
    while !is_so() {
        assert!(clock::now() < began + patience, "not within {patience:?}: {what}");
        clock::sleep(ms(2)).await;
    }
    clock::now() - began
}

/// Connections other than that which asks.
pub(crate) fn connections(redis: &Redis) -> usize {
    redis.cli(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() - 1
}

pub(crate) fn told(name: &str, limit: u32, window: Duration, remaining: u32) -> Hints {
    let (mut hints, mut quota) = (Hints::default(), QuotaHint::default());
    (quota.name, quota.limit, quota.window) = (Some(name.into()), Some(limit.into()), Some(window));
    (quota.remaining, quota.reset_after) = (Some(remaining.into()), Some(window));
    hints.quotas.push(quota);
    hints
}
