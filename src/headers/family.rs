//! What a header's name says: family, vendor, role and the quota's name. Names are lower case already, so plain
//! comparisons do.

use std::time::Duration;

use super::value;

/// What a header tells of its quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Limit,
    Remaining,
    Used,
    /// Used share of the limit, 1 = all.
    Utilization,
    /// `relative`: by its name from now, without a clock.
    Reset {
        relative: bool,
    },
    /// `renewal`: Azure OpenAI's word, which marks its dialect.
    Window {
        renewal: bool,
    },
    /// Policies of the IETF drafts.
    Policy,
    /// No suffix: a limit, or a whole quota in the value.
    Whole,
    /// No role word: `key=value` pairs or nothing.
    Pairs,
    /// The window belongs to a refill, not to the limit.
    FillRate,
    /// A wait under the family's name.
    Wait,
    /// What is counted per.
    Scope,
    /// The name of the nameless quota; the lowest rank wins, 0 is `-name`.
    Naming(u8),
}

/// One header line of a family, taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<'h> {
    /// Name up to the end of the family word: quotas of one prefix belong together.
    pub(super) prefix: &'h str,
    /// What stands before the family word; part of the quota's name only beside a family without it.
    pub(super) vendor: &'h str,
    /// First part of the quota's name, when that is in two places.
    pub(super) lead: &'h str,
    pub(super) name: &'h str,
    pub(super) role: Role,
    /// A plain time is milliseconds by the header's name.
    pub(super) millis: bool,
    pub(super) value: &'h [u8],
    /// Equal for the lines that tell of one quota.
    pub(super) group: usize,
}

impl<'h> Field<'h> {
    /// Whether both lines tell of the same quota.
    pub(super) fn same_quota(&self, other: &Self) -> bool {
        self.name == other.name && self.lead == other.lead && self.prefix == other.prefix
    }

    /// Whether it belongs to a family word and tells a number.
    pub(super) fn counts_in_family(&self) -> bool {
        let role = matches!(
            self.role,
            Role::Limit | Role::Remaining | Role::Used | Role::Utilization | Role::Reset { .. } | Role::Whole
        );
        role && FAMILIES.iter().any(|word| self.prefix.ends_with(word))
    }

    fn new(prefix: &'h str, suffix: Suffix<'h>, value: &'h [u8]) -> Self {
        let Suffix { role, name, millis } = suffix;
        Self { prefix, vendor: "", lead: "", name, role, millis, value, group: 0 }
    }
}

/// A suffix taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Suffix<'h> {
    pub(super) role: Role,
    pub(super) name: &'h str,
    pub(super) millis: bool,
}

impl<'h> Suffix<'h> {
    fn plain(role: Role, name: &'h str) -> Self {
        Self { role, name, millis: false }
    }
}

const FAMILIES: [&str; 3] = ["ratelimit", "rate-limit", "floodcontrol"];

/// Reads `[x-][vendor-]family[-suffix]`.
pub(super) fn field<'h>(header: &'h str, value: &'h [u8]) -> Option<Field<'h>> {
    let (start, end) = family(header)?;
    let (prefix, suffix) = header.split_at_checked(end)?;
    let before = header.get(..start)?;
    let vendor = before.strip_prefix("x-").unwrap_or(before).trim_end_matches('-');
    let mut field = Field::new(prefix, self::suffix(suffix)?, value);
    // Beta- is no vendor but the drafts' own prefix (Jira Cloud).
    field.vendor = if vendor == "beta" { "" } else { vendor };
    // KuCoin's reset is milliseconds and only its prefix tells (recorded answer: 29994 in a 30 s window).
    field.millis |= header == "gw-ratelimit-reset";
    Some(field)
}

/// Where the family word is. `rate-limit` starts a word; `ratelimit` may be glued to one (`x-readratelimit-limit`).
fn family(header: &str) -> Option<(usize, usize)> {
    for at in [0, 2] {
        // The common case: nothing but `x-` before it.
        let rest = header.get(at..)?;
        if !matches!(rest.as_bytes().first(), Some(b'r' | b'f')) {
            continue;
        }
        let word = FAMILIES.iter().find(|word| rest.starts_with(**word));
        if let Some(word) = word.filter(|_| at == 0 || header.starts_with("x-")) {
            return Some((at, at.saturating_add(word.len())));
        }
    }
    FAMILIES.iter().find_map(|word| {
        let start = header.find(word)?;
        let glued = *word == "rate-limit" && !header.get(..start)?.ends_with('-');
        (!glued).then_some((start, start.saturating_add(word.len())))
    })
}

/// Role, quota name and unit of time in what follows the family word. The role is the last word, else the first, else
/// glued to the end.
pub(super) fn suffix(suffix: &str) -> Option<Suffix<'_>> {
    if suffix.is_empty() {
        return Some(Suffix::plain(Role::Whole, ""));
    }
    let suffix = suffix.strip_prefix('-').unwrap_or(suffix);
    if let Some(role) = whole_suffix(suffix) {
        return Some(Suffix::plain(role, ""));
    }
    let bare = strip_word(suffix, "ms").or_else(|| strip_word(suffix, "milliseconds"));
    let (text, millis) = bare.map_or((suffix, false), |bare| (bare, true));
    let (role, name) = at_end(text)
        .or_else(|| at_start(text))
        .or_else(|| glued(text))
        .or_else(|| only_period(text).map(|name| (Role::Limit, name)))
        .or_else(|| naming(text).map(|role| (role, "")))
        .unwrap_or((Role::Pairs, suffix));
    Some(Suffix { role, name, millis })
}

fn whole_suffix(suffix: &str) -> Option<Role> {
    Some(match suffix {
        "limit" => Role::Limit,
        "remaining" => Role::Remaining,
        "reset" => Role::Reset { relative: false },
        "policy" => Role::Policy,
        "scope" => Role::Scope,
        // tower-governor's wait.
        "after" | "retry-after" => Role::Wait,
        // Bucket4j's and Phemex's, with a unit or a name behind it; nanoseconds would be read as an instant.
        _ if suffix.starts_with("retry-after-") && !suffix.ends_with("nanoseconds") => Role::Wait,
        // Jira Data Center and Spring: a token bucket's refill.
        "fillrate" | "fill-rate" => Role::FillRate,
        _ => return None,
    })
}

/// Headers that name the nameless quota, best first.
pub(super) fn naming(suffix: &str) -> Option<Role> {
    let kinds = ["name", "resource", "bucket", "category", "group", "action", "type"];
    let last = suffix.rsplit('-').next()?;
    (0_u8..).zip(kinds).find(|(_, kind)| *kind == last).map(|(rank, _)| Role::Naming(rank))
}

pub(super) fn role_word(word: &str) -> Option<Role> {
    Some(match word {
        "limit" | "max" | "total" => Role::Limit,
        "remaining" | "remain" | "available" => Role::Remaining,
        "used" | "usage" | "observed" | "count" => Role::Used,
        "utilization" => Role::Utilization,
        "reset" | "resets" | "resettime" | "next" => Role::Reset { relative: false },
        "window" | "interval" | "period" | "duration" => Role::Window { renewal: false },
        "renewalperiod" => Role::Window { renewal: true },
        _ => return None,
    })
}

/// Role words of two parts; a name they carry is not the quota's.
const PAIRED: [(&str, Role); 6] = [
    ("burst-capacity", Role::Limit),
    ("requests-quota", Role::Limit),
    ("requests-left", Role::Remaining),
    ("requests-remain", Role::Remaining),
    ("time-reset", Role::Reset { relative: false }),
    ("time-window", Role::Window { renewal: false }),
];

fn at_end(text: &str) -> Option<(Role, &str)> {
    if let Some(found) = PAIRED.iter().find_map(|(words, role)| Some((*role, strip_word(text, words)?))) {
        return Some(found);
    }
    let (text, modifier) = match text.rsplit_once('-') {
        Some((before, word)) if is_modifier(word) => (before, word),
        _ => (text, ""),
    };
    let (name, word) = text.rsplit_once('-').unwrap_or(("", text));
    Some((modified(role_word(word)?, modifier)?, name))
}

fn at_start(text: &str) -> Option<(Role, &str)> {
    let (word, rest) = text.split_once('-')?;
    let role = role_word(word)?;
    let (modifier, name) = rest.split_once('-').unwrap_or((rest, ""));
    match modified(role, modifier) {
        Some(role) if is_modifier(modifier) && !name.is_empty() => Some((role, name)),
        _ => Some((role, rest)),
    }
}

/// `reset-after`, `reset-in`, `reset-timestamp`, `interval-seconds`.
fn is_modifier(word: &str) -> bool {
    matches!(word, "after" | "in" | "timestamp" | "at" | "time" | "date" | "epoch" | "seconds")
}

fn modified(role: Role, modifier: &str) -> Option<Role> {
    match (role, modifier) {
        (role, "") => Some(role),
        (Role::Reset { .. }, _) => Some(Role::Reset { relative: matches!(modifier, "after" | "in") }),
        (Role::Window { .. }, "seconds") => Some(role),
        _ => None,
    }
}

/// `dailylimit`: only the words that end no other English word.
fn glued(text: &str) -> Option<(Role, &str)> {
    ["limit", "remaining", "reset"].iter().find_map(|word| {
        let name = text.strip_suffix(word)?;
        Some((role_word(word)?, name.trim_end_matches('-')))
    })
}

/// `daily`, `10-second`, `monthly`: a limit without a role word.
fn only_period(text: &str) -> Option<&str> {
    let counted = || text.split_once('-').is_some_and(|(n, word)| number(n) && value::period(word).is_some());
    (value::is_period(text) || counted()).then_some(text)
}

fn number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// `text` without `words` at its end, and without the hyphen between.
fn strip_word<'t>(text: &'t str, words: &str) -> Option<&'t str> {
    let before = text.strip_suffix(words)?;
    if before.is_empty() { Some(before) } else { before.strip_suffix('-') }
}

/// The window that a quota's name tells: a period word, `10-second`, or (`bare`: Kong writes `30` and `30-azure`) a
/// number of seconds in front.
pub(super) fn window_of(name: &str, bare: bool) -> Option<Duration> {
    if name.is_empty() {
        return None;
    }
    let mut before = "";
    for word in name.split('-') {
        // Xero glues its `app` to the period.
        if let Some(window) = value::period(word.strip_prefix("app").unwrap_or(word)) {
            let count = if number(before) { before.parse().ok()? } else { 1 };
            return window.checked_mul(count).filter(|window| !window.is_zero());
        }
        before = word;
    }
    let first = name.split('-').next()?;
    let seconds = bare && number(first);
    seconds.then(|| first.parse().ok()).flatten().and_then(|seconds: u32| {
        let window = Duration::from_secs(seconds.into());
        (!window.is_zero()).then_some(window)
    })
}

/// Names outside of the families, each a row: what it starts with, the first part of the quota's name, and how the rest
/// is read.
const ODD: [(&str, &str, Rest); 8] = [
    // X: the 24-hour quotas of app and user.
    ("x-app-limit-", "app", Rest::Suffix),
    ("x-user-limit-", "user", Rest::Suffix),
    // Azure Resource Graph.
    ("x-ms-user-quota-", "user", Rest::Suffix),
    // Etsy.
    ("x-limit-per-", "", Rest::Period(Role::Limit)),
    ("x-remaining-this-", "", Rest::Period(Role::Remaining)),
    // Bybit.
    ("x-bapi-limit-status", "", Rest::Nothing(Role::Remaining)),
    ("x-bapi-limit-reset-timestamp", "", Rest::Nothing(Role::Reset { relative: false })),
    ("x-bapi-limit", "", Rest::Nothing(Role::Limit)),
];

/// How the rest of an odd name is read.
#[derive(Clone, Copy)]
enum Rest {
    /// As a family's suffix.
    Suffix,
    /// A period that is the quota's name.
    Period(Role),
    /// There is none.
    Nothing(Role),
}

/// Reads a name without a family word.
pub(super) fn odd<'h>(header: &'h str, value: &'h [u8]) -> Option<Field<'h>> {
    for (start, lead, rest) in &ODD {
        let Some(found) = header.strip_prefix(start) else { continue };
        let told = match rest {
            Rest::Suffix => suffix(found)?,
            Rest::Period(role) if value::is_period(found) => Suffix::plain(*role, found),
            Rest::Nothing(role) if found.is_empty() => Suffix::plain(*role, ""),
            _ => continue,
        };
        let prefix = if matches!(rest, Rest::Suffix) { header.get(..start.len())? } else { "x-limit" };
        return Some(Field { lead, ..Field::new(prefix, told, value) });
    }
    if header == "x-remaining-today" {
        return Some(Field::new("x-limit", Suffix::plain(Role::Remaining, "day"), value));
    }
    let rest = header.strip_prefix("x-")?;
    call(rest).or_else(|| glued_limit(rest)).map(|suffix| Field::new("x-", suffix, value))
}

/// Cohere: `<name>-call-limit`, `<name>-call-remaining`.
fn call(rest: &str) -> Option<Suffix<'_>> {
    let (name, word) = rest.rsplit_once('-')?;
    Some(Suffix::plain(role_word(word)?, name.strip_suffix("-call")?))
}

/// Xero: `minlimit-remaining`, `appdaylimit-remaining`.
fn glued_limit(rest: &str) -> Option<Suffix<'_>> {
    let (name, role) = rest.split_once("limit-")?;
    value::period(name.strip_prefix("app").unwrap_or(name))?;
    let found = suffix(role)?;
    (found.name.is_empty() && found.role != Role::Pairs).then_some(Suffix { name, ..found })
}

/// What one look at a header's name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// A wait or an override.
    Retry,
    /// A limit, or something like one.
    Limit,
}

/// Sorts out what cannot be about limits; the commonest headers first.
pub(super) fn interest(name: &str) -> Option<Interest> {
    if is_common(name) { None } else { look(name) }
}

/// Headers that are in most answers, all longer than eight bytes: those are sorted out by their length.
fn is_common(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "content-type"
            | "content-length"
            | "content-encoding"
            | "cache-control"
            | "keep-alive"
            | "last-modified"
            | "set-cookie"
            | "transfer-encoding"
            | "accept-ranges"
            | "x-request-id"
            | "x-frame-options"
            | "x-xss-protection"
            | "x-content-type-options"
            | "referrer-policy"
            | "strict-transport-security"
            | "content-security-policy"
            | "access-control-allow-origin"
    )
}

/// Eight bytes of a name at a time: most headers have few of the letters that `limit`, `remain`, `retry`, `quota` and
/// `floodcontrol` have.
fn look(name: &str) -> Option<Interest> {
    let bytes = name.as_bytes();
    // No name about limits is shorter than `ratelimit`.
    let last = bytes.len().checked_sub(8).filter(|last| *last > 0)?;
    let mut start = 0_usize;
    loop {
        let mut letters = rare_letters(*bytes.get(start..)?.first_chunk()?);
        while letters != 0 {
            let index = start.saturating_add(usize::try_from(letters.trailing_zeros() >> 3).unwrap_or(0));
            if let Some(found) = word_at(name, index) {
                return Some(found);
            }
            letters &= letters.wrapping_sub(1);
        }
        if start == last {
            break;
        }
        start = start.saturating_add(8).min(last);
    }
    // Facebook and Lightspeed.
    (name.ends_with("-usage") || name.ends_with("-bucket-level")).then_some(Interest::Limit)
}

/// The highest bit of each byte that is `m`, `y`, `q` or `f`; it may also mark what follows such a byte.
fn rare_letters(bytes: [u8; 8]) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    let word = u64::from_le_bytes(bytes);
    let equal = |letter: u8| {
        let zero = word ^ ONES.wrapping_mul(u64::from(letter));
        zero.wrapping_sub(ONES) & !zero
    };
    (equal(b'm') | equal(b'y') | equal(b'q') | equal(b'f')) & HIGH
}

/// Whether the letter at `index` is the rare one of a word that matters.
fn word_at(name: &str, index: usize) -> Option<Interest> {
    let bytes = name.as_bytes();
    let around = |before: usize, word: &[u8]| {
        let start = index.checked_sub(before);
        start.and_then(|start| bytes.get(start..)).is_some_and(|rest| rest.starts_with(word))
    };
    match bytes.get(index)? {
        b'm' if around(2, b"limit") || around(2, b"remain") => Some(limit_or_retry(name)),
        b'y' if around(4, b"retry") => Some(Interest::Retry),
        b'q' if around(0, b"quota") => Some(Interest::Limit),
        b'f' if around(0, b"floodcontrol") => Some(Interest::Limit),
        _ => None,
    }
}

fn limit_or_retry(name: &str) -> Interest {
    // The waits that carry the family's word; a search through every name would cost more than the rest.
    let wait = ["-retry-after", "-retry-after-ms", "-retry-after-milliseconds"].iter().any(|end| name.ends_with(end));
    if wait { Interest::Retry } else { Interest::Limit }
}
