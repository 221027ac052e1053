//! `/charge`: what must not happen twice.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::gate::lock;

/// How often charges were executed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Charges {
    /// Executions by idempotency key, unquoted; more than one is impossible while the server lives.
    pub keyed: HashMap<String, u32>,
    /// Executions without a key.
    pub bare: u64,
    /// Most executions without a key of one query and body: more than 1 is a charge made twice, if callers number
    /// theirs.
    pub most_bare: u32,
}

impl Charges {
    /// Executions of one key.
    #[must_use]
    pub fn of(&self, key: &str) -> u32 {
        self.keyed.get(key).copied().unwrap_or(0)
    }

    /// All executions.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.bare + self.keyed.values().copied().map(u64::from).sum::<u64>()
    }
}

/// The books of `/charge`; kept until the server ends.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    keyed: HashMap<String, Entry>,
    bare: HashMap<u64, u32>,
    executed: u64,
}

#[derive(Debug)]
struct Entry {
    payload: u64,
    id: u64,
    executions: u32,
    busy: bool,
}

/// What a charge came to.
#[derive(Debug)]
pub(super) enum Charge {
    /// Executed now; the key is busy until this is dropped.
    Executed(u64, Option<Busy>),
    /// Executed before.
    Replayed(u64),
    /// Refused: 409 while the key is busy, 422 when it came with another payload.
    Refused(StatusCode),
}

impl Ledger {
    /// Executes, unless the key was seen.
    pub(super) fn charge(&self, headers: &HeaderMap, query: &str, body: &Bytes) -> Charge {
        let mut hasher = DefaultHasher::new();
        (query, body).hash(&mut hasher);
        let payload = hasher.finish();
        let mut entries = lock(&self.0);
        let id = entries.executed + 1;
        let Some(key) = key(headers) else {
            entries.executed = id;
            *entries.bare.entry(payload).or_default() += 1;
            return Charge::Executed(id, None);
        };
        if let Some(entry) = entries.keyed.get(&key) {
            return match entry {
                // draft-ietf-httpapi-idempotency-key-header-06 §2.6, §2.7.
                entry if entry.payload != payload => Charge::Refused(StatusCode::UNPROCESSABLE_ENTITY),
                entry if entry.busy => Charge::Refused(StatusCode::CONFLICT),
                entry => Charge::Replayed(entry.id),
            };
        }
        entries.executed = id;
        entries.keyed.insert(key.clone(), Entry { payload, id, executions: 1, busy: true });
        Charge::Executed(id, Some(Busy { ledger: self.clone(), key }))
    }

    pub(super) fn executed(&self) -> u64 {
        lock(&self.0).executed
    }

    pub(super) fn charges(&self) -> Charges {
        let entries = lock(&self.0);
        Charges {
            keyed: entries.keyed.iter().map(|(key, entry)| (key.clone(), entry.executions)).collect(),
            bare: entries.bare.values().copied().map(u64::from).sum(),
            most_bare: entries.bare.values().copied().max().unwrap_or(0),
        }
    }
}

/// A key whose first execution is not finished.
#[derive(Debug)]
pub(super) struct Busy {
    ledger: Ledger,
    key: String,
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(entry) = lock(&self.ledger.0).keyed.get_mut(&self.key) {
            entry.busy = false;
        }
    }
}

/// `Idempotency-Key`, raw or as the quoted string of the draft.
fn key(headers: &HeaderMap) -> Option<String> {
    let text = String::from_utf8_lossy(headers.get("idempotency-key")?.as_bytes());
    let text = text.trim();
    let bare = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    Some(bare.to_owned())
}
