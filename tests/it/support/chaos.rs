//! A proxy on loopback that delays, drips, cuts, resets, stalls, truncates and corrupts, by a seed.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

use super::clock::{self, ms};

/// What happens to one direction of a connection, at a byte of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// The bytes stop, and both sides see the end (FIN).
    Cut,
    /// Both sides are reset (RST).
    Reset,
    /// Nothing more comes, for longer than anybody waits.
    Stall,
    /// Bytes change, from there on one in sixteen.
    Corrupt,
}

/// A proxy that runs until it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    struck: Arc<Struck>,
    task: AbortHandle,
}

/// How often each harm was done.
#[derive(Debug, Default)]
pub(crate) struct Struck {
    pub(crate) cuts: AtomicU64,
    pub(crate) resets: AtomicU64,
    pub(crate) stalls: AtomicU64,
    pub(crate) corrupted: AtomicU64,
}

impl Proxy {
    /// Starts one in front of `to`. The n-th connection has the same fate under the same seed; only answers are
    /// corrupted, and only if `corrupts`.
    pub(crate) async fn start(to: SocketAddr, seed: u64, corrupts: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, struck) = (listener.local_addr().unwrap(), Arc::new(Struck::default()));
        let counts = Arc::clone(&struck);
        let task = tokio::spawn(async move {
            let (mut connections, mut number) = (JoinSet::new(), 0_u64);
            while let Ok((near, _)) = listener.accept().await {
                number += 1;
                // Seeds one apart give streams that have nothing in common.
                let rng = SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9).wrapping_add(number << 40));
                connections.spawn(carry(near, to, Fate::of(rng, corrupts), Arc::clone(&counts)));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, struck, task: task.abort_handle() }
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it did so far.
    pub(crate) fn struck(&self) -> &Struck {
        &self.struck
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What happens to one connection.
struct Fate {
    up: Way,
    down: Way,
}

/// One direction.
struct Way {
    rng: SmallRng,
    harm: Option<(Harm, usize)>,
    /// Most bytes that pass at once.
    sip: usize,
    /// Longest delay of each sip.
    delay_ms: u64,
}

impl Fate {
    fn of(mut rng: SmallRng, corrupts: bool) -> Self {
        // A request is some 200 bytes, an answer some 150: most harm falls into the first or the second of them.
        let mut way = |kinds: &[Harm]| {
            let harm =
                rng.random_bool(0.35).then(|| (kinds[rng.random_range(0..kinds.len())], rng.random_range(0..500)));
            let drips = rng.random_bool(0.2);
            let (sip, delay_ms) = if drips { (rng.random_range(1..40), 4) } else { (16_384, rng.random_range(0..3)) };
            Way { rng: SmallRng::seed_from_u64(rng.random()), harm, sip, delay_ms }
        };
        let up = way(&[Harm::Cut, Harm::Reset, Harm::Stall]);
        let down: &[Harm] = match corrupts {
            true => &[Harm::Corrupt, Harm::Corrupt, Harm::Cut, Harm::Stall],
            false => &[Harm::Cut, Harm::Reset, Harm::Stall],
        };
        Self { up, down: way(down) }
    }
}

async fn carry(mut near: TcpStream, to: SocketAddr, mut fate: Fate, struck: Arc<Struck>) {
    let Ok(mut far) = TcpStream::connect(to).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let end = {
        let ((near_reads, near_writes), (far_reads, far_writes)) = (near.split(), far.split());
        tokio::select! {
            end = fate.up.pump(near_reads, far_writes, &struck) => end,
            end = fate.down.pump(far_reads, near_writes, &struck) => end,
        }
    };
    if matches!(end, Ok(Some(Harm::Reset))) {
        let _ = (near.set_zero_linger(), far.set_zero_linger());
    }
}

impl Way {
    /// Bytes from one side to the other, until one of them ends or the harm is done.
    async fn pump(
        &mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        struck: &Struck,
    ) -> io::Result<Option<Harm>> {
        let (mut buffer, mut passed) = (vec![0; 16_384], 0);
        loop {
            let most = match self.harm {
                Some((Harm::Corrupt, _)) | None => self.sip,
                Some((_, at)) => self.sip.min(at.saturating_sub(passed).max(1)),
            };
            let read = from.read(&mut buffer[..most]).await?;
            if read == 0 {
                return Ok(None);
            }
            clock::sleep(ms(self.rng.random_range(0..=self.delay_ms))).await;
            match self.harm {
                Some((Harm::Corrupt, at)) => self.corrupt(&mut buffer[..read], passed, at, struck),
                Some((harm, at)) if passed >= at => return Ok(Some(strike(harm, struck).await)),
                _ => {}
            }
            passed += read;
            to.write_all(&buffer[..read]).await?;
        }
    }

    fn corrupt(&mut self, bytes: &mut [u8], passed: usize, at: usize, struck: &Struck) {
        for (place, byte) in (passed..).zip(bytes) {
            if place == at || place > at && self.rng.random_ratio(1, 16) {
                *byte ^= self.rng.random_range(1..=255_u8);
                struck.corrupted.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

async fn strike(harm: Harm, struck: &Struck) -> Harm {
    match harm {
        Harm::Cut => &struck.cuts,
        Harm::Reset => &struck.resets,
        Harm::Stall | Harm::Corrupt => &struck.stalls,
    }
    .fetch_add(1, Ordering::Relaxed);
    if harm == Harm::Stall {
        clock::sleep(ms(3_000)).await;
    }
    harm
}
