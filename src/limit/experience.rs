//! Nothing is advertised: the rate is learned from refusals alone. Pure, handed now.
//!
//! No limit until a refusal; then 0.7 of the rate that was accepted last; back up by 2 % a second to the rate of that
//! refusal, and beyond by 0.5 % a second.

use std::time::Duration;

use super::{
    Quota,
    learned::whole,
    tick::{SECOND, Tick},
};

/// A refusal leaves this part of what was accepted; the way back, a second, below the rate of the refusal and above it.
const CUT: f64 = 0.7;
const RETURN: f64 = 0.02;
const PROBE: f64 = 0.005;
/// A refusal with nothing accepted before it: units a second.
const FIRST_RATE: f64 = 8.0;
/// One in ten seconds: fewer would never see that the server lets more through.
const FLOOR: f64 = 0.1;
/// No client gets here; a bucket's units still fit 32 bits.
const CEILING: f64 = 1_000_000.0;
/// The accepted rate is measured over a second, or over so many answers where they are rarer.
const ANSWERS: usize = 20;
const SLICES: usize = 10;
/// Between two refusals so far apart the mean counts too.
const LONG: u64 = 10 * SECOND;

/// What refusals taught.
#[derive(Debug, Default)]
pub(crate) struct Experience {
    /// Units a second; none before the first refusal.
    rate: Option<f64>,
    refused_at_rate: f64,
    /// Refusals of what was sent before this instant belong to the same event.
    cut_at: Tick,
    grown_at: Tick,
    /// The last answers that were accepted.
    last: [Tick; ANSWERS],
    next: usize,
    /// Since the last cut.
    accepted: u64,
    /// Accepted per tenth of a second, and the index of the newest.
    slices: [u32; SLICES],
    newest: u64,
}

impl Experience {
    /// An answer that was no refusal. Gives the new rate if there is one.
    pub(crate) fn accept(&mut self, now: Tick) -> Option<f64> {
        self.roll(now);
        self.slices[index(self.newest)] += 1;
        self.last[self.next] = now;
        self.next = (self.next + 1) % ANSWERS;
        self.accepted += 1;
        let rate = self.rate?;
        let span = now.since(self.grown_at).min(SECOND) as f64 / SECOND as f64;
        self.grown_at = now;
        let step = if rate < self.refused_at_rate { RETURN } else { PROBE };
        self.rate = Some((rate * (1.0 + step * span)).min(CEILING));
        self.rate
    }

    /// A refusal of an attempt sent at `sent`. Gives the new rate, unless the event was booked already.
    pub(crate) fn refuse(&mut self, sent: Tick, now: Tick) -> Option<f64> {
        if self.rate.is_some() && sent <= self.cut_at {
            return None;
        }
        self.rate = match (self.accepted_rate(now), self.rate) {
            (Some(accepted), old) => {
                self.refused_at_rate = old.map_or(accepted, |old| old.min(accepted / CUT));
                Some((accepted * CUT).max(FLOOR))
            }
            (None, None) => Some(FIRST_RATE),
            // The same event goes on: the calls' backoff spreads them, and only a long one lowers the rate.
            (None, Some(_)) if now.since(self.cut_at) < LONG => return None,
            (None, Some(old)) => Some((old * CUT).max(FLOOR)),
        };
        (self.cut_at, self.grown_at, self.accepted) = (now, now, 0);
        self.rate
    }

    /// Units a second accepted in the last second, or over the last answers where they are rarer; or since the last
    /// cut, where a server that counts in long windows took many at once and then none.
    fn accepted_rate(&mut self, now: Tick) -> Option<f64> {
        self.roll(now);
        if self.accepted == 0 {
            return None;
        }
        let seconds = |from: Tick| now.since(from).max(SECOND) as f64 / SECOND as f64;
        let lately: u32 = self.slices.iter().sum();
        let last = if lately as usize >= ANSWERS {
            f64::from(lately)
        } else {
            let count = self.accepted.min(ANSWERS as u64);
            let oldest = self.last[(self.next + ANSWERS - usize::try_from(count).unwrap_or(ANSWERS)) % ANSWERS];
            count as f64 / seconds(oldest)
        };
        let since_cut = self.accepted as f64 / seconds(self.cut_at);
        let long = self.rate.is_some() && now.since(self.cut_at) >= LONG;
        Some(if long && last > 3.0 * since_cut { since_cut } else { last })
    }

    fn roll(&mut self, now: Tick) {
        let newest = now.nanos() / (SECOND / SLICES as u64);
        let gone = newest.saturating_sub(self.newest).min(SLICES as u64);
        for step in 0..gone {
            self.slices[index(newest - step)] = 0;
        }
        self.newest = self.newest.max(newest);
    }
}

fn index(slice: u64) -> usize {
    usize::try_from(slice % SLICES as u64).unwrap_or(0)
}

/// A bucket of a rate in units a second.
pub(crate) fn bucket(rate: f64, burst: u64) -> Quota {
    let per = Duration::from_secs(1_000);
    let units = u32::try_from(whole(rate.clamp(FLOOR, CEILING) * 1_000.0)).unwrap_or(u32::MAX);
    Quota::bucket(units, per).burst(u32::try_from(burst.max(1)).unwrap_or(u32::MAX))
}

/// What an experienced rate lets out at once: a twentieth of a second's worth.
pub(crate) fn burst_of(rate: f64) -> u64 {
    whole(rate / 20.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_refusal_cuts_to_seven_tenths_of_what_was_accepted() {
        let mut seen = Experience::default();
        for i in 0..100 {
            assert_eq!(seen.accept(ms(i * 10)), None);
        }
        let rate = seen.refuse(ms(900), ms(999)).unwrap();
        assert!((rate - 70.0).abs() < 1e-9, "{rate}");
        assert_eq!(seen.refuse(ms(950), ms(1_050)), None, "the same event");
        let up = seen.accept(ms(1_999)).unwrap();
        assert!((up - 70.0 * 1.02).abs() < 0.01, "{up}");
    }

    #[test]
    fn refused_from_the_start_is_eight_a_second() {
        let mut seen = Experience::default();
        assert_eq!(seen.refuse(ms(0), ms(10)), Some(FIRST_RATE));
        assert_eq!(seen.refuse(ms(20), ms(30)), None, "nothing accepted: the rate stays");
    }

    #[test]
    fn rare_answers_are_measured_over_their_span() {
        let mut seen = Experience::default();
        for i in 0..20 {
            seen.accept(ms(i * 1_000));
        }
        let rate = seen.refuse(ms(19_500), ms(20_000)).unwrap();
        assert!((rate - 0.7).abs() < 1e-9, "{rate}");
    }
}
