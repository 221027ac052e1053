//! Waits in small JSON error bodies, for answers whose header fields name none. At most 16 KiB and 32 levels are read.

use std::time::Duration;

use serde_json::Value;

use super::{
    date::Clock,
    value::{self, Plain},
};

/// Bytes of a body that are read. Those that tell a wait have some hundred.
pub(crate) const MAX_BODY: usize = 16 * 1024;
const MAX_DEPTH: u32 = 32;

/// `google.rpc.RetryInfo`, then `parameters.retry_after` (Telegram), then `retry_after` at the top (Discord): seconds.
pub(super) fn wait(body: &[u8], clock: &Clock<'_>) -> Option<Duration> {
    // What names no retry needs no parse.
    if body.len() > MAX_BODY || !body.windows(5).any(|window| window == b"retry") {
        return None;
    }
    let json = parse(body)?;
    let seconds = |value: &Value| scalar(value).and_then(|text| value::wait(text.as_bytes(), clock, Plain::Seconds));
    retry_info(&json, clock)
        .or_else(|| json.pointer("/parameters/retry_after").and_then(seconds))
        .or_else(|| json.get("retry_after").and_then(seconds))
}

/// JSON of at most 32 levels.
pub(super) fn parse(text: &[u8]) -> Option<Value> {
    shallow(text).then(|| serde_json::from_slice(text).ok()).flatten()
}

/// A number or a text as the digits it stands for.
pub(super) fn scalar(value: &Value) -> Option<String> {
    match value {
        // An integer or the shortest decimal of it: never an exponent.
        Value::Number(number) => match number.as_u64() {
            Some(whole) => Some(whole.to_string()),
            None => number.as_f64().map(|number| number.to_string()),
        },
        Value::String(text) => Some(text.clone()),
        _ => None,
    }
}

/// The longest delay of any RetryInfo, wherever it is (`error.details`, also inside a list of answers).
fn retry_info(json: &Value, clock: &Clock<'_>) -> Option<Duration> {
    match json {
        Value::Array(items) => items.iter().filter_map(|item| retry_info(item, clock)).max(),
        Value::Object(fields) => {
            let kind = fields.get("@type").and_then(Value::as_str);
            let own = kind.filter(|kind| kind.ends_with("google.rpc.RetryInfo")).and_then(|_| fields.get("retryDelay"));
            let own = own.and_then(Value::as_str).and_then(|text| value::wait(text.as_bytes(), clock, Plain::Seconds));
            own.max(fields.values().filter_map(|value| retry_info(value, clock)).max())
        }
        _ => None,
    }
}

/// Whether brackets outside of strings never nest deeper than the bound: checked first, so that no parser recurses.
fn shallow(text: &[u8]) -> bool {
    let (mut depth, mut quoted, mut escaped) = (0_u32, false, false);
    text.iter().all(|byte| {
        let was_escaped = std::mem::take(&mut escaped);
        match byte {
            b'\\' if quoted && !was_escaped => escaped = true,
            b'"' if !was_escaped => quoted = !quoted,
            b'{' | b'[' if !quoted => depth = depth.saturating_add(1),
            b'}' | b']' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth <= MAX_DEPTH
    })
}
