//! The words of throttling: a limiter keeps, per key, quotas, a pause and a line of those who wait.
//!
//! Everything that decides is pure and handed `now`. Only `gate` waits, and only `keyed` and `gate` lock.
//!
//! | file | what for |
//! | --- | --- |
//! | `quota`, `costs` | the contract; what an attempt takes of it, by unit |
//! | `pace`, `guard`, `slack`, `meter` | what keeps a contract: the bucket, the window, how full it was, and all of it as one |
//! | `pause`, `queue`, `scope` | what holds all calls; who waits; several quotas taken together or not at all |
//! | `learn`, `learned`, `experience` | what hints teach, what one quota of them is, what refusals alone teach |
//! | `routes` | which routes are bound by which route quotas |
//! | `key`, `keyed`, `gate` | hashes of keys; their map; the wait for a permit, and the permit |
//! | `shared` | what a key asks of a fleet's store, and what it does with the answer |

pub(crate) mod costs;
mod experience;
mod gate;
mod guard;
mod key;
mod keyed;
mod learn;
mod learned;
#[cfg(all(test, abide_loom))]
mod loom_gate;
pub(crate) mod meter;
mod pace;
mod pause;
mod queue;
mod quota;
mod routes;
mod scope;
mod shared;
mod slack;
#[cfg(test)]
mod tests;
pub(crate) mod tick;

use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
    time::Duration,
};

use tokio::time::Instant;

use crate::{Error, clock, fleet::hub::Hub, headers::Hints};
use costs::Costs;
use gate::MAX_PAUSE;
use keyed::{Keyed, Origin};
use learn::Rules;
use scope::{Scope, Turn, Want, Why};
use tick::{Epoch, Tick, nanos_of};

pub use gate::{Acquire, Permit, Refused};
pub use key::Key;
pub(crate) use key::Route;
pub(crate) use keyed::{Cell, KeyState, Mixed};
pub(crate) use learned::whole;
pub(crate) use quota::Contract;
pub use quota::{ParseQuotaError, Quota, Unit};
#[cfg(feature = "redis")]
pub(crate) use shared::Step;

/// What a driver asks of the limiter for one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) key: &'a Key,
    pub(crate) route: Option<Route>,
    /// One entry a unit that the call states.
    pub(crate) units: &'a [(Unit, u32)],
    pub(crate) deadline: Option<Instant>,
    /// The longest pause worth waiting for.
    pub(crate) max_pause: Duration,
}

/// Settings that all keys of a limiter share.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) quotas: Vec<Quota>,
    pub(crate) max_in_flight: u32,
    pub(crate) max_keys: usize,
    pub(crate) max_waiting: usize,
    pub(crate) rules: Rules,
    pub(crate) epoch: Epoch,
    /// Of the fleet that keeps the quotas.
    pub(crate) hub: Option<Arc<Hub>>,
}

/// Limits by key, shared by all its clones.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use abide::{Key, Limiter, Quota};
///
/// let limiter = Limiter::builder().quota(Quota::per_second(100)).build()?;
/// let mut permit = limiter.acquire(&Key::from("api"), 1, None).await?;
/// permit.commit();
/// // ... send the request, read the answer, then:
/// drop(permit);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Arc<Config>,
    keys: Keyed,
}

impl Limiter {
    /// Settings; with none of them each key learns its limits from the server's answers.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    /// Waits, first come first served, until `cost` requests may be sent on `key`.
    ///
    /// With a deadline it is refused at once when the line is already too long for it.
    ///
    /// # Errors
    /// [`Refused`]: never (the cost cannot fit), full (waiters or keys), deadline, paused (more than 10 minutes).
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place and gives back what it was granted.
    pub fn acquire(&self, key: &Key, cost: u32, deadline: Option<Instant>) -> Acquire {
        Acquire::new(self.clone(), *key, None, self.want(Costs::requests(cost), deadline, MAX_PAUSE))
    }

    /// As [`acquire`](Self::acquire) for several units; a unit that is not named is not charged.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub fn acquire_units(&self, key: &Key, units: &[(Unit, u32)], deadline: Option<Instant>) -> Acquire {
        Acquire::new(self.clone(), *key, None, self.want(Costs::of(units), deadline, MAX_PAUSE))
    }

    /// As [`acquire_units`](Self::acquire_units), with all that a driver knows.
    pub(crate) fn admit(&self, ask: &Ask<'_>) -> Acquire {
        let want = self.want(Costs::of(ask.units), ask.deadline, ask.max_pause.min(MAX_PAUSE));
        Acquire::new(self.clone(), *ask.key, ask.route, want)
    }

    fn want(&self, costs: Costs, deadline: Option<Instant>, max_pause: Duration) -> Want {
        let deadline = deadline.map_or(Tick::NEVER, |at| self.epoch().tick(at));
        Want { costs, deadline, max_pause: nanos_of(max_pause), most_waiting: self.shared.config.max_waiting }
    }

    /// A permit if `cost` requests may be sent this instant and nobody waits.
    ///
    /// # Errors
    /// [`Refused`], with [`retry_at`](Refused::retry_at) when that is known.
    pub fn try_acquire(&self, key: &Key, cost: u32) -> Result<Permit, Refused> {
        let now = self.now();
        let want = self.want(Costs::requests(cost), None, Duration::ZERO);
        match self.with(key, now, |state, wakes| state.scope.try_now(&want, now, wakes)) {
            Some((cell, Turn::Granted { probe })) => Ok(Permit::of_key(cell, want.costs, probe)),
            Some((_, Turn::Refused { why, retry_at })) => {
                Err(Refused::new(why, retry_at.map(|tick| self.epoch().instant(tick))))
            }
            Some((_, Turn::Wait { .. })) => Err(Refused::new(Why::Busy, None)),
            None => Err(Refused::new(Why::Full, None)),
        }
    }

    /// Lets nothing through on `key` before `until`, as if its server had asked for that. It only ever moves later, at
    /// most 24 h ahead, and ends by itself.
    pub fn pause(&self, key: &Key, until: Instant) {
        let (now, until) = (self.now(), self.epoch().tick(until));
        self.with(key, now, |state, wakes| state.scope.pause_until(until, now, wakes));
    }

    /// What a response said that came from elsewhere than through a [`Permit`].
    pub fn observe(&self, key: &Key, hints: &Hints) {
        let (now, rules) = (self.now(), self.shared.config.rules);
        self.with(key, now, |state, wakes| {
            let origin = Origin { route: None, order: state.scope.orders(), group: None, sent: now, now };
            state.observe(hints, &origin, rules, wakes);
        });
    }

    /// What is known of a key at this instant; `None` if it is not tracked.
    #[must_use]
    pub fn snapshot(&self, key: &Key) -> Option<Snapshot> {
        let now = self.now();
        let cell = self.shared.keys.get(key)?;
        Some(cell.with(|state, wakes| {
            state.scope.pump(now, wakes);
            let loose = cell.loose.load(Ordering::Acquire);
            self.snapshot_of(state, loose, now)
        }))
    }

    fn snapshot_of(&self, state: &KeyState, loose: u32, now: Tick) -> Snapshot {
        let left = state.scope.meters.iter().map(|meter| (meter.unit().clone(), meter.left(now))).collect();
        Snapshot {
            left,
            waiting: state.scope.waiting(),
            in_flight: state.scope.slots.in_flight + loose,
            paused_until: state.scope.pause.until(now).map(|tick| self.epoch().instant(tick)),
        }
    }

    /// Keys in memory, once those of which nothing matters any more have left.
    #[must_use]
    pub fn tracked_keys(&self) -> usize {
        self.shared.keys.sweep(self.now(), usize::MAX);
        self.shared.keys.len()
    }

    fn with<R>(
        &self,
        key: &Key,
        now: Tick,
        run: impl FnMut(&mut KeyState, &mut Vec<Waker>) -> R,
    ) -> Option<(Arc<Cell>, R)> {
        self.shared.keys.with(key, &self.shared.config, now, run)
    }

    /// Those of every key.
    #[cfg(feature = "bulk")]
    pub(crate) fn quotas(&self) -> &[Quota] {
        &self.shared.config.quotas
    }

    fn epoch(&self) -> Epoch {
        self.shared.config.epoch
    }

    fn now(&self) -> Tick {
        self.epoch().tick(clock::now())
    }
}

/// A limiter that knows nothing yet and learns from answers.
impl Default for Limiter {
    fn default() -> Self {
        LimiterBuilder::default().start()
    }
}

/// Settings of a [`Limiter`].
#[derive(Clone, Debug)]
#[must_use = "nothing is built before build()"]
pub struct LimiterBuilder {
    quotas: Vec<Quota>,
    max_in_flight: Option<u32>,
    max_keys: usize,
    max_waiting: usize,
    headroom: f64,
    learn: bool,
    hub: Option<Arc<Hub>>,
}

impl Default for LimiterBuilder {
    fn default() -> Self {
        Self {
            quotas: Vec::new(),
            max_in_flight: None,
            max_keys: 100_000,
            max_waiting: 10_000,
            headroom: 0.02,
            learn: true,
            hub: None,
        }
    }
}

impl LimiterBuilder {
    /// A quota of every key; once for each. All of them are taken together or not at all. Default: none.
    pub fn quota(mut self, quota: Quota) -> Self {
        self.quotas.push(quota);
        self
    }

    /// Attempts of one key that may be under way at once, until their permits are dropped. Default: no bound; zero is
    /// an error of `build()`.
    pub fn max_in_flight(mut self, attempts: u32) -> Self {
        self.max_in_flight = Some(attempts);
        self
    }

    /// Keys in memory. Default 100,000; zero is an error of `build()`. Beyond, keys of which nothing matters any more
    /// leave first; if there are none, new keys are refused as full.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// Those who may wait on one key. Default 10,000; zero is an error of `build()`. Beyond they are refused as full.
    pub fn max_waiting(mut self, waiters: usize) -> Self {
        self.max_waiting = waiters;
        self
    }

    /// Share of an *advertised* limit that is left unused, from 0 to below 1. Default 0.02. Configured quotas are used
    /// as written.
    pub fn headroom(mut self, share: f64) -> Self {
        self.headroom = share;
        self
    }

    /// Whether answers teach limits. Default `true`. They only ever lower what is configured. A wait that a server
    /// asks for pauses its key either way.
    pub fn learn(mut self, learn: bool) -> Self {
        self.learn = learn;
        self
    }

    /// Keeps the quotas, configured and learned, and the pauses of each key together with all processes of a fleet.
    /// Default: no fleet.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn fleet(mut self, fleet: crate::fleet::Fleet) -> Self {
        self.hub = Some(fleet.hub());
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// `is_builder`: a quota that makes no sense, a headroom outside 0..1, or a bound of zero; the message names it.
    pub fn build(self) -> Result<Limiter, Error> {
        self.quotas.iter().try_for_each(Quota::check)?;
        if !(0.0..1.0).contains(&self.headroom) {
            return Err(Error::builder("headroom must be at least 0 and below 1"));
        }
        for (name, zero) in [
            ("max_in_flight", self.max_in_flight == Some(0)),
            ("max_keys", self.max_keys == 0),
            ("max_waiting", self.max_waiting == 0),
        ] {
            if zero {
                return Err(Error::builder(format!("{name} must be at least 1")));
            }
        }
        Ok(self.start())
    }

    fn start(self) -> Limiter {
        let config = Config {
            quotas: self.quotas,
            max_in_flight: self.max_in_flight.unwrap_or(u32::MAX),
            max_keys: self.max_keys,
            max_waiting: self.max_waiting,
            rules: Rules { headroom: self.headroom, learn: self.learn },
            epoch: Epoch::new(clock::now()),
            hub: self.hub,
        };
        Limiter { shared: Arc::new(Shared { config: Arc::new(config), keys: Keyed::default() }) }
    }
}

/// What a limiter knows of one key at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Units that could be taken at once, a quota each: the configured ones first, then the learned ones.
    pub left: Vec<(Unit, u64)>,
    /// Those in line.
    pub waiting: usize,
    /// Attempts on the wire whose permits are not dropped yet.
    pub in_flight: u32,
    /// The end of the pause that the server asked for, if it lies ahead.
    pub paused_until: Option<Instant>,
}
