//! The server's clock, the three HTTP-date forms and ISO 8601. An impossible date is no date.

use std::{
    cell::Cell,
    time::{SystemTime, UNIX_EPOCH},
};

use http::{
    HeaderMap,
    header::{AGE, DATE},
};
use jiff::{civil::DateTime, tz::Offset};

use super::value::{cut, digits};

const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// The clock that dates of a response are measured against: its own `Date` and `Age` where usable, so that a skewed
/// server cannot bend a wait (RFC 9110 §6.6.1), else the instant of receipt.
#[derive(Debug)]
pub(super) struct Clock<'h> {
    headers: Option<&'h HeaderMap>,
    received: SystemTime,
    now: Cell<Option<i128>>,
}

impl<'h> Clock<'h> {
    pub(super) fn new(headers: &'h HeaderMap, received: SystemTime) -> Self {
        Self { headers: Some(headers), received, now: Cell::new(None) }
    }

    /// One that stands at receipt.
    fn at_receipt(&self) -> Self {
        Self { headers: None, received: self.received, now: Cell::new(None) }
    }

    /// Unix time in nanoseconds; read once, and only when a date was found.
    pub(super) fn now(&self) -> i128 {
        self.now.get().unwrap_or_else(|| {
            let now = self.server_now().unwrap_or_else(|| unix_nanos(self.received));
            self.now.set(Some(now));
            now
        })
    }

    /// Nanoseconds until an instant; a past one is 0.
    pub(super) fn until(&self, instant: i128) -> u128 {
        u128::try_from(instant.saturating_sub(self.now())).unwrap_or(0)
    }

    fn server_now(&self) -> Option<i128> {
        let headers = self.headers?;
        let date = http_date(headers.get(DATE)?.as_bytes().trim_ascii(), &self.at_receipt()).filter(|at| *at > 0)?;
        // Delta-seconds saturate at 2^31 (RFC 9111 §1.2.2).
        let age = headers.get(AGE).and_then(|age| digits(age.as_bytes().trim_ascii())).unwrap_or(0).min(1 << 31);
        Some(date.saturating_add(i128::from(age).saturating_mul(NANOS_PER_SECOND)))
    }
}

fn unix_nanos(time: SystemTime) -> i128 {
    let nanos = |span: std::time::Duration| i128::try_from(span.as_nanos()).unwrap_or(i128::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => nanos(since),
        Err(before) => nanos(before.duration()).saturating_neg(),
    }
}

/// An HTTP-date of RFC 9110 §5.6.7 in nanoseconds of Unix time. A one-digit day, the zone `UTC` and second 60 are
/// tolerated; a wrong weekday is not.
pub(super) fn http_date(text: &[u8], clock: &Clock<'_>) -> Option<i128> {
    if let Some(nanos) = imf_fixdate(text) {
        return Some(nanos);
    }
    let text = std::str::from_utf8(text).ok().filter(|text| text.is_ascii() && text.len() <= 64)?;
    // httpdate's pivot of a two-digit year is fixed; RFC 9110's is 50 years from now.
    let strict = if text.contains('-') { None } else { httpdate::parse_http_date(text).ok() };
    match strict {
        Some(time) => Some(unix_nanos(time)),
        None => tolerant(text, clock),
    }
}

/// The form that nearly all servers send, read in place; whatever is odd about it is left to the other readers.
fn imf_fixdate(text: &[u8]) -> Option<i128> {
    let [w1, w2, w3, b',', b' ', d1, d2, b' ', m1, m2, m3, b' ', year @ .., b' ', b'G', b'M', b'T'] = text else {
        return None;
    };
    let [y1, y2, y3, y4, b' ', h1, h2, b':', n1, n2, b':', s1, s2] = year else { return None };
    let number = |text: &[u8]| digits(text).and_then(|value| i64::try_from(value).ok());
    let (day, year) = (number(&[*d1, *d2])?, number(&[*y1, *y2, *y3, *y4])?);
    let (hour, minute, second) = (number(&[*h1, *h2])?, number(&[*n1, *n2])?, number(&[*s1, *s2])?);
    let month = i64::try_from(month_number(&[*m1, *m2, *m3])?).ok()?;
    // The days that every month has; the last ones are left to a calendar.
    if !(1..=28).contains(&day) || year < 1970 || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = unix_days(year, month, day)?;
    // 1 January 1970 was a Thursday.
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"].get(usize::try_from(days.checked_rem(7)?).ok()?)?;
    if weekday.as_bytes() != [*w1, *w2, *w3] {
        return None;
    }
    let hours = days.checked_mul(24)?.checked_add(hour)?;
    let seconds = hours.checked_mul(60)?.checked_add(minute)?.checked_mul(60)?.checked_add(second)?;
    i128::from(seconds).checked_mul(NANOS_PER_SECOND)
}

/// Days since 1 January 1970 in the Gregorian calendar, counted in years that begin in March.
fn unix_days(year: i64, month: i64, day: i64) -> Option<i64> {
    let late = i64::from(month <= 2);
    let year = year.checked_sub(late)?;
    let from_march = month.checked_add(late.checked_mul(12)?)?.checked_sub(3)?;
    let before = from_march.checked_mul(153)?.checked_add(2)?.checked_div(5)?.checked_add(day)?.checked_sub(1)?;
    let leap = year.checked_div(4)?.checked_sub(year.checked_div(100)?)?.checked_add(year.checked_div(400)?)?;
    year.checked_mul(365)?.checked_add(leap)?.checked_add(before)?.checked_sub(719_468)
}

fn tolerant(text: &str, clock: &Clock<'_>) -> Option<i128> {
    let mut words = text.split_ascii_whitespace();
    let weekday = words.next()?;
    let second = words.next()?;
    let (day, month, year, time) = if let Some(weekday) = weekday.strip_suffix(',') {
        let date = match second.split_once('-') {
            Some((day, rest)) => {
                let (month, year) = rest.split_once('-')?;
                long_weekday(weekday)?;
                (day, month, full_year(year, (day, month), clock)?, words.next()?)
            }
            None => (second, words.next()?, four_digits(words.next()?)?, words.next()?),
        };
        if !matches!(words.next()?, "GMT" | "UTC") {
            return None;
        }
        date
    } else {
        let (day, time) = (words.next()?, words.next()?);
        (day, second, four_digits(words.next()?)?, time)
    };
    if words.next().is_some() {
        return None;
    }
    at(weekday.get(..3)?, (day, month, year), time)
}

fn long_weekday(word: &str) -> Option<()> {
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"].contains(&word).then_some(())
}

fn four_digits(text: &str) -> Option<u64> {
    digits(text.as_bytes()).filter(|_| text.len() == 4)
}

/// A two-digit year that would be more than 50 years ahead belongs to the past (RFC 9110 §5.6.7).
fn full_year(text: &str, (day, month): (&str, &str), clock: &Clock<'_>) -> Option<u64> {
    let short = digits(text.as_bytes()).filter(|_| text.len() == 2)?;
    let now = jiff::Timestamp::from_nanosecond(clock.now()).ok()?;
    let today = Offset::UTC.to_datetime(now);
    let this_year = u64::try_from(today.year()).ok()?;
    let century = this_year.checked_sub(this_year.checked_rem(100)?)?;
    let mut year = century.saturating_add(short);
    if year.saturating_add(50) < this_year {
        year = year.saturating_add(100);
    }
    let month = month_number(month.as_bytes())?;
    let ahead = (year, month, digits(day.as_bytes())?);
    let horizon = (this_year.saturating_add(50), u64::try_from(today.month()).ok()?, u64::try_from(today.day()).ok()?);
    if ahead > horizon { year.checked_sub(100) } else { Some(year) }
}

fn month_number(word: &[u8]) -> Option<u64> {
    let months = [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    (1_u64..).zip(months).find(|(_, month)| *month == word).map(|(number, _)| number)
}

fn at(weekday: &str, (day, month, year): (&str, &str, u64), time: &str) -> Option<i128> {
    let day = digits(day.as_bytes()).filter(|_| day.len() <= 2)?;
    // A leap second is the one before it: httpdate has none.
    let time = match time.strip_suffix(":60") {
        Some(minutes) => format!("{minutes}:59"),
        None => time.to_owned(),
    };
    // What lies before Unix time is past on any clock; its day is checked in a leap year of the same weekdays.
    let checked = if year < 1970 { year.checked_add(400)? } else { year };
    let parsed = httpdate::parse_http_date(&format!("{weekday}, {day:02} {month} {checked:04} {time} GMT")).ok()?;
    Some(if year < 1970 { 0 } else { unix_nanos(parsed) })
}

/// ISO 8601 / RFC 3339 in nanoseconds of Unix time: a blank for `T`; seconds, fraction and zone may be missing, no zone
/// is UTC (Jira Cloud sends `2024-03-05T11:00Z`).
pub(super) fn iso(text: &[u8]) -> Option<i128> {
    let (date, rest) = text.split_at_checked(10)?;
    let [year @ .., b'-', m1, m2, b'-', d1, d2] = date else { return None };
    let (separator, rest) = rest.split_first()?;
    if !matches!(separator, b'T' | b't' | b' ') {
        return None;
    }
    let zone = rest.iter().position(|byte| matches!(byte, b'Z' | b'z' | b'+' | b'-' | b' ')).unwrap_or(rest.len());
    let (time, zone) = rest.split_at_checked(zone)?;
    let (hour, rest) = cut(time, b':')?;
    let (minute, second) = cut(rest, b':').unwrap_or((rest, b"0"));
    let (second, fraction) = cut(second, b'.').unwrap_or((second, b"0"));
    let civil = DateTime::new(
        i16::try_from(digits(year)?).ok()?,
        two(&[*m1, *m2])?,
        two(&[*d1, *d2])?,
        two(hour)?,
        two(minute)?,
        two(second)?.min(59),
        0,
    );
    let instant = Offset::UTC.to_timestamp(civil.ok()?).ok()?.as_nanosecond();
    instant.checked_add(nanos(fraction)?)?.checked_sub(offset(zone)?.checked_mul(NANOS_PER_SECOND)?)
}

fn two(text: &[u8]) -> Option<i8> {
    digits(text).filter(|value| text.len() <= 2 && *value <= 60).and_then(|value| i8::try_from(value).ok())
}

/// Nanoseconds of a decimal fraction, rounded up.
fn nanos(fraction: &[u8]) -> Option<i128> {
    let mut padded = [b'0'; 10];
    for (to, from) in padded.iter_mut().zip(fraction) {
        *to = *from;
    }
    digits(fraction)?;
    let beyond = fraction.iter().skip(10).any(|byte| *byte != b'0');
    let tenths = i128::from(digits(&padded)?).saturating_add(i128::from(beyond));
    u128::try_from(tenths).ok().and_then(|tenths| i128::try_from(tenths.div_ceil(10)).ok())
}

/// Seconds east of UTC.
fn offset(zone: &[u8]) -> Option<i128> {
    let (sign, rest) = match zone.trim_ascii() {
        b"" | b"Z" | b"z" | b"UTC" | b"GMT" => return Some(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = match rest {
        [a, b] => ([*a, *b], *b"00"),
        [a, b, b':', c, d] | [a, b, c, d] => ([*a, *b], [*c, *d]),
        _ => return None,
    };
    let hours = digits(&hours).filter(|hours| *hours < 24)?;
    let minutes = digits(&minutes).filter(|minutes| *minutes < 60)?;
    let seconds = hours.saturating_mul(3600).saturating_add(minutes.saturating_mul(60));
    i128::from(seconds).checked_mul(sign)
}
