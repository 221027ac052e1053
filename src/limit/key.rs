//! The limiter key and the route: hashes of texts that are not kept.

use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher, DefaultHasher, Hash, Hasher},
    sync::OnceLock,
};

#[cfg(feature = "redis")]
use sha2::{Digest, Sha256};

/// The limiter key: which calls share limits.
///
/// Made from a text, of which only a 128-bit hash is kept, keyed at random per process: it reveals nothing, and keys
/// that a stranger chose cannot be made to collide. Equal texts give equal keys within one process. With the feature
/// `redis` the SHA-256 of the same text is kept too: it names the key in the store of a fleet.
///
/// # Examples
///
/// ```
/// use abide::Key;
///
/// assert_eq!(Key::from("tenant-7"), Key::from(String::from("tenant-7")));
/// ```
#[derive(Clone, Copy)]
pub struct Key {
    /// Two halves: as one number they would take the room of its alignment wherever a key is kept.
    bits: [u64; 2],
    #[cfg(feature = "redis")]
    digest: [u8; 32],
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.bits == other.bits
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.bits[1]);
    }
}

impl Key {
    /// From several parts, told apart by their lengths.
    pub(crate) fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = hasher();
        #[cfg(feature = "redis")]
        let mut digest = Sha256::new();
        for part in parts {
            hasher.write_usize(part.len());
            hasher.write(part);
            #[cfg(feature = "redis")]
            {
                digest.update((part.len() as u64).to_be_bytes());
                digest.update(part);
            }
        }
        // The second half is of one byte more: with a key that nobody knows it says nothing about the first.
        let first = hasher.finish();
        hasher.write_u8(0);
        Self {
            bits: [first, hasher.finish()],
            #[cfg(feature = "redis")]
            digest: digest.finalize().into(),
        }
    }

    /// What names it in a store, for all processes: SHA-256 of its text, in hexadecimal digits.
    #[cfg(feature = "redis")]
    pub(crate) fn digest(&self) -> String {
        hex(&self.digest)
    }

    /// Eight hexadecimal digits that name the key in logs and events.
    fn short(self) -> u32 {
        u32::try_from(self.bits[0] >> 32).unwrap_or_default()
    }

    /// Well mixed bits, for a map.
    pub(crate) const fn bits(self) -> [u64; 2] {
        self.bits
    }
}

/// A hash that is the same in all processes, of parts told apart by their lengths.
#[cfg(feature = "redis")]
pub(crate) fn stable<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Box<str> {
    hex(&Key::of_parts(parts).digest[..16]).into()
}

/// Without a store nobody asks for it.
#[cfg(not(feature = "redis"))]
pub(crate) fn stable<'a>(_: impl IntoIterator<Item = &'a [u8]>) -> Box<str> {
    Box::default()
}

#[cfg(feature = "redis")]
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hasher() -> DefaultHasher {
    static SEED: OnceLock<RandomState> = OnceLock::new();
    SEED.get_or_init(RandomState::new).build_hasher()
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::of_parts([text.as_bytes()])
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

/// Eight hexadecimal digits of the hash; never the text.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.short())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Method and path of a request, with each segment that looks like an identifier replaced: the key of route quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Route(u64);

impl Route {
    pub(crate) fn of(method: &http::Method, path: &str) -> Self {
        let mut hasher = hasher();
        hasher.write(method.as_str().as_bytes());
        // All that stands between two identifiers in one piece: most paths have none.
        let (path, mut kept, mut start) = (path.as_bytes(), 0, 0);
        for segment in path.split(|byte| *byte == b'/') {
            let end = start + segment.len();
            if is_identifier(segment) {
                hasher.write(path.get(kept..start).unwrap_or_default());
                hasher.write_u8(b'*');
                kept = end;
            }
            start = end + 1;
        }
        hasher.write(path.get(kept..).unwrap_or_default());
        Self(hasher.finish())
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }
}

/// A number, a UUID, or 16 and more letters and digits.
fn is_identifier(bytes: &[u8]) -> bool {
    let number = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
    let uuid = bytes.len() == 36
        && bytes
            .iter()
            .enumerate()
            .all(|(i, b)| if [8, 13, 18, 23].contains(&i) { *b == b'-' } else { b.is_ascii_hexdigit() });
    let long = bytes.len() >= 16 && bytes.iter().all(u8::is_ascii_alphanumeric);
    number || uuid || long
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    #[test]
    fn parts_are_told_apart() {
        assert_ne!(Key::of_parts([b"ab".as_slice(), b"c"]), Key::of_parts([b"a".as_slice(), b"bc"]));
        assert_eq!(Key::from("a"), Key::from("a".to_owned()));
        assert_eq!(format!("{}", Key::from("secret")).len(), 8);
    }

    #[test]
    fn identifiers_do_not_make_routes() {
        let of = |path| Route::of(&Method::GET, path);
        assert_eq!(of("/channels/123/messages"), of("/channels/456/messages"));
        assert_eq!(of("/c/8e03978e-40d5-43e8-bc93-6894a57f9324"), of("/c/1e03978e-40d5-43e8-bc93-6894a57f9325"));
        assert_eq!(of("/c/abcdefghij0123456"), of("/c/zzcdefghij0123456"));
        assert_ne!(of("/channels"), of("/guilds"));
        assert_ne!(of("/channels"), Route::of(&Method::POST, "/channels"));
    }
}
