//! What a header says of the limits, and when.

use std::{fmt, fmt::Write};

use http::HeaderName;

use super::{Facts, MILLI, SECOND, Told, decimal};
use crate::limit::Unit;

/// A header of a dialect.
pub(super) struct Row {
    pub(super) name: HeaderName,
    pub(super) cell: Cell,
    pub(super) when: When,
}

pub(super) enum When {
    Always,
    Refused,
    /// Refused by the first quota.
    ByFirst,
    /// Refused by another.
    ByOther,
    /// Accepted, or refused by the first quota.
    UnlessOther,
}

impl When {
    pub(super) fn holds(&self, facts: &Facts<'_>) -> bool {
        match (self, facts.refusal) {
            (Self::Always, _) | (Self::Refused, Some(_)) | (Self::UnlessOther, None) => true,
            (Self::ByFirst | Self::UnlessOther, Some(refusal)) => refusal.by == 0,
            (Self::ByOther, Some(refusal)) => refusal.by > 0,
            _ => false,
        }
    }
}

/// What a header says; `(Which)` where a dialect tells several quotas apart.
pub(super) enum Cell {
    Text(&'static str),
    Limit(Which),
    Remaining(Which),
    Used,
    /// `used/limit`.
    UsedOfLimit,
    Seconds,
    Epoch,
    EpochDecimal,
    AfterDecimal,
    /// `6m0s`, `34ms`.
    GoDuration(Which),
    /// `100, 100;w=60, 1000;w=3600`.
    LimitAndPolicies,
    /// `100;w=60, 1000;w=3600`.
    Policies,
    /// `limit=100, remaining=50, reset=30`.
    Dictionary,
    /// `"default";r=50;t=30`.
    Items,
    /// `"default";q=100;w=60`.
    NamedPolicies,
}

#[derive(Clone, Copy)]
pub(super) enum Which {
    /// The one that refused, else the one nearest to its end.
    Tightest,
    Requests,
    Tokens,
}

impl Which {
    fn pick<'a>(self, facts: &Facts<'a>) -> Option<&'a Told> {
        match self {
            Self::Tightest => facts.tightest(),
            Self::Requests => facts.quotas.iter().find(|told| told.unit == Unit::Requests),
            Self::Tokens => facts.quotas.iter().find(|told| told.unit == Unit::Tokens),
        }
    }
}

impl<'a> Facts<'a> {
    fn tightest(&self) -> Option<&'a Told> {
        match self.refusal {
            Some(refusal) => self.quotas.get(refusal.by).or_else(|| self.quotas.first()),
            None => self.quotas.iter().min_by(|a, b| share(a, b)),
        }
    }
}

/// Compares what is left of two quotas.
fn share(a: &Told, b: &Told) -> std::cmp::Ordering {
    let cross = |x: &Told, y: &Told| u128::from(x.remaining) * u128::from(y.limit);
    cross(a, b).cmp(&cross(b, a))
}

impl Cell {
    /// `None`: there is nothing to say.
    pub(super) fn write(&self, facts: &Facts<'_>, out: &mut String) -> Option<()> {
        let told = facts.tightest()?;
        let at = facts.now + told.reset;
        let written = match *self {
            Self::Text(text) => out.write_str(text),
            Self::Limit(which) => write!(out, "{}", which.pick(facts)?.limit),
            Self::Remaining(which) => write!(out, "{}", which.pick(facts)?.remaining),
            Self::Used => write!(out, "{}", told.used()),
            Self::UsedOfLimit => write!(out, "{}/{}", told.used(), told.limit),
            Self::Seconds => write!(out, "{}", told.reset.div_ceil(SECOND)),
            Self::Epoch => write!(out, "{}", at.div_ceil(SECOND)),
            Self::EpochDecimal => out.write_str(&decimal(at.div_ceil(MILLI), 3)),
            Self::AfterDecimal => out.write_str(&decimal(told.reset.div_ceil(MILLI), 3)),
            Self::GoDuration(which) => go_duration(which.pick(facts)?.reset, out),
            Self::LimitAndPolicies => write!(out, "{}, ", told.limit).and_then(|()| policies(facts, out)),
            Self::Policies => policies(facts, out),
            Self::Dictionary => {
                let reset = told.reset.div_ceil(SECOND);
                write!(out, "limit={}, remaining={}, reset={reset}", told.limit, told.remaining)
            }
            Self::Items => items(facts, out),
            Self::NamedPolicies => named_policies(facts, out),
        };
        written.ok()
    }
}

impl Told {
    fn used(&self) -> u64 {
        self.limit.saturating_sub(self.remaining)
    }

    /// Whole seconds, rounded up: a shorter window would promise more than there is.
    fn window_seconds(&self) -> Option<u64> {
        self.window.map(|nanos| nanos.div_ceil(SECOND).max(1))
    }

    /// A lone quota is `default`; several are named by unit and window, which tells them apart.
    fn name(&self, alone: bool, out: &mut String) -> fmt::Result {
        match self.window_seconds() {
            _ if alone => out.write_str("\"default\""),
            Some(seconds) => write!(out, "\"{}-{seconds}s\"", self.unit),
            None => out.write_str("\"concurrency\""),
        }
    }
}

fn policies(facts: &Facts<'_>, out: &mut String) -> fmt::Result {
    for (i, told) in facts.quotas.iter().enumerate() {
        out.write_str(if i == 0 { "" } else { ", " })?;
        write!(out, "{}", told.limit)?;
        if let Some(seconds) = told.window_seconds() {
            write!(out, ";w={seconds}")?;
        }
    }
    Ok(())
}

/// `t`: until more appears if nothing is left (draft-10, -11 §4.1.2), else until the reset.
fn items(facts: &Facts<'_>, out: &mut String) -> fmt::Result {
    for (i, told) in facts.quotas.iter().enumerate() {
        out.write_str(if i == 0 { "" } else { ", " })?;
        told.name(facts.quotas.len() == 1, out)?;
        write!(out, ";r={}", told.remaining)?;
        let until = if told.remaining == 0 { told.more } else { told.reset };
        if told.window.is_some() {
            write!(out, ";t={}", until.div_ceil(SECOND))?;
        }
    }
    Ok(())
}

fn named_policies(facts: &Facts<'_>, out: &mut String) -> fmt::Result {
    for (i, told) in facts.quotas.iter().enumerate() {
        out.write_str(if i == 0 { "" } else { ", " })?;
        told.name(facts.quotas.len() == 1, out)?;
        write!(out, ";q={}", told.limit)?;
        match (told.window_seconds(), &told.unit) {
            (None, _) => out.write_str(";qu=\"concurrent-requests\"")?,
            (Some(seconds), Unit::Requests) => write!(out, ";w={seconds}")?,
            (Some(seconds), unit) => write!(out, ";w={seconds};qu=\"{unit}\"")?,
        }
    }
    Ok(())
}

/// As Go prints a duration, in whole milliseconds: `34ms`, `1.5s`, `6m0s`, `1h0m0s`.
pub(super) fn go_duration(nanos: u64, out: &mut String) -> fmt::Result {
    let millis = nanos.div_ceil(MILLI);
    let (hours, minutes, rest) = (millis / 3_600_000, millis / 60_000 % 60, millis % 60_000);
    if millis > 0 && millis < 1000 {
        return write!(out, "{millis}ms");
    }
    if hours > 0 {
        write!(out, "{hours}h")?;
    }
    if hours > 0 || minutes > 0 {
        write!(out, "{minutes}m")?;
    }
    match (rest / 1000, rest % 1000) {
        (seconds, 0) => write!(out, "{seconds}s"),
        (seconds, part) => write!(out, "{seconds}.{}s", format!("{part:03}").trim_end_matches('0')),
    }
}
