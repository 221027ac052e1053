//! Ctrl-C and SIGTERM: the first one drains what is under way, the next one ends the process.

use std::{
    io,
    process::exit,
    sync::{Arc, OnceLock},
};

/// Ended by a signal: 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// What the first signal does. Before there is anything to drain it ends the process.
#[derive(Clone)]
pub(crate) struct Signals {
    drain: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
}

impl Signals {
    /// Obeys them from now on, whatever the command is busy with.
    pub(crate) fn obey() -> Result<Self, String> {
        let (mut stop, signals) = (Stop::new().map_err(|error| error.to_string())?, Self { drain: Arc::default() });
        let drain = Arc::clone(&signals.drain);
        tokio::spawn(async move {
            stop.asked().await;
            let Some(drain) = drain.get() else { end_now() };
            drain();
            stop.asked().await;
            end_now();
        });
        Ok(signals)
    }

    /// From now on there is something to drain.
    pub(crate) fn drain(&self, drain: impl Fn() + Send + Sync + 'static) {
        // It is set once.
        let _ = self.drain.set(Box::new(drain));
    }
}

#[expect(clippy::exit, reason = "a signal ends the process, whatever it is busy with")]
fn end_now() -> ! {
    exit(INTERRUPTED.into())
}

/// Ctrl-C and, where there is one, SIGTERM.
pub(crate) struct Stop {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Stop {
    /// Listens from now on, so that a signal right after the first line is not missed.
    pub(crate) fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(crate) async fn asked(&mut self) {
        std::future::poll_fn(|cx| {
            if self.terminate.poll_recv(cx).is_ready() || self.interrupt.poll_recv(cx).is_ready() {
                return std::task::Poll::Ready(());
            }
            std::task::Poll::Pending
        })
        .await;
    }
}

#[cfg(not(unix))]
impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    pub(crate) async fn asked(&mut self) {
        // Without a handler the system ends the process at Ctrl-C.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
