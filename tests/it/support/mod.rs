//! What the integration tests share: the clock they may read and the scripted test network.

pub(crate) mod clock;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod net;
pub(crate) mod record;
pub(crate) mod script;
pub(crate) mod tls;
