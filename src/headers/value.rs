//! Numbers, durations and windows as servers write them. No input panics, overflows or yields more than it says.

use std::time::Duration;

use super::{
    date::{self, Clock},
    ratelimit::MAX_MEMBERS,
};

/// Longest number, time or word that is read; only the digits of a wait may be longer.
const MAX_SCALAR: usize = 64;

/// What an absurd wait saturates to: delta-seconds of RFC 9111 §1.2.2.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(1 << 31);

const NANOS_PER_MILLI: u128 = 1_000_000;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Whole units, and billionths of one rounded up: at most `1_000_000_000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    whole: u64,
    nanos: u32,
}

impl Decimal {
    /// As thousandths of what it counts, rounded up.
    fn millis(self) -> u128 {
        u128::from(self.whole).saturating_mul(1000).saturating_add(u128::from(self.nanos.div_ceil(1_000_000)))
    }

    /// Nanoseconds, if one unit is so many of them.
    fn nanos_of(self, unit: u128) -> u128 {
        let fraction = u128::from(self.nanos).saturating_mul(unit).div_ceil(NANOS_PER_SECOND);
        u128::from(self.whole).saturating_mul(unit).saturating_add(fraction)
    }
}

/// What a plain number counts when it is too small for an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    Seconds,
    Millis,
}

/// A wait or a reset as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// Digits: a delta or an instant by their magnitude.
    Number(Decimal),
    /// Nanoseconds from now.
    Span(u128),
    /// Nanoseconds of Unix time.
    At(i128),
}

/// What a number means by its magnitude: one rule for every header, so that no table of vendors can rot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Magnitude {
    Delta,
    UnixSeconds,
    UnixMillis,
    UnixMicros,
    Unreadable,
}

impl Magnitude {
    fn of(number: Decimal) -> Self {
        match number.whole {
            0..1_000_000_000 => Self::Delta,
            1_000_000_000..100_000_000_000 => Self::UnixSeconds,
            1_000_000_000_000..100_000_000_000_000 => Self::UnixMillis,
            1_000_000_000_000_000..100_000_000_000_000_000 => Self::UnixMicros,
            _ => Self::Unreadable,
        }
    }
}

/// The wait that one value asks for; an absurd one is 2^31 s, never none.
pub(super) fn wait(text: &[u8], clock: &Clock<'_>, plain: Plain) -> Option<Duration> {
    let nanos = match time(text, clock)? {
        Time::Number(number) => number_nanos(number, clock, plain).unwrap_or(u128::MAX),
        other => other.nanos(clock),
    };
    Some(ceil_millis(nanos).min(MAX_WAIT))
}

/// The time until the reset that one value tells.
pub(super) fn reset(text: &[u8], clock: &Clock<'_>, plain: Plain) -> Option<Duration> {
    let nanos = match time(text, clock)? {
        Time::Number(_) if text.len() > MAX_SCALAR => return None,
        Time::Number(number) => number_nanos(number, clock, plain)?,
        Time::Span(u128::MAX) => return None,
        other => other.nanos(clock),
    };
    Some(ceil_millis(nanos))
}

/// The longest readable time of one line. Values may be joined by commas; a date has one of its own, so a part is also
/// tried with the one before it.
pub(super) fn longest(text: &[u8], read: impl Fn(&[u8]) -> Option<Duration>) -> Option<Duration> {
    let whole = read(text);
    if whole.is_some() || !text.contains(&b',') {
        return whole;
    }
    let (mut longest, mut before, mut start) = (None, None, 0_usize);
    for _ in 0..MAX_MEMBERS {
        let Some(rest) = text.get(start..) else { break };
        let end = start.saturating_add(rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len()));
        for from in [Some(start), before].into_iter().flatten() {
            longest = longest.max(read(text.get(from..end).unwrap_or_default()));
        }
        before = Some(start);
        start = end.saturating_add(1);
    }
    longest
}

/// Whether a value is a plain number too small for an instant.
pub(super) fn is_delta(text: &[u8]) -> bool {
    decimal(text.trim_ascii()).is_some_and(|number| Magnitude::of(number) == Magnitude::Delta)
}

/// How a value is read, in words.
pub(super) fn describe(text: &[u8], clock: &Clock<'_>, plain: Plain) -> Option<&'static str> {
    Some(match time(text, clock)? {
        Time::Number(number) => match Magnitude::of(number) {
            Magnitude::Delta if plain == Plain::Millis => "milliseconds from now",
            Magnitude::Delta => "seconds from now",
            Magnitude::UnixSeconds => "Unix time in seconds",
            Magnitude::UnixMillis => "Unix time in milliseconds",
            Magnitude::UnixMicros => "Unix time in microseconds",
            Magnitude::Unreadable => "digits beyond any time",
        },
        Time::Span(_) => "a duration with its units",
        Time::At(_) => "a date",
    })
}

impl Time {
    /// Distance of what is no plain number.
    fn nanos(self, clock: &Clock<'_>) -> u128 {
        match self {
            Self::Number(_) => 0,
            Self::Span(nanos) => nanos,
            Self::At(instant) => clock.until(instant),
        }
    }
}

fn number_nanos(number: Decimal, clock: &Clock<'_>, plain: Plain) -> Option<u128> {
    let at = |unit| clock.until(i128::try_from(number.nanos_of(unit)).unwrap_or(i128::MAX));
    match Magnitude::of(number) {
        Magnitude::Delta if plain == Plain::Millis => Some(number.nanos_of(NANOS_PER_MILLI)),
        Magnitude::Delta => Some(number.nanos_of(NANOS_PER_SECOND)),
        Magnitude::UnixSeconds => Some(at(NANOS_PER_SECOND)),
        Magnitude::UnixMillis => Some(at(NANOS_PER_MILLI)),
        Magnitude::UnixMicros => Some(at(1000)),
        Magnitude::Unreadable => None,
    }
}

fn ceil_millis(nanos: u128) -> Duration {
    Duration::from_millis(u64::try_from(nanos.div_ceil(NANOS_PER_MILLI)).unwrap_or(u64::MAX))
}

/// The forms are disjoint: a number has digits and one dot; a duration ends in a unit letter; a clock has two colons
/// and no letter; ISO 8601 has `-` as its fifth byte; an HTTP-date starts with a letter.
fn time(text: &[u8], clock: &Clock<'_>) -> Option<Time> {
    let text = text.trim_ascii();
    if let Some(number) = decimal(text) {
        return Some(Time::Number(number));
    }
    let (first, last) = (text.first()?, text.last()?);
    if !first.is_ascii_digit() {
        return bounded(text).and_then(|text| date::http_date(text, clock)).map(Time::At);
    }
    if last.is_ascii_lowercase() {
        return span(text).map(Time::Span);
    }
    let text = bounded(text)?;
    clock_time(text).map(Time::Span).or_else(|| date::iso(text).map(Time::At))
}

fn bounded(text: &[u8]) -> Option<&[u8]> {
    (text.len() <= MAX_SCALAR).then_some(text)
}

/// `digits[.digits]`, of any length, exact to a billionth and rounded up.
pub(super) fn decimal(text: &[u8]) -> Option<Decimal> {
    let (whole, fraction) = cut(text, b'.').unwrap_or((text, b"0"));
    Some(Decimal { whole: digits(whole)?, nanos: billionths(fraction)? })
}

/// Digits, saturating; `None` unless there is one and nothing else.
pub(super) fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| byte.wrapping_sub(b'0'))?;
        Some(sum.saturating_mul(10).saturating_add(u64::from(digit)))
    })
}

fn billionths(fraction: &[u8]) -> Option<u32> {
    let (kept, rest) = fraction.split_at_checked(9).unwrap_or((fraction, b""));
    let mut nanos = digits(kept)?;
    for _ in kept.len()..9 {
        nanos = nanos.saturating_mul(10);
    }
    if !rest.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let up = u64::from(rest.iter().any(|byte| *byte != b'0'));
    u32::try_from(nanos.saturating_add(up)).ok()
}

/// `6m0s`, `34ms`, `17.56s`: numbers with the units `h m s ms us µs ns`, as Go prints durations.
fn span(text: &[u8]) -> Option<u128> {
    spans(text, false)
}

fn spans(mut text: &[u8], days: bool) -> Option<u128> {
    let mut sum = 0_u128;
    while !text.is_empty() {
        let end = text.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        let (number, rest) = text.split_at_checked(end)?;
        let letters = rest.iter().position(u8::is_ascii_digit).unwrap_or(rest.len());
        let (unit, rest) = rest.split_at_checked(letters)?;
        sum = sum.saturating_add(decimal(number)?.nanos_of(unit_nanos(unit, days)?));
        text = rest;
    }
    Some(sum)
}

fn unit_nanos(unit: &[u8], days: bool) -> Option<u128> {
    Some(match unit {
        b"h" => 3600 * NANOS_PER_SECOND,
        b"m" => 60 * NANOS_PER_SECOND,
        b"s" => NANOS_PER_SECOND,
        b"ms" => NANOS_PER_MILLI,
        b"us" | b"\xc2\xb5s" | b"\xce\xbcs" => 1000,
        b"ns" => 1,
        b"d" if days => 86_400 * NANOS_PER_SECOND,
        _ => return None,
    })
}

/// `hh:mm:ss[.fff]` (Azure Resource Graph).
fn clock_time(text: &[u8]) -> Option<u128> {
    let (hours, rest) = cut(text, b':')?;
    let (minutes, seconds) = cut(rest, b':')?;
    let two = |text: &[u8]| digits(text).filter(|value| text.len() == 2 && *value < 60);
    two(cut(seconds, b'.').map_or(seconds, |(whole, _)| whole))?;
    let seconds = decimal(seconds)?.nanos_of(NANOS_PER_SECOND);
    let whole = digits(hours)?.saturating_mul(3600).saturating_add(two(minutes)?.saturating_mul(60));
    Some(u128::from(whole).saturating_mul(NANOS_PER_SECOND).saturating_add(seconds))
}

/// A count: `digits[.digits]`. A sign, an exponent or a word is not told.
pub(super) fn count(text: &[u8]) -> Option<f64> {
    let text = bounded(text.trim_ascii())?;
    let number = decimal(text)?;
    // What fits 53 bits is exact.
    if number.nanos == 0 && number.whole < 1 << 53 {
        return Some(number.whole as f64);
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A window told as a value: seconds (or milliseconds), `1s`, `minute`. None is longer than 10^9 units or empty.
pub(super) fn window(text: &[u8], plain: Plain) -> Option<Duration> {
    let text = bounded(text.trim_ascii())?;
    let found = match decimal(text) {
        Some(number) if Magnitude::of(number) != Magnitude::Delta => return None,
        Some(number) if plain == Plain::Millis => ceil_millis(number.nanos_of(NANOS_PER_MILLI)),
        Some(number) => Duration::from_millis(u64::try_from(number.millis()).ok()?),
        None => match spans(text, true) {
            Some(nanos) => ceil_millis(nanos),
            None => period(std::str::from_utf8(text).ok()?)?,
        },
    };
    (!found.is_zero() && found <= MAX_WAIT).then_some(found)
}

/// A period by its word: `minute`, `daily`, `perhour`, `24hour`, `5h`, `1s`. A month and a year have no fixed length.
pub(super) fn period(word: &str) -> Option<Duration> {
    let word = word.strip_prefix("per").unwrap_or(word);
    let letters = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (count, unit) = word.split_at_checked(letters)?;
    let counted = !count.is_empty();
    let seconds: u64 = match unit {
        "second" | "seconds" | "secondly" | "sec" | "secs" => 1,
        "minute" | "minutes" | "minutely" | "min" | "mins" => 60,
        "hour" | "hours" | "hourly" | "hr" | "hrs" => 3600,
        "day" | "days" | "daily" => 86_400,
        "week" | "weeks" | "weekly" => 7 * 86_400,
        "s" if counted => 1,
        "m" if counted => 60,
        "h" if counted => 3600,
        "d" if counted => 86_400,
        "w" if counted => 7 * 86_400,
        _ => return None,
    };
    let count = if counted { count.parse::<u32>().ok()? } else { 1 };
    Some(Duration::from_secs(seconds.saturating_mul(u64::from(count)))).filter(|found| !found.is_zero())
}

/// Whether a word names a period, of fixed length or not.
pub(super) fn is_period(word: &str) -> bool {
    period(word).is_some()
        || matches!(word, "month" | "monthly" | "permonth" | "year" | "yearly" | "peryear" | "annual")
}

/// The parts before and after the first `at`.
pub(super) fn cut(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = text.iter().position(|byte| *byte == at)?;
    let (before, rest) = text.split_at_checked(index)?;
    Some((before, rest.get(1..)?))
}

/// Parts between separators that stand outside of quotes, without outer blanks; an empty text has one empty part.
pub(super) fn parts(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    pieces(text, separator).map(<[u8]>::trim_ascii)
}

/// The same with their blanks.
pub(super) fn pieces(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = unquoted(text, separator).unwrap_or(text.len());
        rest = text.get(end.saturating_add(1)..);
        text.get(..end)
    })
}

/// Index of the first `wanted` outside of quotes.
fn unquoted(text: &[u8], wanted: u8) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    text.iter().position(|byte| {
        let was_escaped = std::mem::take(&mut escaped);
        match byte {
            b'\\' if quoted && !was_escaped => escaped = true,
            b'"' if !was_escaped => quoted = !quoted,
            byte if *byte == wanted && !quoted => return true,
            _ => {}
        }
        false
    })
}

/// Text of a name or a partition; nothing when empty or beyond 256 bytes.
pub(super) fn text(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.trim_ascii();
    if bytes.is_empty() || bytes.len() > 256 {
        return None;
    }
    Some(match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    })
}
