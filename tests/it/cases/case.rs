//! The form of a case. A field that is not known here fails its case: nothing goes unasserted.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::support::script::Entry;

/// What every case says about itself, and the rest as it is.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) mode: String,
    pub(crate) requires: Vec<String>,
    pub(crate) rest: Value,
}

impl Case {
    /// From one line of the file.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let mut rest: Value = serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
        drop_notes(&mut rest);
        let object = rest.as_object_mut().ok_or("a case is no object")?;
        let mut text = |name: &str| {
            let value = object.shift_remove(name);
            value.as_ref().and_then(Value::as_str).map(str::to_owned).ok_or_else(|| format!("{line}: no {name:?}"))
        };
        let (id, mode) = (text("id")?, text("mode")?);
        text("kind")?;
        text("source")?;
        if object.shift_remove("v") != Some(Value::from(1)) {
            return Err(format!("{id}: not version 1"));
        }
        let requires = object.shift_remove("requires").unwrap_or_else(|| Value::Array(Vec::new()));
        let requires = serde_json::from_value(requires).map_err(|error| format!("{id}: requires: {error}"))?;
        Ok(Self { id, mode, requires, rest })
    }

    /// The rest in the form of its mode.
    pub(crate) fn body<T: for<'a> Deserialize<'a>>(&self) -> Result<T, String> {
        serde_json::from_value(self.rest.clone()).map_err(|error| error.to_string())
    }
}

/// Notes are for people.
fn drop_notes(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.shift_remove("notes");
            fields.values_mut().for_each(drop_notes);
        }
        Value::Array(values) => values.iter_mut().for_each(drop_notes),
        _ => {}
    }
}

/// One call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallCase {
    pub(crate) request: RequestSpec,
    pub(crate) server: Vec<Entry>,
    pub(crate) config: Config,
    pub(crate) expect: CallExpect,
    #[serde(default)]
    pub(crate) clock: ClockSpec,
    #[serde(default)]
    pub(crate) warmup: u32,
    pub(crate) cancel_at_ms: Option<u64>,
}

/// Several calls on one client.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MultiCase {
    pub(crate) calls: Vec<CallsSpec>,
    #[serde(default)]
    pub(crate) server: Server,
    pub(crate) per_call: Option<PerCall>,
    pub(crate) config: Config,
    pub(crate) expect: MultiExpect,
    #[serde(default)]
    pub(crate) clock: ClockSpec,
    #[serde(default)]
    pub(crate) warmup: u32,
}

/// The script of a case with several calls.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Server {
    Shared(Vec<Entry>),
    Own(OwnScripts),
}

impl Default for Server {
    fn default() -> Self {
        Self::Shared(Vec::new())
    }
}

/// A script for each call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnScripts {
    pub(crate) per_call: PerCall,
}

/// The same script for every call, one for each in turn, or the word that `server` is meant so.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum PerCall {
    Same(Vec<Entry>),
    Each(Vec<Vec<Entry>>),
    ServerIs(bool),
}

/// Calls that start together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallsSpec {
    pub(crate) at_ms: u64,
    #[serde(default = "one")]
    pub(crate) count: usize,
    pub(crate) host: Option<String>,
    pub(crate) request: RequestSpec,
    pub(crate) cancel_at_ms: Option<u64>,
}

fn one() -> usize {
    1
}

/// The request of a call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestSpec {
    pub(crate) method: String,
    pub(crate) idempotency_key: KeySpec,
    pub(crate) body: BodySpec,
    #[serde(default)]
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body_bytes: Option<usize>,
    #[serde(default)]
    pub(crate) header_provider: Vec<(String, String)>,
}

/// Whose idempotency key.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum KeySpec {
    Caller(bool),
    Sdk(AutoKey),
}

/// A key that the SDK makes.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AutoKey {
    Auto,
}

/// What kind of body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BodySpec {
    None,
    Bytes,
    Stream,
}

/// The rules of the client.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) max_attempts: u32,
    pub(crate) base_ms: u64,
    pub(crate) cap_ms: u64,
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) attempt_timeout_ms: Option<u64>,
    pub(crate) max_server_wait_ms: Option<u64>,
    pub(crate) retry_statuses: Option<Vec<u16>>,
    #[serde(default)]
    pub(crate) retry_non_idempotent: bool,
    #[serde(default)]
    pub(crate) sensitive_headers: Vec<String>,
    pub(crate) http: Option<String>,
    pub(crate) rate_limit_403: Option<Value>,
    pub(crate) classify_body: Option<ClassifyBody>,
    #[serde(default)]
    pub(crate) poll_202: bool,
    pub(crate) read_body: Option<ReadBody>,
    pub(crate) limiter: Option<Bucket>,
    pub(crate) concurrency: Option<u32>,
    #[serde(alias = "max_redirects")]
    pub(crate) redirects: Option<u32>,
}

/// How the caller reads the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReadBody {
    #[default]
    Buffer,
    Stream,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bucket {
    pub(crate) rate: u32,
    pub(crate) per_ms: u64,
    pub(crate) burst: Option<u32>,
}

/// Which bodies of a 2xx are failures.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClassifyBody {
    pub(crate) contains: Option<Vec<String>>,
    pub(crate) json_pointer: Option<String>,
    pub(crate) equals: Option<Vec<Value>>,
    #[serde(rename = "as")]
    pub(crate) meaning: Meaning,
}

/// What kind of failure.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Meaning {
    Retryable,
    RateLimited,
    #[serde(alias = "final", alias = "fatal")]
    NotRetryable,
}

/// Which clocks differ, and whether time is real.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClockSpec {
    #[serde(default)]
    pub(crate) server_skew_ms: i64,
    #[serde(default)]
    pub(crate) real: bool,
}

/// What one call must come to.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallExpect {
    pub(crate) attempts: usize,
    pub(crate) outcome: String,
    pub(crate) cause: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) min_wait_ms: Option<Vec<f64>>,
    pub(crate) max_wait_ms: Option<Vec<f64>>,
    pub(crate) min_total_ms: Option<f64>,
    pub(crate) max_total_ms: Option<f64>,
    pub(crate) trials: Option<usize>,
    pub(crate) spread_min_ms: Option<Vec<f64>>,
    pub(crate) some_wait_below_ms: Option<Vec<f64>>,
    pub(crate) distinct_keys: Option<usize>,
    pub(crate) key_from_caller: Option<bool>,
    pub(crate) bodies: Option<String>,
    pub(crate) methods: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) headers_seen: BTreeMap<String, Vec<(String, String)>>,
    #[serde(default)]
    pub(crate) headers_absent: BTreeMap<String, Vec<String>>,
    pub(crate) final_body: Option<String>,
    #[serde(default)]
    pub(crate) final_headers: Pairs,
    pub(crate) history: Option<HistoryExpect>,
    pub(crate) connections_max: Option<usize>,
    pub(crate) reported_wait_ms: Option<f64>,
    pub(crate) observe_ms: Option<u64>,
}

/// Header fields as a list of pairs or as an object.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Pairs {
    List(Vec<(String, String)>),
    Object(BTreeMap<String, String>),
}

impl Default for Pairs {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl Pairs {
    /// As a list.
    pub(crate) fn list(&self) -> Vec<(String, String)> {
        match self {
            Self::List(pairs) => pairs.clone(),
            Self::Object(pairs) => pairs.clone().into_iter().collect(),
        }
    }
}

/// What the history must hold: so many attempts, or each of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum HistoryExpect {
    Length(usize),
    Each(Vec<AttemptExpect>),
}

/// One attempt of a history: a status, `status:503` or a cause, or both in an object.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum AttemptExpect {
    Status(u16),
    Text(String),
    Object(AttemptFields),
}

/// The fields of an attempt.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttemptFields {
    pub(crate) status: Option<u16>,
    #[serde(alias = "cause", alias = "fault")]
    pub(crate) error: Option<String>,
}

/// What several calls must come to.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MultiExpect {
    pub(crate) attempts: Option<Range>,
    #[serde(default)]
    pub(crate) outcomes: BTreeMap<String, Range>,
    pub(crate) max_in_flight: Option<usize>,
    pub(crate) min_span_ms: Option<f64>,
    pub(crate) max_span_ms: Option<f64>,
    pub(crate) min_total_ms: Option<f64>,
    pub(crate) max_total_ms: Option<f64>,
    #[serde(default)]
    pub(crate) no_request_between_ms: Vec<(f64, f64)>,
    pub(crate) max_per_window: Option<Windows>,
    pub(crate) distinct_keys: Option<Range>,
    pub(crate) connections_max: Option<usize>,
    pub(crate) observe_ms: Option<u64>,
}

/// A number or `[min, max]`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Range {
    Exactly(usize),
    Between(usize, usize),
}

impl Range {
    /// Whether `number` is in it.
    pub(crate) fn holds(self, number: usize) -> bool {
        match self {
            Self::Exactly(wanted) => number == wanted,
            Self::Between(min, max) => (min..=max).contains(&number),
        }
    }

    /// The largest number of it and the smallest that was asked for.
    pub(crate) fn bounds(self) -> (usize, usize) {
        match self {
            Self::Exactly(max) => (0, max),
            Self::Between(min, max) => (min, max),
        }
    }
}

/// One window or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Windows {
    One(Window),
    Many(Vec<Window>),
}

/// How many requests any span of this length may hold.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Window {
    pub(crate) window_ms: f64,
    pub(crate) n: Range,
}
