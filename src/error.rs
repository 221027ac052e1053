//! One opaque error with predicates.

use std::fmt;

/// What went wrong.
pub struct Error(Box<str>);

impl Error {
    /// A setting or a request that makes no sense; nothing was sent.
    pub(crate) fn builder(what: impl Into<String>) -> Self {
        Self(what.into().into())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Error").field(&self.0).finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
