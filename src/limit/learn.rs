//! What answers teach: hints become quotas, corrections and pauses of a key. Pure, handed now.
//!
//! Invariant: headers only lower. What is learned stands beside the configured quotas and is taken together with them.

use std::task::Waker;

use super::{
    Quota, Unit,
    meter::Meter,
    scope::{PATIENCE, Scope},
    tick::{Tick, nanos_of},
};
use crate::headers::{Hints, QuotaHint};

/// What is known of the server's limits on one key.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Commits so far: the order in which attempts were sent.
    orders: u64,
    /// The order of the latest sent attempt whose answer was read.
    newest: u64,
    heard: Option<Tick>,
    /// About the median time from commit to head, in nanoseconds.
    latency: u64,
    learned: Vec<Learned>,
}

/// A quota that answers told, and the meter that keeps it.
#[derive(Debug)]
struct Learned {
    name: Option<Box<str>>,
    partition: Option<Box<str>>,
    unit: Unit,
    contract: Option<(u32, u64)>,
    meter: usize,
}

/// How learning is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Share of an advertised limit that is left unused.
    pub(crate) headroom: f64,
    pub(crate) learn: bool,
}

/// One answer: whose, when, and what it said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) hints: &'a Hints,
    pub(crate) order: u64,
    pub(crate) sent: Tick,
}

impl Book {
    /// An attempt goes on the wire; gives its order.
    pub(crate) fn commit(&mut self) -> u64 {
        self.orders += 1;
        self.orders
    }

    /// Reads an answer into the scope's quotas and pause.
    pub(crate) fn observe(
        &mut self,
        scope: &mut Scope,
        answer: &Answer<'_>,
        rules: Rules,
        now: Tick,
        wakes: &mut Vec<Waker>,
    ) {
        scope.advance(now);
        self.time(now.since(answer.sent));
        scope.patience = PATIENCE.max(self.latency.saturating_mul(2));
        self.heard = Some(now);
        if scope.ramp.end() {
            scope.restless();
        }
        if let Some(wait) = pause_of(answer.hints) {
            scope.pause_until(now.plus(wait), now, wakes);
        }
        if rules.learn && answer.order >= self.newest {
            self.newest = answer.order;
            for hint in &answer.hints.quotas {
                self.learn(scope, hint, rules, now);
            }
        }
    }

    /// Moves the estimate of the median by an eighth towards each sample.
    fn time(&mut self, sample: u64) {
        if self.latency == 0 {
            self.latency = sample;
        } else if sample > self.latency {
            self.latency += self.latency / 8;
        } else {
            self.latency -= self.latency / 8;
        }
    }

    fn learn(&mut self, scope: &mut Scope, hint: &QuotaHint, rules: Rules, now: Tick) {
        let Some((units, per)) = contract_of(hint, rules.headroom) else { return };
        let quota = Quota::window(units, std::time::Duration::from_nanos(per)).unit(hint.unit.clone());
        let known = self.learned.iter_mut().find(|known| known.is(hint));
        let meter = match known {
            Some(known) => {
                if known.contract != Some((units, per)) {
                    known.contract = Some((units, per));
                    scope.meters[known.meter].rerate(&quota);
                    scope.restless();
                }
                known.meter
            }
            None => self.begin(scope, hint, &quota, now),
        };
        correct(&mut scope.meters[meter], hint, now);
    }

    fn begin(&mut self, scope: &mut Scope, hint: &QuotaHint, quota: &Quota, now: Tick) -> usize {
        let mut meter = Meter::with_level(quota, 1, now);
        if *meter.unit() == Unit::Requests
            && let Some(guard) = meter.guard_mut()
        {
            guard.commit(self.orders.min(quota.units().into()), now);
        }
        let meter = scope.add_meter(meter);
        self.learned.push(Learned {
            name: hint.name.as_deref().map(Into::into),
            partition: hint.partition.as_deref().map(Into::into),
            unit: hint.unit.clone(),
            contract: Some((quota.units(), nanos_of(quota.per()))),
            meter,
        });
        meter
    }

    /// From when on what was learned no longer matters.
    pub(crate) fn rests_at(&self) -> Tick {
        let longest = self.learned.iter().filter_map(|l| l.contract).map(|(_, per)| per).max().unwrap_or(0);
        let decay = longest.saturating_mul(10).clamp(60 * SECOND, 3_600 * SECOND);
        self.heard.map_or_else(Tick::default, |heard| heard.plus(decay))
    }
}

const SECOND: u64 = 1_000_000_000;

impl Learned {
    fn is(&self, hint: &QuotaHint) -> bool {
        self.name.as_deref() == hint.name.as_deref()
            && self.partition.as_deref() == hint.partition.as_deref()
            && self.unit == hint.unit
    }
}

/// The wait that pauses the key: the named one, or for a refusal the reset rule.
fn pause_of(hints: &Hints) -> Option<u64> {
    let wait = if hints.refused { crate::headers::asked_wait(hints) } else { hints.retry_after };
    wait.map(nanos_of).filter(|nanos| *nanos > 0)
}

/// Units and window that a quota hint states, less the headroom; none if either is not told or makes no sense.
fn contract_of(hint: &QuotaHint, headroom: f64) -> Option<(u32, u64)> {
    let (limit, window) = (hint.limit?, nanos_of(hint.window?));
    if !(limit > 0.0 && limit.is_finite()) || window == 0 {
        return None;
    }
    if limit < 1.0 {
        // Half a request a second is one in two seconds.
        return Some((1, whole(window as f64 / limit)));
    }
    let units = (limit - (headroom * limit).floor()).max(1.0);
    Some((u32::try_from(whole(units)).unwrap_or(u32::MAX), window))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and it is not negative"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

/// What others use of the quota: the server's count of what is left against ours.
fn correct(meter: &mut Meter, hint: &QuotaHint, now: Tick) {
    let held = meter.held();
    let Some(remaining) = hint.remaining.map(whole) else { return };
    let Some(guard) = meter.guard_mut() else { return };
    let own = guard.used().saturating_add(held);
    let others = guard.limit().saturating_sub(own).saturating_sub(remaining);
    guard.set_others(others, now);
    let idle = own <= guard.limit() / 2;
    let longest = guard.window();
    if remaining == 0
        && idle
        && let Some(reset) = hint.reset_after
    {
        meter.stop_until(now.plus(nanos_of(reset).min(longest)));
    }
}
