//! Quota: how many units a server grants, how often, and in what units.

use std::{error, fmt, str::FromStr, time::Duration};

use crate::Error;

/// What a quota counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Unit {
    /// Requests: every attempt costs one unless the call says otherwise.
    #[default]
    Requests,
    /// Tokens of a language model.
    Tokens,
    /// Bytes of content (`content-bytes` in the IETF draft).
    Bytes,
    /// Anything else, by the server's name for it.
    Other(String),
}

impl Unit {
    /// The unit of a name that [`as_str`](Self::as_str) gave.
    pub(crate) fn named(name: &str) -> Self {
        let known = [Self::Requests, Self::Tokens, Self::Bytes].into_iter().find(|unit| unit.as_str() == name);
        known.unwrap_or_else(|| Self::Other(name.to_owned()))
    }

    /// The name that servers use.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Bytes => "content-bytes",
            Self::Other(name) => name,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Units per period that a server grants, and how they may bunch.
///
/// Two contracts: [`Quota::window`] is never exceeded in *any* window of its length, however it is placed;
/// [`Quota::bucket`] holds on average and lets a burst through at once. Pick the one the server's documentation
/// describes; `window` is the safe one when in doubt. Zero units, a period of zero or of more than 366 days, and a
/// burst that makes no sense are errors of the `build()` that gets it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use abide::Quota;
///
/// let contract = Quota::per_minute(600);
/// assert_eq!("600/m".parse::<Quota>()?, contract);
/// assert_eq!("10/s:20".parse::<Quota>()?, Quota::bucket(10, Duration::from_secs(1)).burst(20));
/// # Ok::<(), abide::ParseQuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    units: u32,
    per: Duration,
    burst: Option<u32>,
    contract: Contract,
    unit: Unit,
}

/// What a quota promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Contract {
    /// Never more than n in any window.
    Window,
    /// n ≤ burst + n·t/per in any span t.
    Bucket,
}

impl Quota {
    /// At most `n` in any window of `per`; the first `n/4` (at least 1) may go at once.
    #[must_use]
    pub const fn window(n: u32, per: Duration) -> Self {
        Self { units: n, per, burst: None, contract: Contract::Window, unit: Unit::Requests }
    }

    /// `n` per `per` on average; starts full, refills continuously; up to `n` at once unless [`burst`](Self::burst)
    /// says otherwise.
    #[must_use]
    pub const fn bucket(n: u32, per: Duration) -> Self {
        Self { units: n, per, burst: None, contract: Contract::Bucket, unit: Unit::Requests }
    }

    /// [`window`](Self::window) of a second.
    #[must_use]
    pub const fn per_second(n: u32) -> Self {
        Self::window(n, Duration::from_secs(1))
    }

    /// [`window`](Self::window) of a minute.
    #[must_use]
    pub const fn per_minute(n: u32) -> Self {
        Self::window(n, Duration::from_secs(60))
    }

    /// [`window`](Self::window) of an hour.
    #[must_use]
    pub const fn per_hour(n: u32) -> Self {
        Self::window(n, Duration::from_secs(60 * 60))
    }

    /// [`window`](Self::window) of 24 hours.
    #[must_use]
    pub const fn per_day(n: u32) -> Self {
        Self::window(n, Duration::from_secs(24 * 60 * 60))
    }

    /// Most units at once. Default: `n/4` (at least 1) of a window, `n` of a bucket. Of a window it may not exceed `n`.
    #[must_use]
    pub const fn burst(mut self, units: u32) -> Self {
        self.burst = Some(units);
        self
    }

    /// What is counted; default [`Unit::Requests`]. A call that does not state the unit is not charged.
    #[must_use]
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    pub(crate) fn units(&self) -> u32 {
        self.units
    }

    pub(crate) fn per(&self) -> Duration {
        self.per
    }

    pub(crate) fn contract(&self) -> Contract {
        self.contract
    }

    pub(crate) fn unit_ref(&self) -> &Unit {
        &self.unit
    }

    /// The burst in force.
    pub(crate) fn burst_units(&self) -> u32 {
        match (self.burst, self.contract) {
            (Some(burst), _) => burst,
            (None, Contract::Window) => (self.units / 4).max(1),
            (None, Contract::Bucket) => self.units,
        }
    }

    /// Refuses what makes no sense, naming the setting and its bound.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.units == 0 {
            return Err(Error::builder("quota: units must be at least 1"));
        }
        if self.per.is_zero() || self.per > MAX_PERIOD {
            return Err(Error::builder("quota: period must be above 0 and at most 366 days"));
        }
        if self.burst_units() == 0 {
            return Err(Error::builder("quota: burst must be at least 1"));
        }
        if self.contract == Contract::Window && self.burst_units() > self.units {
            return Err(Error::builder(format!(
                "quota: the burst of a window must be at most its units, {}",
                self.units
            )));
        }
        Ok(())
    }
}

/// As `n/period`, with `:burst` when it is not the default.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:?}", self.units, self.per)?;
        match (self.contract, self.burst) {
            (Contract::Window, None) => Ok(()),
            _ => write!(f, ":{}", self.burst_units()),
        }
    }
}

/// Longest period of a quota; vendors' longest stated windows are a year.
const MAX_PERIOD: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// `100/s`, `600/m`, `1000/h`, `5000/d`, `100/5s`, `20/500ms`: a window. With `:burst`, as in `10/s:20`: a bucket.
impl FromStr for Quota {
    type Err = ParseQuotaError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |at: &str, what| Err(ParseQuotaError { at: text.len() - at.len(), what });
        let Some((units, rest)) = text.split_once('/') else {
            return fail("", "expected n/period, as in 100/s");
        };
        let Ok(n) = units.parse::<u32>() else {
            return fail(text, "expected a whole number up to 4294967295");
        };
        if n == 0 {
            return fail(text, "a quota of zero lets nothing through");
        }
        let (period, burst) = match rest.split_once(':') {
            Some((period, burst)) => (period, Some(burst)),
            None => (rest, None),
        };
        let Some(per) = period_of(period) else {
            return fail(rest, "expected a period such as s, m, h, d, 5s or 500ms, at most 366d");
        };
        let Some(burst) = burst else { return Ok(Self::window(n, per)) };
        match burst.parse::<u32>() {
            Ok(units) if units > 0 => Ok(Self::bucket(n, per).burst(units)),
            _ => fail(burst, "expected a burst of at least 1"),
        }
    }
}

/// `s`, `5s`, `500ms`, `m`, `2h`, `d`.
fn period_of(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let count: u64 = if count.is_empty() { 1 } else { count.parse().ok()? };
    let millis = match unit {
        "ms" => 1,
        "s" | "sec" | "second" => 1_000,
        "m" | "min" | "minute" => 60_000,
        "h" | "hour" => 3_600_000,
        "d" | "day" => 86_400_000,
        _ => return None,
    };
    let per = Duration::from_millis(count.checked_mul(millis)?);
    (!per.is_zero() && per <= MAX_PERIOD).then_some(per)
}

/// Why a text is no [`Quota`]: the byte index and what was expected there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseQuotaError {
    at: usize,
    what: &'static str,
}

impl ParseQuotaError {
    /// Byte index at which the text stops making sense.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }
}

impl fmt::Display for ParseQuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.at)
    }
}

impl error::Error for ParseQuotaError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<Quota, usize>) {
        assert_eq!(text.parse::<Quota>().map_err(|e| e.at()), expected, "{text}");
    }

    #[test]
    fn text_forms() {
        check("100/s", Ok(Quota::per_second(100)));
        check("600/m", Ok(Quota::per_minute(600)));
        check("100/5s", Ok(Quota::window(100, Duration::from_secs(5))));
        check("20/500ms", Ok(Quota::window(20, Duration::from_millis(500))));
        check("5000/d", Ok(Quota::per_day(5000)));
        check("10/s:20", Ok(Quota::bucket(10, Duration::from_secs(1)).burst(20)));
        check("100", Err(3));
        check("/s", Err(0));
        check("-1/s", Err(0));
        check("0/s", Err(0));
        check("10/0s", Err(3));
        check("10/y", Err(3));
        check("10/s:", Err(5));
        check("10/s:0", Err(5));
        check("10/9999999d", Err(3));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Quota::per_second(0).check().is_err());
        assert!(Quota::window(1, Duration::ZERO).check().is_err());
        assert!(Quota::per_second(10).burst(11).check().is_err());
        assert!(Quota::per_second(10).burst(0).check().is_err());
        assert!(Quota::bucket(10, Duration::from_secs(1)).burst(11).check().is_ok());
    }
}
