//! One quota that answers told, and how it steers the meter that keeps it.

use std::time::Duration;

use super::{
    Quota, Unit,
    meter::Meter,
    pause,
    tick::{SECOND, Tick, nanos_of},
};
use crate::{
    fleet::{
        lease::{Keeping, Lease},
        store::Told,
    },
    headers::QuotaHint,
};

/// A quota by its name, partition and unit.
#[derive(Debug)]
pub(crate) struct Learned {
    name: Option<Box<str>>,
    partition: Option<Box<str>>,
    /// Another process was told it: it is known by its id until an answer names it here.
    adopted: Option<Box<str>>,
    unit: Unit,
    kind: Kind,
    pub(crate) heard: Tick,
    /// By the answer that is being read: two quotas of one answer may have the same name.
    pub(crate) told: bool,
    /// Its place among the scope's meters.
    pub(crate) meter: usize,
}

#[derive(Debug)]
enum Kind {
    Contract(Contract),
    Counter(Counter),
}

/// Limit and window are told.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Contract {
    /// As told.
    limit: f64,
    window: u64,
    /// What the network's spread adds to the window, in nanoseconds.
    spread: u64,
    /// Refusals that the books did not foresee: each halves the burst and stretches the window by 5 %.
    steps: u32,
    stepped: Tick,
    /// So many windows without a refusal undo a step; doubled by each step that comes after an undo.
    quiet: u64,
    undone: bool,
    /// The window is not told, but seen.
    inferred: bool,
}

/// What is left is told, and mostly when it resets; never the window.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counter {
    limit: f64,
    /// The longest time to a reset that was seen: the window is no shorter.
    longest: u64,
    /// An earlier answer: when, what was left, and how many had been sent.
    mark: Option<(Tick, f64, u64)>,
}

/// What the scope knows beside the hint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) now: Tick,
    pub(crate) sent: Tick,
    pub(crate) refused: bool,
    /// Attempts sent after the one that this answers.
    pub(crate) unanswered: u64,
    /// All attempts sent so far in this scope.
    pub(crate) orders: u64,
    /// How far latencies lie apart, in nanoseconds.
    pub(crate) spread: u64,
    pub(crate) headroom: f64,
    /// Processes that use the same quotas, this one included.
    pub(crate) members: u64,
    /// A fleet keeps the quotas of this scope: to its store and back, in microseconds, and how.
    pub(crate) shared: Option<(u64, Keeping)>,
}

/// Longest window that is kept as told, 73 years: products of two still fit the integers.
const LONGEST: u64 = 1 << 61;

/// Steps of 5 %: a window is stretched by half at most.
const MOST_STEPS: u32 = 10;

/// Windows without a refusal that undo a step, at first and at most: six doublings.
const QUIET: u64 = 10;
const MOST_QUIET: u64 = 640;

impl Learned {
    /// A quota that is told for the first time, and its meter; none if the hint binds nothing.
    pub(crate) fn begin(hint: &QuotaHint, seen: &Seen) -> Option<(Self, Meter)> {
        let kind = Kind::of(hint)?;
        let meter = match &kind {
            Kind::Contract(contract) => {
                let quota = contract.quota(seen.headroom, &hint.unit);
                let mut meter = contract.leased(Meter::with_level(&quota, 1, seen.now), hint, seen);
                count_past(&mut meter, seen);
                meter
            }
            Kind::Counter(_) => {
                let part = 4.0 * seen.members as f64;
                let level = hint.remaining.map_or(1, |left| whole(left / part).saturating_sub(seen.unanswered).max(1));
                Meter::with_level(
                    &Quota::bucket(1, Duration::from_secs(1)).burst(u32::MAX).unit(hint.unit.clone()),
                    u32::try_from(level).unwrap_or(u32::MAX),
                    seen.now,
                )
            }
        };
        let learned = Self {
            name: hint.name.as_deref().map(Into::into),
            partition: hint.partition.as_deref().map(Into::into),
            adopted: None,
            unit: hint.unit.clone(),
            kind,
            heard: seen.now,
            told: true,
            meter: usize::MAX,
        };
        Some((learned, meter))
    }

    /// A quota that another process of the fleet was told; none if its description makes no sense.
    pub(crate) fn adopt((id, meta): (&str, &str), headroom: f64, round_trip: u64, now: Tick) -> Option<(Self, Meter)> {
        let (contract, unit) = Contract::described(meta)?;
        let quota = contract.quota(headroom, &unit);
        let meter =
            Meter::with_level(&quota, 1, now).leased(Lease::learned(id.into(), meta.into(), &quota, round_trip));
        let learned = Self {
            name: None,
            partition: None,
            adopted: Some(id.into()),
            unit,
            kind: Kind::Contract(contract),
            heard: now,
            told: false,
            meter: usize::MAX,
        };
        Some((learned, meter))
    }

    /// Another process of the fleet was told something else of it, later.
    pub(crate) fn agree(&mut self, meter: &mut Meter, meta: &str, headroom: f64) {
        let (Kind::Contract(contract), Some((told, _))) = (&mut self.kind, Contract::described(meta)) else { return };
        (contract.limit, contract.window) = (told.limit, told.window);
        if let Some(lease) = meter.lease_mut() {
            lease.set_quota(&contract.quota(headroom, &self.unit), meta.into());
            meter.rerate_share();
        }
    }

    /// Whether a hint speaks of this quota. Quotas of one name may differ by their windows.
    pub(crate) fn is(&self, hint: &QuotaHint, same_window: bool) -> bool {
        if let Some(id) = &self.adopted {
            return same_window && *id == id_of(hint);
        }
        self.name.as_deref() == hint.name.as_deref()
            && self.partition.as_deref() == hint.partition.as_deref()
            && self.unit == hint.unit
            && (!same_window || self.window() == hint.window.map(|window| nanos_of(window).min(LONGEST)))
    }

    fn window(&self) -> Option<u64> {
        match self.kind {
            Kind::Contract(contract) => Some(contract.window),
            Kind::Counter(_) => None,
        }
    }

    /// The longest time after which it is forgotten when nothing more is heard: ten windows, a minute to an hour.
    pub(crate) fn decay(&self) -> u64 {
        let window = match self.kind {
            Kind::Contract(contract) => contract.window,
            Kind::Counter(counter) => counter.longest,
        };
        window.saturating_mul(10).clamp(60 * SECOND, 3_600 * SECOND)
    }

    /// Reads a newer hint into the meter.
    pub(crate) fn update(&mut self, meter: &mut Meter, hint: &QuotaHint, seen: &Seen) {
        (self.heard, self.told) = (seen.now, true);
        if self.adopted.take().is_some() {
            self.name = hint.name.as_deref().map(Into::into);
            self.partition = hint.partition.as_deref().map(Into::into);
        }
        match (&mut self.kind, Kind::of(hint)) {
            (Kind::Contract(contract), told) => {
                let mut next = *contract;
                match told {
                    Some(Kind::Contract(told)) => (next.limit, next.window) = (told.limit, told.window),
                    Some(Kind::Counter(told)) if next.inferred => {
                        (next.limit, next.window) = (told.limit, next.window.max(told.longest));
                    }
                    _ => {}
                }
                next.step(meter, seen);
                next.set_spread(seen.spread, seen.headroom);
                let quota = next.quota(seen.headroom, &self.unit);
                let changed = quota != contract.quota(seen.headroom, &self.unit);
                if let Some(lease) = meter.lease_mut() {
                    lease.tell(&quota, next.description(&self.unit), told_of(hint, next.limit));
                    meter.rerate_share();
                } else if changed {
                    meter.rerate(&quota);
                }
                *contract = next;
                correct(meter, hint, next.limit, seen.now);
            }
            (Kind::Counter(_), Some(Kind::Contract(told))) => {
                meter.replace(&told.quota(seen.headroom, &self.unit), seen.now);
                *meter = told.leased(meter.clone(), hint, seen);
                if hint.remaining.is_none() {
                    count_past(meter, seen);
                }
                self.kind = Kind::Contract(told);
                correct(meter, hint, told.limit, seen.now);
            }
            (Kind::Counter(counter), Some(Kind::Counter(told))) => {
                counter.limit = told.limit.max(if hint.limit.is_some() { 0.0 } else { counter.limit });
                counter.longest = counter.longest.max(told.longest);
                if let Some(contract) = counter.infer(hint, seen) {
                    meter.replace(&contract.quota(seen.headroom, &self.unit), seen.now);
                    self.kind = Kind::Contract(contract);
                    correct(meter, hint, contract.limit, seen.now);
                } else {
                    counter.steer(meter, hint, seen);
                }
            }
            (Kind::Counter(_), None) => {}
        }
    }
}

impl Kind {
    fn of(hint: &QuotaHint) -> Option<Self> {
        let limit = hint.limit.filter(|limit| *limit > 0.0 && limit.is_finite());
        let window = hint.window.map(nanos_of).filter(|window| *window > 0).map(|window| window.min(LONGEST));
        if let (Some(limit), Some(window)) = (limit, window) {
            return Some(Self::Contract(Contract::new(limit, window)));
        }
        let remaining = hint.remaining?;
        let longest = hint.reset_after.map_or(0, nanos_of);
        Some(Self::Counter(Counter { limit: hint.limit.unwrap_or(remaining), longest, mark: None }))
    }
}

impl Contract {
    const fn new(limit: f64, window: u64) -> Self {
        let stepped = Tick::from_nanos(0);
        Self { limit, window, spread: 0, steps: 0, stepped, quiet: QUIET, undone: false, inferred: false }
    }

    /// With what a fleet needs to keep it, if there is one.
    fn leased(&self, meter: Meter, hint: &QuotaHint, seen: &Seen) -> Meter {
        let Some((round_trip, keeping)) = seen.shared else { return meter };
        let quota = self.quota(seen.headroom, &hint.unit);
        let mut meter = meter.leased(Lease::learned(id_of(hint), self.description(&hint.unit), &quota, round_trip));
        if keeping != Keeping::Shared {
            // The store is away: nobody else would grant of it.
            meter.keep(keeping, None, seen.now);
            meter.cut_to_one();
        }
        meter
    }

    /// What other processes need to know of it.
    fn description(&self, unit: &Unit) -> Box<str> {
        format!("{} {} {unit}", self.limit, self.window).into()
    }

    fn described(text: &str) -> Option<(Self, Unit)> {
        let mut parts = text.splitn(3, ' ');
        let limit: f64 = parts.next()?.parse().ok().filter(|limit: &f64| limit.is_finite() && *limit > 0.0)?;
        let window: u64 = parts.next()?.parse().ok().filter(|window| (1..=LONGEST).contains(window))?;
        Some((Self::new(limit, window), Unit::named(parts.next()?)))
    }

    /// The quota that is kept: below the limit by the headroom, over the window and what the network adds.
    fn quota(&self, headroom: f64, unit: &Unit) -> Quota {
        let stretched = self.window.saturating_add(self.window / 20 * u64::from(self.steps.min(MOST_STEPS)));
        let window = stretched.saturating_add(self.spread);
        if self.limit < 1.0 {
            // Half a request a second is one in two seconds.
            let window = whole(window as f64 / self.limit).min(LONGEST);
            return Quota::window(1, Duration::from_nanos(window)).unit(unit.clone());
        }
        let units = whole(self.limit - (headroom * self.limit).floor()).max(1);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let burst = (units / 4).checked_shr(self.steps).unwrap_or(0).max(1);
        Quota::window(units, Duration::from_nanos(window)).burst(burst).unit(unit.clone())
    }

    /// A refusal that the books did not foresee makes it more careful; quiet windows undo a step.
    fn step(&mut self, meter: &Meter, seen: &Seen) {
        // What is granted fits the books: a refusal is foreseen only where others are known to use the limit too.
        let alone = meter.guard().is_some_and(|guard| guard.others(seen.now) <= guard.limit() / 4);
        if seen.refused && alone && seen.sent > self.stepped {
            if self.undone {
                self.quiet = (self.quiet * 2).min(MOST_QUIET);
            }
            (self.steps, self.stepped, self.undone) = ((self.steps + 1).min(MOST_STEPS), seen.now, false);
        } else if self.steps > 0 && seen.now.since(self.stepped) > self.window.saturating_mul(self.quiet) {
            (self.steps, self.stepped, self.undone) = (self.steps - 1, seen.now, true);
        }
    }

    /// Arrivals bunch by the spread of the network's delay. What the headroom leaves free covers as large a share of
    /// the window; only the rest stretches it, in steps of a two-hundredth of the window.
    fn set_spread(&mut self, spread: u64, headroom: f64) {
        let most = self.window / if self.steps > 0 { 20 } else { 50 };
        let covered = whole((headroom * self.limit).floor() / self.limit * self.window as f64);
        let grain = (self.window / 200).max(1);
        let wanted = spread.min(most).saturating_sub(covered).div_ceil(grain).saturating_mul(grain);
        if wanted > self.spread || wanted.saturating_add(2 * grain) < self.spread {
            self.spread = wanted;
        }
    }
}

/// What was sent before anything was known counts too.
fn count_past(meter: &mut Meter, seen: &Seen) {
    let requests = *meter.unit() == Unit::Requests;
    if let Some(lease) = meter.lease_mut().filter(|_| requests) {
        lease.owe(seen.orders.min(lease.quota().units().into()), seen.now);
    }
    if let Some(guard) = meter.guard_mut().filter(|_| requests) {
        guard.commit(seen.orders.min(guard.limit()), seen.now);
    }
}

/// What others use of the quota: the server's count of what is left against our own.
fn correct(meter: &mut Meter, hint: &QuotaHint, limit: f64, now: Tick) {
    let held = meter.held();
    let Some(remaining) = hint.remaining.map(whole) else { return };
    let keeping = meter.lease().map(Lease::keeping);
    let Some(guard) = meter.guard_mut() else { return };
    let own = guard.used().saturating_add(held);
    if keeping.is_none() {
        guard.set_others(whole(limit).saturating_sub(own).saturating_sub(remaining), now);
    }
    // What a fleet shares is corrected by the store, which knows what all of it has sent.
    let (idle, window) = (own <= guard.limit() / 2 && keeping != Some(Keeping::Shared), guard.window());
    if let (0, true, Some(reset)) = (remaining, idle, hint.reset_after) {
        meter.stop_until(now.plus(nanos_of(reset).min(window)));
    }
}

/// What the latest answer said is left, for the store.
fn told_of(hint: &QuotaHint, limit: f64) -> Option<Told> {
    let reset = hint.reset_after.map_or(0, nanos_of) / 1_000;
    Some(Told { limit: whole(limit), remaining: whole(hint.remaining?), reset })
}

/// The same in all processes: a hash of what tells a quota from others.
fn id_of(hint: &QuotaHint) -> Box<str> {
    let window = hint.window.map_or(0, nanos_of).min(LONGEST).to_be_bytes();
    let (name, partition) = (hint.name.as_deref().unwrap_or_default(), hint.partition.as_deref().unwrap_or_default());
    super::key::stable([name.as_bytes(), partition.as_bytes(), hint.unit.as_str().as_bytes(), &window])
}

impl Counter {
    /// The contract behind the counts, once most of the limit was seen to come back within the longest time to a
    /// reset: then that is the window.
    fn infer(&mut self, hint: &QuotaHint, seen: &Seen) -> Option<Contract> {
        let (limit, remaining, window) = (hint.limit?, hint.remaining?, self.longest.max(SECOND));
        let sent = seen.orders.saturating_sub(seen.unanswered);
        let (at, left, before) = *self.mark.get_or_insert((seen.now, remaining, sent));
        let span = seen.now.since(at);
        if span < window {
            return None;
        }
        self.mark = Some((seen.now, remaining, sent));
        let back = remaining - left + sent.saturating_sub(before) as f64;
        let whole = span <= window.saturating_add(window / 4) && back >= 0.8 * limit && limit >= 1.0;
        whole.then(|| Contract { inferred: true, ..Contract::new(limit, window) })
    }

    /// Spends what is left, less what is on the way, evenly until the reset, and never more.
    fn steer(&self, meter: &mut Meter, hint: &QuotaHint, seen: &Seen) {
        let Some(remaining) = hint.remaining else { return };
        // Each process of a fleet spends its part of what is left.
        let left = (whole(remaining) / seen.members).saturating_sub(seen.unanswered).saturating_sub(meter.held());
        let reset = hint.reset_after.map_or(0, nanos_of);
        // Resets come in whole seconds, and none told means soon.
        let span = reset.max(SECOND);
        let even = left as f64 / (span as f64 / SECOND as f64);
        let known = self.limit * 0.98 / seen.members as f64 / (self.longest.max(SECOND) as f64 / SECOND as f64);
        meter.rerate(&super::experience::bucket(even.max(known), left / 4).unit(hint.unit.clone()));
        if left > 0 || reset > 0 {
            meter.allow(left, seen.now.plus(if left == 0 { reset } else { span }.min(pause::LONGEST)));
        } else {
            // Nothing is left and no instant is named at which there is more: that is no information.
            meter.allow(1, seen.now.plus(span));
        }
    }
}

/// Whole units of a number that a server told.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and hints are not negative"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value as u64
}
