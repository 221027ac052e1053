//! Names on the command line and in texts.

use std::{error, fmt};

/// A text that names none of what was asked for; its display lists those that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    what: &'static str,
    text: String,
    known: Vec<&'static str>,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} {:?}, expected one of {}", self.what, self.text, self.known.join(", "))
    }
}

impl error::Error for UnknownName {}

/// The one of `all` whose name is `text`.
pub(super) fn find<T: Copy>(
    what: &'static str,
    all: &[T],
    name: fn(T) -> &'static str,
    text: &str,
) -> Result<T, UnknownName> {
    let found = all.iter().copied().find(|&one| name(one) == text);
    found.ok_or_else(|| UnknownName { what, text: text.to_owned(), known: all.iter().map(|&one| name(one)).collect() })
}
