//! From header lines to quotas: lines of one name are put together, then quotas told twice become one.

use std::time::Duration;

use super::{
    QuotaHint, QuotaScope,
    date::Clock,
    draft::Drafts,
    family::{self, Field, Role},
    ratelimit::{self, Bare},
    value::{self, Plain},
    vendor,
};
use crate::Unit;

/// Reads the fields and joins them with what is found already.
pub(super) fn quotas<'h>(mut fields: Vec<Field<'h>>, mut found: Drafts<'h>, clock: &Clock<'_>) -> Vec<QuotaHint> {
    drop_oversized(&mut fields);
    let fields = fields.as_slice();
    let response = Response {
        fields,
        clock,
        plain_family: fields.iter().any(|field| !field.vendor.is_empty())
            && fields.iter().any(|field| field.vendor.is_empty() && field.counts_in_family()),
        renewal: fields.iter().any(|field| field.role == Role::Window { renewal: true } && !field.name.is_empty()),
    };
    for (index, head) in fields.iter().enumerate() {
        if !fields.iter().take(index).any(|earlier| earlier.group == head.group) {
            Group { response: &response, head }.read(&mut found);
        }
    }
    if found.has_policies() {
        found.join_policies();
    }
    name_the_nameless(fields, &mut found);
    found.merge();
    found.finish()
}

/// Fields of more bytes or members than are read, all their lines together, are as if absent.
fn drop_oversized(fields: &mut Vec<Field<'_>>) {
    if fields.iter().map(|field| field.value.len()).fold(0, usize::saturating_add) <= ratelimit::SHORT {
        return;
    }
    let oversized = |field: &Field<'_>| {
        let same = fields.iter().filter(|other| other.role == field.role && other.group == field.group);
        ratelimit::oversized(same.map(|other| other.value))
    };
    if fields.iter().any(oversized) {
        let kept = fields.iter().filter(|field| !oversized(field)).copied().collect();
        *fields = kept;
    }
}

/// What all groups of a response share.
struct Response<'f, 'h> {
    fields: &'f [Field<'h>],
    clock: &'f Clock<'f>,
    /// A family without a vendor's name is there: those with one are named after it (Strava's read limits).
    plain_family: bool,
    /// Azure OpenAI's dialect: plain resets of named quotas are milliseconds.
    renewal: bool,
}

/// The lines of one quota.
struct Group<'f, 'h> {
    response: &'f Response<'f, 'h>,
    head: &'f Field<'h>,
}

impl<'h> Group<'_, 'h> {
    fn read(&self, found: &mut Drafts<'h>) {
        if self.positional(found) {
            return;
        }
        let mut hint = QuotaHint::default();
        let mut used = None;
        for field in self.fields() {
            self.line(field, &mut hint, &mut used, found);
        }
        self.complete(&mut hint, used);
        hint.reset_after = self.reset().or(hint.reset_after);
        // What the family's name says of a quota that nothing is told of would only stand in the way.
        if hint.limit.is_some() || hint.remaining.is_some() || hint.reset_after.is_some() || hint.window.is_some() {
            self.describe(&mut hint);
            found.quota(self.head.prefix, hint);
        }
    }

    fn fields(&self) -> impl Iterator<Item = &Field<'h>> {
        self.response.fields.iter().filter(|field| field.group == self.head.group)
    }

    fn lines(&self, wanted: impl Fn(Role) -> bool) -> impl Iterator<Item = &'h [u8]> {
        self.fields().filter(move |field| wanted(field.role)).map(|field| field.value)
    }

    /// Takes in one line.
    fn line(&self, field: &Field<'h>, hint: &mut QuotaHint, used: &mut Option<f64>, found: &mut Drafts<'h>) {
        let text = field.value;
        match field.role {
            Role::Limit => self.limits(text, hint, found),
            Role::Remaining => self.remaining(field, hint, found),
            Role::Used => {
                *used = numbers(text).fold(*used, |most, next| Some(most.map_or(next, |most| most.max(next))))
            }
            Role::Utilization => self.utilization(text, hint),
            Role::Window { .. } => hint.window = hint.window.or_else(|| self.window(field)),
            Role::Whole => self.whole(text, hint, found),
            Role::Policy => self.policies(text, found),
            Role::Pairs => self.pairs(text, hint),
            Role::Reset { .. } | Role::FillRate | Role::Wait | Role::Scope | Role::Naming(_) => {}
        }
    }

    /// `100`, `100;w=60`, `100, 100;w=1, 1000;w=60`: the first is in force, the others are policies.
    fn limits(&self, text: &[u8], hint: &mut QuotaHint, found: &mut Drafts<'h>) {
        let before = found.len();
        let mut first: Option<Bare> = None;
        let in_force = hint.limit.is_some();
        let read = ratelimit::bare(text, &mut |bare| {
            if first.is_none() && !in_force {
                first = Some(bare);
            } else {
                self.policy(bare, found);
            }
        });
        match (read, first) {
            (Some(()), Some(bare)) => {
                hint.limit = bare.limit;
                hint.window = hint.window.or(bare.window);
                hint.name = hint.name.take().or(bare.name);
            }
            (Some(()), None) => {}
            (None, _) => found.truncate(before),
        }
    }

    fn policy(&self, bare: Bare, found: &mut Drafts<'h>) {
        if bare.limit.is_some() {
            let mut hint =
                QuotaHint { name: bare.name, limit: bare.limit, window: bare.window, ..QuotaHint::default() };
            self.name(&mut hint);
            found.push(self.head.prefix, true, hint);
        }
    }

    /// Whether one of several lines of named items is malformed: together they are one list, so all are void.
    fn malformed(&self, role: Role) -> bool {
        let mut lines = self.lines(|other| other == role);
        self.lines(|other| other == role).count() > 1 && lines.any(|line| ratelimit::named(line, &mut |_| ()).is_none())
    }

    fn policies(&self, text: &[u8], found: &mut Drafts<'h>) {
        let before = found.len();
        let prefix = self.head.prefix;
        let read = match text.first() {
            Some(b'"' | b'*' | b'a'..=b'z' | b'A'..=b'Z') => {
                if self.malformed(Role::Policy) {
                    return;
                }
                ratelimit::named(text, &mut |hint| found.push(prefix, true, hint))
            }
            _ => ratelimit::bare(text, &mut |bare| self.policy(bare, found)),
        };
        if read.is_none() {
            found.truncate(before);
        }
    }

    /// `76;w=21600` (Docker Hub); `name;n` once or more (Azure Compute).
    fn remaining(&self, field: &Field<'h>, hint: &mut QuotaHint, found: &mut Drafts<'h>) {
        let scope = scope_of(family::naming(field.name));
        let mut named = false;
        for part in value::parts(field.value, b',').take(ratelimit::MAX_MEMBERS) {
            if let Some((name, remaining)) = vendor::named_count(part) {
                named = true;
                let hint = QuotaHint { name: Some(name), remaining: Some(remaining), scope, ..QuotaHint::default() };
                found.quota(self.head.prefix, hint);
            }
        }
        if named {
            return;
        }
        // Of several the least holds.
        let read = ratelimit::bare(field.value, &mut |bare| {
            let known = hint.remaining;
            hint.remaining = bare.limit.map(|next| known.map_or(next, |known| known.min(next))).or(known);
            hint.window = hint.window.or(bare.window);
        });
        if read.is_none() {
            hint.remaining = None;
        }
    }

    /// A whole quota, or several, in one value; its first bytes tell the dialect.
    fn whole(&self, text: &[u8], hint: &mut QuotaHint, found: &mut Drafts<'h>) {
        let prefix = self.head.prefix;
        let before = found.len();
        if text.starts_with(b"{") {
            if let Some(hint) = vendor::json_quota(text, self.response.clock) {
                found.quota(prefix, hint);
            }
        } else if vendor::is_ratio(text) {
            let counts = self.lines(|role| role == Role::Used).next().unwrap_or_default();
            vendor::ratio_quotas(self.head.vendor, text, counts, &mut |hint| found.quota(prefix, hint));
        } else if text.first().is_some_and(u8::is_ascii_digit) && !text.contains(&b'/') {
            self.limits(text, hint, found);
        } else if is_dictionary(text) {
            let mut read = QuotaHint::default();
            if vendor::dictionary(text, self.response.clock, &mut read).is_some() {
                found.quota(prefix, read);
            }
        } else if !text.contains(&b'/') || text.starts_with(b"\"") {
            let read = ratelimit::named(text, &mut |hint| found.quota(prefix, hint));
            if read.is_none() || self.malformed(Role::Whole) {
                found.truncate(before);
            }
        } else {
            vendor::pairs(text, self.response.clock, &mut |hint| found.quota(prefix, hint));
        }
    }

    fn pairs(&self, text: &[u8], hint: &mut QuotaHint) {
        let mut read = QuotaHint::default();
        if vendor::dictionary(text, self.response.clock, &mut read).is_some() && read != QuotaHint::default() {
            read.name = value::text(self.head.name.as_bytes());
            *hint = read;
        }
    }

    /// Anthropic's unified quotas tell the used share.
    fn utilization(&self, text: &[u8], hint: &mut QuotaHint) {
        if let Some(share) = value::count(text) {
            *hint = QuotaHint { window: hint.window, ..vendor::share(share * 100.0) };
        }
    }

    fn window(&self, field: &Field<'h>) -> Option<Duration> {
        let mut family = self.response.fields.iter().filter(|other| other.prefix == field.prefix);
        if field.name.is_empty() && family.any(|other| other.role == Role::FillRate) {
            return None;
        }
        value::window(field.value, if field.millis { Plain::Millis } else { Plain::Seconds })
    }

    /// The relative form needs no clock, so it wins.
    fn reset(&self) -> Option<Duration> {
        let azure = self.response.renewal && !self.head.name.is_empty();
        let read = |relative| {
            let mut fields = self.fields().filter(move |field| field.role == Role::Reset { relative });
            fields.find_map(|field| {
                let plain = if field.millis || azure { Plain::Millis } else { Plain::Seconds };
                value::longest(field.value, |text| value::reset(text, self.response.clock, plain))
            })
        };
        read(true).or_else(|| read(false))
    }

    /// Missing remaining = limit - used; missing limit = remaining + used.
    fn complete(&self, hint: &mut QuotaHint, used: Option<f64>) {
        let Some(used) = used else { return };
        hint.remaining = hint.remaining.or_else(|| Some((hint.limit? - used).max(0.0)));
        hint.limit = hint.limit.or_else(|| Some(hint.remaining? + used));
    }

    /// Name, unit and window as the header's name tells them.
    fn describe(&self, hint: &mut QuotaHint) {
        self.name(hint);
        let name = hint.name.as_deref().unwrap_or_default();
        if hint.unit == Unit::Requests && !name.is_empty() {
            hint.unit = unit_of(name);
        }
        hint.window =
            hint.window.or_else(|| family::window_of(self.head.name, true)).or_else(|| per_second(self.head.prefix));
    }

    fn name(&self, hint: &mut QuotaHint) {
        if hint.name.is_some() {
            return;
        }
        let vendor = if self.response.plain_family { self.head.vendor } else { "" };
        let Field { lead, name, .. } = *self.head;
        hint.name = match [vendor, lead, name] {
            ["", "", ""] => None,
            ["", "", only] | ["", only, ""] | [only, "", ""] => Some(only.to_owned()),
            words => Some(words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")),
        };
    }

    /// Strava: `600,30000` beside `92,10757`. Lists of one length are read by position; a limit list alone is a
    /// draft's.
    fn positional(&self, found: &mut Drafts<'h>) -> bool {
        let Some(limits) = self.list(|role| matches!(role, Role::Limit | Role::Whole)) else { return false };
        let same = |list: &Vec<f64>| list.len() == limits.len();
        let used = self.list(|role| role == Role::Used).filter(same);
        let remaining = self.list(|role| role == Role::Remaining).filter(same);
        if used.is_none() && remaining.is_none() {
            return false;
        }
        for (index, limit) in limits.iter().enumerate() {
            let at = |list: &Option<Vec<f64>>| list.as_ref().and_then(|list| list.get(index)).copied();
            let mut hint = QuotaHint { limit: Some(*limit), remaining: at(&remaining), ..QuotaHint::default() };
            self.complete(&mut hint, at(&used));
            hint.reset_after = self.reset_at(index, limits.len());
            self.describe(&mut hint);
            found.quota(self.head.prefix, hint);
        }
        true
    }

    /// Two or more bare numbers in the lines of a role, else nothing.
    fn list(&self, wanted: impl Fn(Role) -> bool) -> Option<Vec<f64>> {
        let mut lines = self.lines(&wanted);
        let first = lines.next()?;
        if !first.contains(&b',') && lines.next().is_none() {
            return None;
        }
        let parts = self.lines(&wanted).flat_map(|line| value::parts(line, b',')).take(ratelimit::MAX_MEMBERS);
        let list: Vec<f64> = parts.map(value::count).collect::<Option<_>>()?;
        (list.len() > 1).then_some(list)
    }

    fn reset_at(&self, index: usize, length: usize) -> Option<Duration> {
        let parts = || {
            let lines = self.fields().filter(|field| matches!(field.role, Role::Reset { .. }));
            lines.flat_map(|field| value::parts(field.value, b',').map(|part| (part, field.millis)))
        };
        let (text, millis) = parts().nth(index).filter(|_| parts().count() == length)?;
        value::reset(text, self.response.clock, if millis { Plain::Millis } else { Plain::Seconds })
    }
}

/// The readable numbers of a list.
fn numbers(text: &[u8]) -> impl Iterator<Item = f64> {
    value::parts(text, b',').take(ratelimit::MAX_MEMBERS).filter_map(value::count)
}

/// `limit=100, …` but not `token;r=1` and not `api-usage=18/5000`.
fn is_dictionary(text: &[u8]) -> bool {
    let first = text.iter().find(|byte| matches!(byte, b'=' | b';' | b',' | b'"' | b'/' | b' '));
    first == Some(&b'=') && !text.contains(&b'/')
}

/// Amazon's rate is per second, below 1 too (Selling Partner API usage plans).
fn per_second(prefix: &str) -> Option<Duration> {
    (prefix == "x-amzn-ratelimit").then(|| Duration::from_secs(1))
}

/// Only these plural words are units: `api-token` is an access token.
fn unit_of(name: &str) -> Unit {
    let mut words = name.split(['-', '_']);
    match words.find(|word| matches!(*word, "tokens" | "images" | "complexity")) {
        Some("tokens") => Unit::Tokens,
        Some(other) => Unit::Other(other.to_owned()),
        None => Unit::Requests,
    }
}

/// A name that a `-name` header gave binds the key, one of a bucket or a resource the routes that carry it.
fn scope_of(naming: Option<Role>) -> QuotaScope {
    match naming {
        Some(Role::Naming(1..)) => QuotaScope::Route,
        _ => QuotaScope::Key,
    }
}

/// Gives names and partitions that headers of their own tell to the nameless quotas of the same prefix.
fn name_the_nameless(fields: &[Field<'_>], found: &mut Drafts<'_>) {
    for field in fields.iter().filter(|field| field.role == Role::Scope) {
        for hint in found.nameless(field.prefix) {
            hint.partition = hint.partition.take().or_else(|| value::text(field.value));
        }
    }
    if !fields.iter().any(|field| matches!(field.role, Role::Naming(_))) {
        return;
    }
    for rank in 0..=6 {
        for field in fields.iter().filter(|field| field.role == Role::Naming(rank)) {
            let Some(name) = value::text(field.value) else { continue };
            for hint in found.nameless(field.prefix) {
                hint.scope = scope_of(Some(field.role));
                hint.window = hint.window.or_else(|| family::window_of(&name, false));
                if hint.unit == Unit::Requests {
                    hint.unit = unit_of(&name);
                }
                hint.name = Some(name.clone());
            }
        }
    }
}
