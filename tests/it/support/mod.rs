//! What the integration tests share: the clock they may read and the scripted test network.

pub(crate) mod clock;
pub(crate) mod http1;
pub(crate) mod http2;
#[cfg(feature = "cli")]
pub(crate) mod job;
pub(crate) mod net;
pub(crate) mod record;
#[cfg(feature = "cli")]
pub(crate) mod rows;
pub(crate) mod script;
pub(crate) mod tls;
