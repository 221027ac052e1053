//! How a service takes idempotency keys.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::Error;

/// How the value of the key is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyFormat {
    /// As it is: Stripe, Adyen and most others.
    #[default]
    Raw,
    /// As a string of Structured Fields, in quotes: draft-ietf-httpapi-idempotency-key-header, RFC 9651 §3.3.3.
    Quoted,
}

/// How a service takes idempotency keys. Default: `Idempotency-Key`, raw, good for 24 h, 409 is final.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use abide::{KeyFormat, KeyScheme, http::HeaderName};
///
/// let scheme = KeyScheme::new(HeaderName::from_static("paypal-request-id"))
///     .format(KeyFormat::Raw)
///     .lifetime(Duration::from_secs(6 * 3600))
///     .retry_conflict(true);
/// let client = abide::Client::builder().key_scheme(scheme).build()?;
/// # let _ = client;
/// # Ok::<(), abide::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyScheme {
    name: HeaderName,
    format: KeyFormat,
    lifetime: Duration,
    retry_conflict: bool,
}

impl Default for KeyScheme {
    fn default() -> Self {
        Self::new(HeaderName::from_static("idempotency-key"))
    }
}

impl KeyScheme {
    /// Keys are sent in this header.
    pub fn new(name: HeaderName) -> Self {
        Self {
            name,
            format: KeyFormat::Raw,
            // The shortest time after which Stripe may forget a key: docs.stripe.com, «Idempotent requests», 2026-10.
            lifetime: Duration::from_secs(24 * 3600),
            retry_conflict: false,
        }
    }

    /// How the value is written. Default raw.
    #[must_use]
    pub fn format(self, format: KeyFormat) -> Self {
        Self { format, ..self }
    }

    /// How long the service remembers a key; no attempt is made later than that after the first. Default 24 h.
    #[must_use]
    pub fn lifetime(self, lifetime: Duration) -> Self {
        Self { lifetime, ..self }
    }

    /// Whether a 409 to a keyed call means that an earlier request with the key still runs, and is retried.
    /// Default: it is final.
    #[must_use]
    pub fn retry_conflict(self, retry_conflict: bool) -> Self {
        Self { retry_conflict, ..self }
    }

    pub(crate) fn name(&self) -> &HeaderName {
        &self.name
    }

    pub(crate) fn good_for(&self) -> Duration {
        self.lifetime
    }

    pub(crate) fn retries_conflict(&self) -> bool {
        self.retry_conflict
    }

    /// The header's value for a key of the caller's; marked sensitive.
    pub(crate) fn value(&self, key: &str) -> Result<HeaderValue, Error> {
        if key.trim_ascii().is_empty() {
            return Err(Error::builder("idempotency key must not be empty"));
        }
        if !key.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(Error::builder("idempotency key must be printable ASCII"));
        }
        let value = match self.format {
            KeyFormat::Raw => HeaderValue::from_str(key),
            KeyFormat::Quoted => HeaderValue::from_str(&quoted(key)),
        };
        let mut value =
            value.map_err(|error| Error::builder("idempotency key must be printable ASCII").with_source(error))?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// The key that a request carries.
    pub(crate) fn key_of(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, Error> {
        let mut values = headers.get_all(&self.name).iter();
        match (values.next(), values.next()) {
            (Some(value), None) if value.as_bytes().trim_ascii().is_empty() => {
                Err(Error::builder("idempotency key must not be empty"))
            }
            (_, Some(_)) => Err(Error::builder("idempotency key must be one header, not several")),
            (value, None) => Ok(value.cloned()),
        }
    }

    /// A new key, 122 bits of the system's randomness.
    pub(crate) fn fresh(&self) -> Result<HeaderValue, Error> {
        let mut buffer = uuid::Uuid::encode_buffer();
        self.value(uuid::Uuid::new_v4().hyphenated().encode_lower(&mut buffer))
    }
}

fn quoted(key: &str) -> String {
    let mut quoted = String::with_capacity(key.len() + 2);
    quoted.push('"');
    for letter in key.chars() {
        if matches!(letter, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_written_as_the_scheme_says() {
        let raw = KeyScheme::default();
        let quoted = KeyScheme::default().format(KeyFormat::Quoted);
        assert_eq!(raw.value("a-1").unwrap(), "a-1");
        assert_eq!(quoted.value(r#"a"\b"#).unwrap(), r#""a\"\\b""#);
        assert!(raw.value("a").unwrap().is_sensitive());
        for bad in ["", "  ", "ä", "a\nb"] {
            assert!(raw.value(bad).unwrap_err().is_builder());
        }
        assert_eq!(raw.fresh().unwrap().len(), 36);
        assert_ne!(raw.fresh().unwrap(), raw.fresh().unwrap());
    }
}
