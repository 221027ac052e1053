//! The IETF fields of all drafts: numbers with parameters (-01 to -06), and lists of named items (-08 to -11), the
//! latter read by `sfv` (RFC 9651). A number parameter that is not a whole number voids the field.

use std::{error, fmt, time::Duration};

use sfv::{
    BareItemFromInput, KeyRef, Parser,
    visitor::{ItemVisitor, ParameterVisitor},
};

use super::{QuotaHint, value};
use crate::Unit;

/// Most members of one field; a longer one is ignored, of a wait the first of them count.
pub(super) const MAX_MEMBERS: usize = 64;

/// Most bytes of one field, all its lines together.
pub(super) const MAX_BYTES: usize = 8 * 1024;

/// Bytes that hold no more members than are read, so that short fields need no count.
pub(super) const SHORT: usize = 2 * MAX_MEMBERS;

/// Whether the lines of one field are more than is read.
pub(super) fn oversized<'v>(lines: impl Iterator<Item = &'v [u8]> + Clone) -> bool {
    let bytes = lines.clone().fold(0_usize, |sum, line| sum.saturating_add(line.len()));
    if bytes <= SHORT {
        return false;
    }
    // Commas of a JSON value separate no members.
    let members = lines.filter(|line| !line.starts_with(b"{")).flat_map(|line| value::parts(line, b','));
    bytes > MAX_BYTES || members.take(MAX_MEMBERS.saturating_add(1)).count() > MAX_MEMBERS
}

/// Reads one line of named items or policies: `"name";r=;t=`, `"name";q=;w=;qu=;pk=`, names also as tokens.
/// `None`: malformed.
pub(super) fn named(line: &[u8], found: &mut impl FnMut(QuotaHint)) -> Option<()> {
    for (index, member) in value::parts(line, b',').enumerate() {
        if index >= MAX_MEMBERS {
            return None;
        }
        let item = || Parser::new(member).parse_item_with_visitor(Start).ok();
        let mut hint = item().or_else(|| mended(member))?;
        hint.partition = partition(member);
        found(hint);
    }
    Some(())
}

/// What strict readers refuse and servers send: several strings before the first parameter, of which the last is the
/// name (Hugging Face), a `;` at the end, a partition key that is no base64.
fn mended(member: &[u8]) -> Option<QuotaHint> {
    let mut text = Vec::with_capacity(member.len());
    for piece in value::pieces(member, b';') {
        let start = piece.trim_ascii();
        if start.is_empty() || start.starts_with(b"pk=:") {
            continue;
        }
        if start.starts_with(b"\"") {
            text.clear();
        } else if text.is_empty() {
            text.extend_from_slice(start);
            continue;
        } else {
            text.push(b';');
        }
        text.extend_from_slice(piece);
    }
    Parser::new(text.trim_ascii()).parse_item_with_visitor(Start).ok()
}

/// The text of `pk` as sent, between its colons or quotes: the draft's own examples are no canonical base64.
fn partition(member: &[u8]) -> Option<String> {
    if !member.windows(3).any(|window| window == b"pk=") {
        return None;
    }
    let mut found = None;
    for part in value::parts(member, b';').skip(1) {
        if let Some(text) = part.strip_prefix(b"pk=") {
            found = value::text(between(text));
        }
    }
    found
}

fn between(text: &[u8]) -> &[u8] {
    match text {
        [b':', inner @ .., b':'] | [b'"', inner @ .., b'"'] => inner,
        text => text,
    }
}

/// Visits one item.
struct Start;

impl<'de> ItemVisitor<'de> for Start {
    type Out = QuotaHint;
    type Error = Malformed;

    fn bare_item(
        self,
        item: BareItemFromInput<'de>,
    ) -> Result<impl ParameterVisitor<'de, Out = Self::Out>, Self::Error> {
        let name = match &item {
            BareItemFromInput::String(name) => name.as_str(),
            BareItemFromInput::Token(name) => name.as_str(),
            _ => return Err(Malformed),
        };
        Ok(Parameters(QuotaHint { name: value::text(name.as_bytes()), ..QuotaHint::default() }))
    }
}

/// Takes the parameters of an item; of two with the same key the last one holds.
struct Parameters(QuotaHint);

impl<'de> ParameterVisitor<'de> for Parameters {
    type Out = QuotaHint;
    type Error = Malformed;

    fn parameter(&mut self, key: &'de KeyRef, value: BareItemFromInput<'de>) -> Result<(), Malformed> {
        let Self(hint) = self;
        match key.as_str() {
            "q" => hint.limit = Some(number(whole(&value)?)),
            "r" => hint.remaining = Some(number(whole(&value)?)),
            "t" => hint.reset_after = Some(Duration::from_secs(whole(&value)?)),
            "w" => hint.window = seconds(whole(&value)?),
            "qu" => hint.unit = unit(&value),
            _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Result<QuotaHint, Malformed> {
        Ok(self.0)
    }
}

fn whole(value: &BareItemFromInput<'_>) -> Result<u64, Malformed> {
    match value {
        BareItemFromInput::Integer(number) => u64::try_from(i64::from(*number)).map_err(|_negative| Malformed),
        _ => Err(Malformed),
    }
}

/// At most 15 digits, so exact.
fn number(whole: u64) -> f64 {
    whole as f64
}

/// A window of nothing is not told.
fn seconds(whole: u64) -> Option<Duration> {
    (whole > 0).then(|| Duration::from_secs(whole))
}

/// §3.1.2 and §10.3 of draft -11 spell the default differently.
fn unit(value: &BareItemFromInput<'_>) -> Unit {
    let name = match value {
        BareItemFromInput::String(name) => name.as_str(),
        BareItemFromInput::Token(name) => name.as_str(),
        _ => return Unit::Requests,
    };
    named_unit(name)
}

/// A unit by the name that servers use.
pub(super) fn named_unit(name: &str) -> Unit {
    match name {
        "requests" | "request" | "" => Unit::Requests,
        "tokens" => Unit::Tokens,
        "content-bytes" => Unit::Bytes,
        other => Unit::Other(other.to_owned()),
    }
}

/// A parameter of the wrong type: the whole field is void (RFC 9651 §2.2).
#[derive(Debug)]
struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("parameter of the wrong type")
    }
}

impl error::Error for Malformed {}

/// One member of a list of numbers: `100`, `100;w=60`, `10;window=1;name="per-ip"`. What is no number is not told.
pub(super) struct Bare {
    pub(super) limit: Option<f64>,
    pub(super) window: Option<Duration>,
    pub(super) name: Option<String>,
}

/// Reads one line of numbers. `None`: malformed.
pub(super) fn bare(line: &[u8], found: &mut impl FnMut(Bare)) -> Option<()> {
    if let Some(number) = value::count(line) {
        // The common case.
        found(Bare { limit: Some(number), window: None, name: None });
        return Some(());
    }
    for (index, member) in value::parts(line, b',').enumerate() {
        if index >= MAX_MEMBERS {
            return None;
        }
        let mut parts = value::parts(member, b';');
        let mut bare = Bare { limit: parts.next().and_then(value::count), window: None, name: None };
        for part in parts {
            let Some((key, text)) = value::cut(part, b'=') else { continue };
            match key.trim_ascii() {
                b"w" | b"window" => bare.window = seconds(value::digits(text.trim_ascii())?),
                b"name" => bare.name = value::text(between(text.trim_ascii())),
                _ => {}
            }
        }
        found(bare);
    }
    Some(())
}
