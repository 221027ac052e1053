//! What the integration tests share: the clock they may read and the scripted test network.

pub(crate) mod alone;
pub(crate) mod chaos;
pub(crate) mod clock;
#[cfg(feature = "cli")]
pub(crate) mod crew;
#[cfg(feature = "cli")]
pub(crate) mod fleet;
pub(crate) mod http1;
pub(crate) mod http2;
#[cfg(feature = "cli")]
pub(crate) mod job;
pub(crate) mod net;
#[cfg(feature = "bulk")]
pub(crate) mod planted;
#[cfg(feature = "cli")]
pub(crate) mod proxy;
#[cfg(target_os = "linux")]
pub(crate) mod raw;
pub(crate) mod record;
#[cfg(feature = "cli")]
pub(crate) mod redis;
#[cfg(feature = "cli")]
pub(crate) mod rows;
pub(crate) mod script;
#[cfg(feature = "cli")]
pub(crate) mod stage;
#[cfg(feature = "cli")]
pub(crate) mod stalls;
pub(crate) mod tls;

/// Whether the tests may take minutes: `ABIDE_LONG` is set.
pub(crate) fn is_long() -> bool {
    std::env::var_os("ABIDE_LONG").is_some()
}
