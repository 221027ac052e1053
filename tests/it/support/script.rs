//! Scripts of the test network: what each request is answered with, and the templates in it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use super::clock;

/// One answer of a script.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) status: Option<u16>,
    pub(crate) fault: Option<Fault>,
    #[serde(default)]
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Option<String>,
    pub(crate) body_bytes: Option<usize>,
    /// Before the head.
    pub(crate) delay_ms: Option<u64>,
    pub(crate) stall_body_after: Option<usize>,
    /// Bytes a second.
    pub(crate) body_rate_bps: Option<u64>,
    pub(crate) host: Option<String>,
    pub(crate) repeat: Option<usize>,
    /// A refused stream is refused after its request body was read.
    #[serde(default)]
    pub(crate) after_body: bool,
    /// Answers whatever arrives in this span, counted from the first arrival; the order does not matter.
    pub(crate) window_ms: Option<Span>,
}

/// A span in milliseconds: `[from, to]` without its end, `[from, null]`, or its length from 0 on.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Span {
    First(u64),
    Between(u64, Option<u64>),
}

impl Span {
    /// Whether `at` is in it.
    pub(crate) fn holds(self, at: u64) -> bool {
        match self {
            Self::First(length) => at < length,
            Self::Between(from, to) => from <= at && to.is_none_or(|to| at < to),
        }
    }
}

/// What goes wrong instead of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    ResetBeforeResponse,
    CloseBeforeResponse,
    CloseKeepalive,
    ResetMidBody,
    Stall,
    H2RefusedStream,
    H2GoawayUnprocessed,
    H2GoawayCalm,
    TlsUnknownCa,
    TlsExpiredCert,
    TlsWrongHost,
    ResetInTlsHandshake,
    DnsNxdomain,
    BadScheme,
}

impl Fault {
    /// Happens while a TLS connection is made.
    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::TlsUnknownCa | Self::TlsExpiredCert | Self::TlsWrongHost | Self::ResetInTlsHandshake)
    }

    /// Needs HTTP/2.
    pub(crate) fn is_h2(self) -> bool {
        matches!(self, Self::H2RefusedStream | Self::H2GoawayUnprocessed | Self::H2GoawayCalm)
    }
}

impl Entry {
    /// An answer with nothing but its status.
    pub(crate) fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    /// An answer with a body.
    pub(crate) fn with_body(status: u16, body: &str) -> Self {
        Self { status: Some(status), body: Some(body.to_owned()), ..Self::default() }
    }

    /// A fault.
    pub(crate) fn fault(fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }

    /// The host it belongs to: `a` or `b`.
    pub(crate) fn host(&self) -> &str {
        self.host.as_deref().unwrap_or("a")
    }

    /// Says nothing, or not all, until the client gives up.
    pub(crate) fn stalls(&self) -> bool {
        self.fault == Some(Fault::Stall) || self.stall_body_after.is_some()
    }

    /// The whole body that the head announces.
    pub(crate) fn full_body(&self) -> Vec<u8> {
        let mut body = match (&self.body, self.body_bytes) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(length)) => vec![b'x'; length],
            (None, None) => Vec::new(),
        };
        let at_least = match self.fault {
            Some(Fault::ResetMidBody) => 1024,
            _ => self.stall_body_after.map_or(0, |sent| sent + 1),
        };
        if body.len() < at_least {
            body.resize(at_least, b'x');
        }
        body
    }

    /// How much of the body is sent before it breaks or stalls.
    pub(crate) fn sent_body(&self, full: usize) -> usize {
        match self.fault {
            Some(Fault::ResetMidBody) => full / 2,
            _ => self.stall_body_after.unwrap_or(full),
        }
    }

    /// Either an answer or a fault, and on a host that exists.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.status, self.fault) {
            (None, None) => return Err("an entry has neither status nor fault".into()),
            (Some(_), Some(fault)) if fault != Fault::ResetMidBody => {
                return Err(format!("an entry has a status and the fault {fault:?}"));
            }
            _ => {}
        }
        match self.host() {
            "a" | "b" => Ok(()),
            other => Err(format!("no host {other:?}")),
        }
    }
}

/// Writes every entry out as often as it repeats.
pub(crate) fn unrolled(entries: &[Entry]) -> Vec<Entry> {
    entries.iter().flat_map(|entry| std::iter::repeat_n(entry.clone(), entry.repeat.unwrap_or(1))).collect()
}

/// What templates are filled from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    /// Server clock minus local clock.
    pub(crate) skew_ms: i64,
    pub(crate) origin_a: String,
    pub(crate) origin_b: String,
}

impl Values {
    /// Fills `{{http_date:+3s}}`, `{{epoch:+3s}}`, `{{epoch_ms:+3s}}` and `{{origin:b}}`.
    pub(crate) fn fill(&self, text: &str) -> Result<String, String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let (name, after) = after.split_once("}}").ok_or_else(|| format!("a template in {text:?} does not end"))?;
            filled.push_str(before);
            filled.push_str(&self.value(name)?);
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    fn value(&self, template: &str) -> Result<String, String> {
        let (name, argument) = template.split_once(':').unwrap_or((template, "+0s"));
        if name == "origin" {
            return match argument {
                "a" => Ok(self.origin_a.clone()),
                "b" => Ok(self.origin_b.clone()),
                other => Err(format!("no origin {other:?}")),
            };
        }
        let seconds = argument.strip_suffix('s').and_then(|number| number.parse::<i64>().ok());
        let seconds = seconds.ok_or_else(|| format!("no template {template:?}"))?;
        let epoch = (self.server_epoch_ms().div_euclid(1000) + seconds).max(0);
        match name {
            "epoch" => Ok(epoch.to_string()),
            "epoch_ms" => Ok((epoch * 1000).to_string()),
            "http_date" => {
                let at = UNIX_EPOCH + Duration::from_secs(epoch.unsigned_abs());
                Ok(httpdate::fmt_http_date(at))
            }
            _ => Err(format!("no template {template:?}")),
        }
    }

    fn server_epoch_ms(&self) -> i64 {
        let local = clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(local.as_millis()).unwrap_or(i64::MAX) + self.skew_ms
    }
}
