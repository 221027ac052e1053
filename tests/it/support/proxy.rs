//! What stands between a process and a server: counts connections, notes when answers pass, and cuts.
#![expect(clippy::unwrap_used, reason = "a test on sockets fails by panic")]

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU16, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::Instant,
};

use super::clock::{self, ms};

/// Carries bytes both ways until it is dropped.
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    /// Port of the server; zero before it is known.
    to: AtomicU16,
    cuts: watch::Sender<u64>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    connects: Vec<Instant>,
    answers: Vec<Instant>,
}

/// A cut waits so long for a command to come by.
const LURK: u64 = 100;

impl Proxy {
    /// On a free port; the server may be named later.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Shared { to: AtomicU16::new(0), cuts: watch::Sender::new(0), seen: Mutex::default() };
        let shared = Arc::new(shared);
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { port, shared, accepting }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Where the server is.
    pub(crate) fn lead_to(&self, port: u16) {
        self.shared.to.store(port, Ordering::Relaxed);
    }

    /// Ends every connection in the middle of a command: in turn with half of it sent, or with its answer kept back.
    pub(crate) fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// When connections came, those to a dead server too.
    pub(crate) fn connects(&self) -> Vec<Instant> {
        self.shared.seen().connects.clone()
    }

    /// When bytes of the server passed.
    pub(crate) fn answers(&self) -> Vec<Instant> {
        self.shared.seen().answers.clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        let number = {
            let mut seen = shared.seen();
            seen.connects.push(clock::now());
            seen.connects.len()
        };
        while connections.try_join_next().is_some() {}
        connections.spawn(carry(near, number, Arc::clone(&shared)));
    }
}

/// One connection. That it ends with an error is its business.
async fn carry(near: TcpStream, number: usize, shared: Arc<Shared>) -> io::Result<()> {
    near.set_nodelay(true)?;
    let Ok(far) = TcpStream::connect(("127.0.0.1", shared.to.load(Ordering::Relaxed))).await else {
        // As if nobody listened.
        return near.set_zero_linger();
    };
    far.set_nodelay(true)?;
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let mut cuts = shared.cuts.subscribe();
    let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
    let (mut waiting, mut cut_by) = (false, None);
    loop {
        tokio::select! {
            read = near_read.read(&mut asked) => match (read?, cut_by) {
                (0, _) => return Ok(()),
                (length, None) => {
                    far_write.write_all(&asked[..length]).await?;
                    waiting = true;
                }
                (length, Some(_)) => {
                    let sent = if number.is_multiple_of(2) { length } else { length / 2 };
                    return far_write.write_all(&asked[..sent]).await;
                }
            },
            read = far_read.read(&mut answered) => match read? {
                0 => return Ok(()),
                length => {
                    near_write.write_all(&answered[..length]).await?;
                    shared.seen().answers.push(clock::now());
                    waiting = false;
                }
            },
            _ = cuts.changed() => match waiting {
                true => return Ok(()),
                false => cut_by = Some(clock::now() + ms(LURK)),
            },
            () = clock::sleep_until(cut_by.unwrap_or_else(clock::now)), if cut_by.is_some() => return Ok(()),
        }
    }
}
