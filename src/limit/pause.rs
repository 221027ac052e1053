//! The two gates that are no quota: the pause that a server asked for, with its probe, and the ramp of an unknown key.

use super::tick::{SECOND, Tick};

/// Longest pause that is kept, from when it is asked.
pub(crate) const LONGEST: u64 = 24 * 60 * 60 * SECOND;

/// "Not before": one instant for all calls of a scope. It moves only later and ends by itself; then one probe goes out,
/// and the next grant waits for the probe's answer, or not longer than a bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pause {
    until: Tick,
    /// The end was reached and the levels were cut.
    ended: bool,
    probe: Probe,
    /// Probes so far.
    probes: u32,
}

/// Which probe a permit is: the answer to one of an earlier pause says nothing about the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProbeId(u32);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Probe {
    #[default]
    None,
    /// The next grant is the probe.
    Due,
    /// It is out; nobody else goes before this instant.
    Out(ProbeId, Tick),
}

impl Pause {
    /// Moves the end later. Gives whether it did.
    pub(crate) fn extend(&mut self, until: Tick, now: Tick) -> bool {
        let until = until.min(now.plus(LONGEST));
        if until <= self.until || until <= now {
            return false;
        }
        (self.until, self.ended) = (until, false);
        true
    }

    /// The end, if it still lies ahead.
    pub(crate) fn until(&self, now: Tick) -> Option<Tick> {
        (self.until > now).then_some(self.until)
    }

    /// Once, when the end has been passed: its instant.
    pub(crate) fn take_end(&mut self, now: Tick) -> Option<Tick> {
        if self.until == Tick::default() || self.ended || now < self.until {
            return None;
        }
        self.ended = true;
        self.probe = Probe::Due;
        Some(self.until)
    }

    /// The instant before which nothing may go, by the pause or its probe.
    pub(crate) fn not_before(&self) -> Tick {
        match self.probe {
            Probe::Out(_, until) => self.until.max(until),
            Probe::None | Probe::Due => self.until,
        }
    }

    /// A grant goes out at `now`: gives which probe it is, if it is one: it holds the others back for `patience` at
    /// most.
    pub(crate) fn grant(&mut self, now: Tick, patience: u64) -> Option<ProbeId> {
        match self.probe {
            Probe::Due => {
                self.probes = self.probes.wrapping_add(1);
                let id = ProbeId(self.probes);
                self.probe = Probe::Out(id, now.plus(patience));
                return Some(id);
            }
            Probe::Out(_, until) if until <= now => self.probe = Probe::None,
            Probe::Out(..) | Probe::None => {}
        }
        None
    }

    /// The probe has its answer, failed, or was dropped on the wire.
    pub(crate) fn probe_back(&mut self, id: ProbeId) {
        if self.is_out(id) {
            self.probe = Probe::None;
        }
    }

    /// The probe was given back unsent: the next grant is the probe.
    pub(crate) fn probe_unsent(&mut self, id: ProbeId) {
        if self.is_out(id) {
            self.probe = Probe::Due;
        }
    }

    fn is_out(&self, id: ProbeId) -> bool {
        matches!(self.probe, Probe::Out(out, _) if out == id)
    }

    pub(crate) fn is_quiet(&self, now: Tick) -> bool {
        self.not_before() <= now
    }
}

/// How fast calls start on a key of which nothing is known yet: eight at once, doubling each 100 ms, until the first
/// answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ramp {
    began: Option<Tick>,
    sent: u64,
    over: bool,
}

/// A flood before anything can be learned helps nobody; a bound that stays would starve a server whose answers take
/// half a minute.
const RAMP_START: u64 = 8;
const RAMP_STEP: u64 = SECOND / 10;

impl Ramp {
    /// No ramp: something is known, or nothing is to be learned.
    pub(crate) const fn over() -> Self {
        Self { began: None, sent: 0, over: true }
    }

    fn allowed(&self, now: Tick) -> u64 {
        let steps = self.began.map_or(0, |began| now.since(began) / RAMP_STEP);
        RAMP_START << steps.min(40)
    }

    pub(crate) fn is_ready(&self, held: u64, now: Tick) -> bool {
        self.over || self.sent.saturating_add(held) < self.allowed(now)
    }

    /// When it lets `more` through beside what is held.
    pub(crate) fn ready_at(&self, held: u64, more: u64, from: Tick) -> Tick {
        let want = self.sent.saturating_add(held).saturating_add(more);
        if self.over || want <= self.allowed(from) {
            return from;
        }
        let Some(began) = self.began else { return Tick::NEVER };
        let steps = u64::from(want.div_ceil(RAMP_START).next_power_of_two().ilog2());
        began.plus(steps.saturating_mul(RAMP_STEP)).max(from)
    }

    pub(crate) fn commit(&mut self, now: Tick) {
        if !self.over {
            self.began.get_or_insert(now);
            self.sent = self.sent.saturating_add(1);
        }
    }

    /// The first answer is there. Gives whether that changes anything.
    pub(crate) fn end(&mut self) -> bool {
        !std::mem::replace(&mut self.over, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_pause_only_moves_later_and_ends_by_itself() {
        let mut pause = Pause::default();
        assert!(pause.extend(ms(1000), ms(0)));
        assert!(!pause.extend(ms(500), ms(0)));
        assert_eq!(pause.until(ms(999)), Some(ms(1000)));
        assert_eq!(pause.take_end(ms(999)), None);
        assert_eq!(pause.take_end(ms(1200)), Some(ms(1000)));
        assert_eq!(pause.take_end(ms(1200)), None);
    }

    #[test]
    fn the_first_grant_after_a_pause_is_a_probe() {
        let mut pause = Pause::default();
        pause.extend(ms(10), ms(0));
        pause.take_end(ms(10));
        let probe = pause.grant(ms(10), 250_000_000).unwrap();
        assert_eq!(pause.not_before(), ms(260));
        pause.probe_unsent(probe);
        let probe = pause.grant(ms(20), 250_000_000).unwrap();
        pause.probe_back(probe);
        assert!(pause.is_quiet(ms(20)));
        assert!(pause.grant(ms(20), 250_000_000).is_none());
    }

    /// The late answer of the first pause's probe let everybody out behind the second pause's probe.
    #[test]
    fn a_probe_of_an_earlier_pause_ends_nothing() {
        let mut pause = Pause::default();
        pause.extend(ms(10), ms(0));
        pause.take_end(ms(10));
        let first = pause.grant(ms(10), 250_000_000).unwrap();
        pause.extend(ms(1_000), ms(300));
        pause.take_end(ms(1_000));
        let second = pause.grant(ms(1_000), 250_000_000).unwrap();
        pause.probe_back(first);
        pause.probe_unsent(first);
        assert_eq!(pause.not_before(), ms(1_250));
        pause.probe_back(second);
        assert!(pause.is_quiet(ms(1_000)));
    }

    #[test]
    fn a_pause_is_cut_to_a_day() {
        let mut pause = Pause::default();
        pause.extend(Tick::NEVER, ms(0));
        assert_eq!(pause.until(ms(0)), Some(Tick::from_nanos(LONGEST)));
    }

    #[test]
    fn the_ramp_doubles_until_the_first_answer() {
        let mut ramp = Ramp::default();
        for _ in 0..8 {
            assert!(ramp.is_ready(0, ms(0)));
            ramp.commit(ms(0));
        }
        assert!(!ramp.is_ready(0, ms(99)));
        assert_eq!(ramp.ready_at(0, 1, ms(5)), ms(100));
        assert_eq!(ramp.ready_at(0, 9, ms(5)), ms(200));
        assert!(ramp.is_ready(7, ms(100)) && !ramp.is_ready(8, ms(100)));
        assert!(ramp.end() && !ramp.end());
        assert!(ramp.is_ready(1000, ms(0)));
    }
}
