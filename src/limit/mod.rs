//! The words of throttling.

mod quota;

use std::{future::Future, time::Duration};

use tokio::time::Instant;

use crate::{Error, headers::Hints};

#[cfg(feature = "testing")]
pub(crate) use quota::Contract;
pub use quota::{ParseQuotaError, Quota, Unit};

/// The limiter key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(u128);

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Self(hasher.finish().into())
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

/// Method and path shape of a request: the key of route quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Route(u64);

impl Route {
    /// Of a request.
    pub(crate) fn of(_method: &http::Method, _path: &str) -> Self {
        Self(0)
    }
}

/// What a driver asks of the limiter for one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) key: &'a Key,
    pub(crate) route: Option<Route>,
    /// One entry a unit that the call states.
    pub(crate) units: &'a [(Unit, u32)],
    pub(crate) deadline: Option<Instant>,
    /// The longest pause worth waiting for.
    pub(crate) max_pause: Duration,
}

/// Limits by key.
#[derive(Clone, Debug, Default)]
pub struct Limiter {}

/// Builder of a [`Limiter`].
#[derive(Clone, Debug, Default)]
pub struct LimiterBuilder {}

impl LimiterBuilder {
    /// Checks the settings.
    ///
    /// # Errors
    /// `is_builder`.
    pub fn build(self) -> Result<Limiter, Error> {
        Ok(Limiter {})
    }
}

impl Limiter {
    /// Starts one.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder {}
    }

    /// As [`acquire`](Self::acquire), with all that a driver knows.
    pub(crate) fn admit(&self, ask: &Ask<'_>) -> impl Future<Output = Result<Permit, Refused>> + Send + 'static {
        let _ = (ask.key, ask.route, ask.units, ask.deadline, ask.max_pause);
        std::future::ready(Ok(Permit {}))
    }

    /// Moves the pause of a key later; never earlier.
    pub fn pause(&self, _key: &Key, _until: Instant) {}
}

/// Right to send one attempt.
#[derive(Debug)]
#[must_use = "a permit that is dropped before commit() is given back in full"]
pub struct Permit {}

impl Permit {
    /// The attempt is on the wire.
    pub fn commit(&mut self) {}

    /// What the response said.
    pub fn observe(&mut self, _hints: &Hints) {}
}

/// Why the limiter let nothing through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {}

impl Refused {
    /// When a permit could be had, if ever.
    #[must_use]
    pub fn retry_at(&self) -> Option<Instant> {
        None
    }

    /// The cost can never fit.
    #[must_use]
    pub fn is_never(&self) -> bool {
        false
    }

    /// Too many wait already, or too many keys.
    #[must_use]
    pub fn is_full(&self) -> bool {
        false
    }

    /// It would come after the deadline.
    #[must_use]
    pub fn is_deadline(&self) -> bool {
        false
    }
}
