//! Dialects whose value is a format of its own: pairs, counts with their windows, `key=value`, JSON. A format a
//! function, never a vendor a function.

use std::time::Duration;

use serde_json::Value;

use super::{
    QuotaHint, QuotaScope, body,
    date::Clock,
    draft::Drafts,
    family::{self, Role},
    ratelimit::{MAX_MEMBERS, named_unit},
    retry_after::{Source, Waits},
    value::{self, Plain},
};
use crate::Unit;

/// Reads a header that tells whole quotas in one line and whose name has no family word. `false`: it is none of these.
pub(super) fn one_line<'h>(name: &'h str, text: &[u8], clock: &Clock<'_>, found: &mut Drafts<'h>) -> bool {
    let before = found.len();
    if name == "remaining-req" {
        periods(text, &mut |hint| found.quota(name, hint));
    } else if let Some(of) = name.strip_prefix("x-").and_then(|rest| rest.strip_suffix("-usage")) {
        usage(of, text, &mut |hint| found.quota(name, hint));
    } else if text.contains(&b'/') {
        pairs(text, clock, &mut |hint| found.quota(name, hint));
    }
    found.len() > before
}

/// Used and limit as `32/40`.
fn used_of(text: &[u8]) -> Option<(f64, f64)> {
    let (used, limit) = value::cut(text, b'/')?;
    Some((value::count(used)?, value::count(limit)?))
}

/// `32/40` (Shopify, Recharge, Lightspeed), `api-usage=18/5000` (Salesforce, which adds `(appName=…)`),
/// `token:KEY 3/2000 reset=3594s` (Eventbrite): used of a limit, with what stands beside it. Keys are not kept.
pub(super) fn pairs(text: &[u8], clock: &Clock<'_>, found: &mut impl FnMut(QuotaHint)) {
    let members = value::parts(text, b',').flat_map(|part| value::parts(part, b';'));
    for member in members.take(MAX_MEMBERS) {
        let mut hint = QuotaHint::default();
        for word in member.split(u8::is_ascii_whitespace) {
            pair_word(word, clock, &mut hint);
        }
        if hint.limit.is_some() {
            found(hint);
        }
    }
}

fn pair_word(word: &[u8], clock: &Clock<'_>, hint: &mut QuotaHint) {
    let word = value::cut(word, b'(').map_or(word, |(before, _)| before);
    let (key, text) = value::cut(word, b'=').unwrap_or((b"", word));
    if let Some((used, limit)) = used_of(text) {
        hint.name = value::text(key).or_else(|| hint.name.take());
        hint.limit = Some(limit);
        hint.remaining = Some((limit - used).max(0.0));
    } else if key.is_empty() {
        hint.name = hint.name.take().or_else(|| value::text(value::cut(text, b':')?.0));
    } else {
        keyed(key, text, clock, hint);
    }
}

/// One `key=value` by the key's role word. `None`: a role whose value is unreadable.
fn keyed(key: &[u8], text: &[u8], clock: &Clock<'_>, hint: &mut QuotaHint) -> Option<()> {
    let suffix = std::str::from_utf8(key).ok().and_then(family::suffix);
    let plain = if suffix.is_some_and(|suffix| suffix.millis) { Plain::Millis } else { Plain::Seconds };
    match suffix.filter(|suffix| suffix.name.is_empty()).map(|suffix| suffix.role) {
        Some(Role::Limit) => hint.limit = Some(value::count(text)?),
        Some(Role::Remaining) => hint.remaining = Some(value::count(text)?),
        Some(Role::Reset { .. }) => hint.reset_after = Some(value::reset(text, clock, plain)?),
        Some(Role::Window { .. }) => hint.window = Some(value::window(text, plain)?),
        _ if key == b"w" => hint.window = Some(value::window(text, plain)?),
        _ => {}
    }
    Some(())
}

/// `limit=100, remaining=50, reset=5` (draft -07), `total=100; remaining=99; resets=41` (Zendesk). `None`: malformed.
pub(super) fn dictionary(text: &[u8], clock: &Clock<'_>, hint: &mut QuotaHint) -> Option<()> {
    let members = value::parts(text, b',').flat_map(|part| value::parts(part, b';'));
    for member in members.take(MAX_MEMBERS) {
        if let Some((key, text)) = value::cut(member, b'=') {
            keyed(key.trim_ascii(), text.trim_ascii(), clock, hint)?;
        }
    }
    Some(())
}

/// Upbit: `group=market; min=600; sec=9`, what remains in each window.
fn periods(text: &[u8], found: &mut impl FnMut(QuotaHint)) {
    let mut name = None;
    for part in value::parts(text, b';').take(MAX_MEMBERS) {
        let Some((key, text)) = value::cut(part, b'=') else { continue };
        if key == b"group" {
            name = value::text(text);
            continue;
        }
        let window = std::str::from_utf8(key).ok().and_then(value::period);
        let remaining = value::count(text);
        if window.is_some() && remaining.is_some() {
            found(QuotaHint { name: name.clone(), remaining, window, ..QuotaHint::default() });
        }
    }
}

/// Riot: `100:120,20:1`, a number and its window in seconds.
pub(super) fn ratios(text: &[u8]) -> impl Iterator<Item = (f64, Duration)> {
    value::parts(text, b',').take(MAX_MEMBERS).filter_map(|member| {
        let (count, seconds) = value::cut(member, b':')?;
        Some((value::count(count)?, value::window(seconds, Plain::Seconds)?))
    })
}

/// Whether a value is a list of such.
pub(super) fn is_ratio(text: &[u8]) -> bool {
    text.first().is_some_and(u8::is_ascii_digit) && text.contains(&b':') && ratios(text).next().is_some()
}

/// Riot's quotas: limits with the counts used, joined by their window. The method family binds a route.
pub(super) fn ratio_quotas(vendor: &str, limits: &[u8], counts: &[u8], found: &mut impl FnMut(QuotaHint)) {
    for (limit, window) in ratios(limits) {
        let used = ratios(counts).find(|(_, other)| *other == window).map(|(used, _)| used);
        found(QuotaHint {
            name: value::text(vendor.as_bytes()),
            limit: Some(limit),
            remaining: used.map(|used| (limit - used).max(0.0)),
            window: Some(window),
            scope: if vendor == "method" { QuotaScope::Route } else { QuotaScope::Key },
            ..QuotaHint::default()
        });
    }
}

/// Sentry: `seconds:categories:scope:…`, each category an exhausted quota; no category is all of them, so also a wait.
pub(super) fn sentry(text: &[u8], clock: &Clock<'_>, waits: &mut Waits, found: &mut impl FnMut(QuotaHint)) {
    for member in value::parts(text, b',').take(MAX_MEMBERS) {
        let mut fields = member.split(|byte| *byte == b':').map(<[u8]>::trim_ascii);
        let Some(reset_after) = fields.next().and_then(|text| value::reset(text, clock, Plain::Seconds)) else {
            continue;
        };
        let Some(categories) = fields.next() else { continue };
        let partition = fields.next().and_then(value::text);
        if categories.is_empty() {
            waits.add(Source::Alias, Some(reset_after.min(value::MAX_WAIT)));
        }
        for category in value::parts(categories, b';').take(MAX_MEMBERS) {
            found(QuotaHint {
                name: value::text(category),
                remaining: Some(0.0),
                reset_after: Some(reset_after),
                partition: partition.clone(),
                ..QuotaHint::default()
            });
        }
    }
}

/// Azure Compute: `name;n`, what remains of a named quota.
pub(super) fn named_count(text: &[u8]) -> Option<(String, f64)> {
    let (name, count) = value::cut(text, b';')?;
    if value::decimal(name.trim_ascii()).is_some() {
        return None;
    }
    Some((value::text(name)?, value::count(count)?))
}

/// Trakt: `{"name":…,"period":300,"limit":1000,"remaining":0,"until":"…"}`.
pub(super) fn json_quota(text: &[u8], clock: &Clock<'_>) -> Option<QuotaHint> {
    let json = body::parse(text)?;
    let get = |key: &str| json.get(key).and_then(body::scalar);
    let any = |keys: &[&str]| keys.iter().find_map(|key| get(key));
    let count = |keys: &[&str]| any(keys).and_then(|text| value::count(text.as_bytes()));
    let mut hint = QuotaHint {
        name: any(&["name"]).and_then(|name| value::text(name.as_bytes())),
        limit: count(&["limit", "max", "total"]),
        remaining: count(&["remaining", "available"]),
        window: any(&["period", "window", "interval"]).and_then(|text| value::window(text.as_bytes(), Plain::Seconds)),
        reset_after: any(&["until", "reset", "resets", "reset_at"])
            .and_then(|text| value::reset(text.as_bytes(), clock, Plain::Seconds)),
        ..QuotaHint::default()
    };
    hint.unit = any(&["unit"]).map_or(Unit::Requests, |name| named_unit(&name));
    Some(hint)
}

/// Facebook: percentages of three counts that throttle together, so the largest counts. `X-App-Usage` is one object;
/// `X-Business-Use-Case-Usage` has lists of them by id, each with its type and the minutes to regain access.
fn usage(of: &str, text: &[u8], found: &mut impl FnMut(QuotaHint)) {
    let Some(json) = body::parse(text) else { return };
    if let Some(hint) = percent(&json) {
        return found(QuotaHint { name: value::text(of.as_bytes()), ..hint });
    }
    let Some(ids) = json.as_object() else { return };
    for (id, cases) in ids.iter().take(MAX_MEMBERS) {
        for case in cases.as_array().into_iter().flatten().take(MAX_MEMBERS) {
            let Some(hint) = percent(case) else { continue };
            let name = case.get("type").and_then(Value::as_str).and_then(|name| value::text(name.as_bytes()));
            let minutes = case.get("estimated_time_to_regain_access").and_then(Value::as_u64);
            let reset_after = minutes.map(|minutes| Duration::from_secs(minutes.min(1 << 31).saturating_mul(60)));
            found(QuotaHint { name, reset_after, partition: value::text(id.as_bytes()), ..hint });
        }
    }
}

fn percent(usage: &Value) -> Option<QuotaHint> {
    let counts = ["call_count", "total_time", "total_cputime"];
    let used = counts.iter().filter_map(|key| usage.get(key)?.as_f64()).filter(|used| *used >= 0.0);
    Some(share(used.reduce(f64::max)?))
}

/// A quota of 100 percent of which so much is used.
pub(super) fn share(percent: f64) -> QuotaHint {
    // Without the noise that a decimal fraction times 100 brings.
    let remaining = ((100.0 - percent) * 1e9).round() / 1e9;
    QuotaHint {
        limit: Some(100.0),
        remaining: Some(remaining.max(0.0)),
        unit: Unit::Other("percent".to_owned()),
        ..QuotaHint::default()
    }
}
