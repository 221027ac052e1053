//! What answers teach a scope: hints become quotas, corrections and rates. Pure, handed now.
//!
//! Invariant: headers only lower. What is learned stands beside the configured quotas and is taken together with them.

use super::{
    Unit,
    experience::{self, Experience},
    learned::{Learned, Seen},
    meter::Meter,
    scope::{PATIENCE, Scope},
    tick::{SECOND, Tick, nanos_of},
};
use crate::headers::{Hints, QuotaHint};

/// What is known of the server's limits in one scope.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// The order of the latest sent attempt whose answer was read.
    newest: u64,
    heard: Option<Tick>,
    latency: Latency,
    learned: Vec<Learned>,
    experience: Experience,
    /// The meter of what refusals taught, where nothing is advertised.
    rated: Option<usize>,
}

/// How learning is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Share of an advertised limit that is left unused.
    pub(crate) headroom: f64,
    pub(crate) learn: bool,
}

/// One answer: whose, when, and whether it refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) order: u64,
    pub(crate) sent: Tick,
    pub(crate) now: Tick,
    pub(crate) refused: bool,
    /// It told a quota, be it of this scope or of another.
    pub(crate) advertised: bool,
}

impl Book {
    /// An answer has come, whatever it says.
    pub(crate) fn hear(&mut self, scope: &mut Scope, answer: &Answer) {
        scope.advance(answer.now);
        self.heard = Some(answer.now);
        if answer.now > answer.sent {
            self.latency.add(answer.now.since(answer.sent));
        }
        scope.patience = PATIENCE.max(self.latency.median.saturating_mul(2));
        if scope.ramp.end() {
            scope.restless();
        }
    }

    /// Reads the quotas of an answer into the scope's meters. An answer to an earlier attempt than the latest that was
    /// read never raises a balance: it is left out.
    pub(crate) fn learn<'a>(
        &mut self,
        scope: &mut Scope,
        hints: impl Iterator<Item = &'a QuotaHint>,
        answer: &Answer,
        rules: Rules,
    ) {
        let mut told = false;
        let newer = answer.order >= self.newest;
        self.newest = self.newest.max(answer.order);
        self.learned.iter_mut().for_each(|known| known.told = false);
        for hint in hints {
            told = true;
            if newer {
                self.learn_one(scope, hint, answer, rules);
            }
        }
        self.forget_silent(scope, answer.now);
        // A refusal by a route's quota says nothing about the key.
        let elsewhere = answer.refused && answer.advertised && !told;
        if !told && !elsewhere && self.learned.is_empty() {
            self.experience(scope, answer);
        }
        scope.restless();
    }

    fn learn_one(&mut self, scope: &mut Scope, hint: &QuotaHint, answer: &Answer, rules: Rules) {
        if let Unit::Other(name) = &hint.unit
            && name == "concurrent-requests"
        {
            scope.slots.learn_most(hint.limit);
            return;
        }
        let seen = Seen {
            now: answer.now,
            sent: answer.sent,
            refused: answer.refused,
            unanswered: scope.orders().saturating_sub(answer.order),
            orders: scope.orders(),
            spread: self.latency.spread(),
            headroom: rules.headroom,
            members: scope.members(),
            shared: scope.share.as_ref().map(|share| (share.round_trip(), share.kept())),
        };
        let place = self.learned.iter().position(|known| known.is(hint, true));
        let place = place.or_else(|| self.learned.iter().position(|known| !known.told && known.is(hint, false)));
        let index = match place {
            Some(index) => index,
            None => match Learned::begin(hint, &seen) {
                Some((learned, meter)) if self.learned.len() < MOST_LEARNED => self.keep(scope, learned, meter),
                _ => return,
            },
        };
        let known = &mut self.learned[index];
        known.update(&mut scope.meters[known.meter], hint, &seen);
    }

    /// The store names a quota that some process of the fleet was told.
    pub(crate) fn adopt(&mut self, scope: &mut Scope, (id, meta): (&str, &str), rules: Rules, now: Tick) {
        let lease = |known: &Learned| scope.meters[known.meter].lease().filter(|lease| lease.id() == id);
        let Some(index) = self.learned.iter().position(|known| lease(known).is_some()) else {
            let round_trip = scope.share.as_ref().map_or(0, |share| share.round_trip());
            let adopted = Learned::adopt((id, meta), rules.headroom, round_trip, now);
            let adopted = adopted.filter(|_| self.learned.len() < MOST_LEARNED);
            if let Some((learned, meter)) = adopted {
                scope.ramp.end();
                self.keep(scope, learned, meter);
            }
            return;
        };
        let known = &mut self.learned[index];
        let meter = &mut scope.meters[known.meter];
        if meter.lease().is_some_and(|lease| lease.meta() != meta) {
            known.agree(meter, meta, rules.headroom);
        }
    }

    fn keep(&mut self, scope: &mut Scope, mut learned: Learned, meter: Meter) -> usize {
        if let Some(rated) = self.rated.take() {
            // What is advertised takes the place of what refusals taught.
            self.drop_meter(scope, rated);
        }
        learned.meter = scope.add_meter(meter);
        self.learned.push(learned);
        self.learned.len() - 1
    }

    /// Quotas of which nothing was heard for long are let go.
    fn forget_silent(&mut self, scope: &mut Scope, now: Tick) {
        while let Some(index) = self
            .learned
            .iter()
            .position(|known| now.since(known.heard) > known.decay() && scope.meters[known.meter].rests_at() <= now)
        {
            let known = self.learned.swap_remove(index);
            self.drop_meter(scope, known.meter);
        }
    }

    fn drop_meter(&mut self, scope: &mut Scope, meter: usize) {
        scope.meters.remove(meter);
        for place in self.learned.iter_mut().map(|known| &mut known.meter).chain(&mut self.rated) {
            if *place > meter {
                *place -= 1;
            }
        }
    }

    /// Nothing is advertised: refusals alone teach.
    fn experience(&mut self, scope: &mut Scope, answer: &Answer) {
        let rate = if answer.refused {
            self.experience.refuse(answer.sent, answer.now)
        } else {
            self.experience.accept(answer.now)
        };
        let Some(rate) = rate else { return };
        let quota = experience::bucket(rate, experience::burst_of(rate));
        match self.rated {
            Some(rated) => scope.meters[rated].rerate(&quota),
            None => self.rated = Some(scope.add_meter(Meter::with_level(&quota, 1, answer.now))),
        }
    }

    /// From when on what was learned no longer matters.
    pub(crate) fn rests_at(&self) -> Tick {
        let decay = self.learned.iter().map(Learned::decay).max().unwrap_or(60 * SECOND);
        self.heard.map_or_else(Tick::default, |heard| heard.plus(decay))
    }
}

/// Quotas of one scope; a server that names a new one with each answer does not grow memory.
const MOST_LEARNED: usize = 64;

/// The wait that pauses: the named one, or for a refusal the reset rule.
pub(crate) fn pause_of(hints: &Hints) -> Option<u64> {
    let wait = if hints.refused { crate::headers::asked_wait(hints) } else { hints.retry_after };
    wait.map(nanos_of).filter(|nanos| *nanos > 0)
}

/// Times from commit to head, in nanoseconds.
#[derive(Debug, Default)]
struct Latency {
    median: u64,
    low: u64,
    high: u64,
}

impl Latency {
    /// Moves the median by an eighth towards each sample; the ends follow at once outward and slowly inward.
    fn add(&mut self, sample: u64) {
        if self.median == 0 {
            (self.median, self.low, self.high) = (sample, sample, sample);
        }
        if sample > self.median {
            self.median = self.median.saturating_add(self.median / 8 + 1).min(sample);
        } else {
            self.median = (self.median - self.median / 8).max(sample);
        }
        self.low = sample.min(self.low.saturating_add((sample.saturating_sub(self.low)) / 64));
        self.high = sample.max(self.high - (self.high.saturating_sub(sample)) / 64);
    }

    fn spread(&self) -> u64 {
        self.high.saturating_sub(self.low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_follows_outward_at_once_and_inward_slowly() {
        let mut latency = Latency::default();
        for sample in [100, 100, 140, 90] {
            latency.add(sample * 1_000_000);
        }
        assert!((40..=50).contains(&(latency.spread() / 1_000_000)), "{latency:?}");
        for _ in 0..1_000 {
            latency.add(100_000_000);
        }
        assert!(latency.spread() < 1_000_000 && latency.median.abs_diff(100_000_000) < 15_000_000, "{latency:?}");
    }
}
