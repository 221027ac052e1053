//! Optimistic concurrency control: each client reads the version of a row and writes if it is still that one; after a
//! failure it backs off and reads again, until it has succeeded once. After aws-samples/aws-arch-backoff-simulator.

use std::{cmp::Reverse, collections::BinaryHeap, f64::consts::TAU, time::Duration};

use abide::Backoff;
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// A backoff by name.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    backoff: fn(Duration, Duration) -> Backoff,
    /// The simulator counts the first failure as n = 1, where abide's first retry is n = 0.
    skipped: usize,
}

pub(crate) const KINDS: [Kind; 5] = [
    Kind { name: "none", backoff: |_, _| Backoff::none(), skipped: 0 },
    Kind { name: "exponential", backoff: Backoff::exponential, skipped: 1 },
    Kind { name: "equal jitter", backoff: Backoff::equal_jitter, skipped: 1 },
    Kind { name: "full jitter", backoff: Backoff::full_jitter, skipped: 1 },
    Kind { name: "decorrelated", backoff: Backoff::decorrelated_jitter, skipped: 0 },
];

const BASE: Duration = Duration::from_millis(5);
const CAP: Duration = Duration::from_millis(2000);

/// Until the last client had succeeded, and what that took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mean {
    pub(crate) millis: f64,
    pub(crate) writes: f64,
}

impl Kind {
    /// Over so many runs, each with a seed of its own.
    pub(crate) fn mean(&self, clients: u32, runs: u64) -> Mean {
        let (mut millis, mut writes) = (0.0, 0.0);
        for seed in 0..runs {
            let (end, written) = self.run(clients, seed);
            millis += end.as_secs_f64() * 1000.0;
            writes += f64::from(written);
        }
        Mean { millis: millis / runs as f64, writes: writes / runs as f64 }
    }

    fn run(&self, clients: u32, seed: u64) -> (Duration, u32) {
        let mut rng = StdRng::seed_from_u64(seed);
        let backoff = (self.backoff)(BASE, CAP);
        let mut waits: Vec<_> =
            (0..clients).map(|client| backoff.waits(seed << 32 | u64::from(client)).skip(self.skipped)).collect();
        let mut events: BinaryHeap<_> =
            waits.iter().enumerate().map(|(client, _)| Reverse((hop(&mut rng), client, Message::Read))).collect();
        let (mut version, mut writes, mut end) = (0, 0, Duration::ZERO);
        while let Some(Reverse((now, client, message))) = events.pop() {
            end = now;
            let (wait, next) = match message {
                Message::Read => (Duration::ZERO, Message::Version(version)),
                Message::Version(seen) => (Duration::ZERO, Message::Write(seen)),
                Message::Write(seen) => {
                    let good = seen == version;
                    version += u32::from(good);
                    writes += 1;
                    (Duration::ZERO, if good { Message::Done } else { Message::Failed })
                }
                Message::Failed => (waits[client].next().unwrap_or_default(), Message::Read),
                Message::Done => continue,
            };
            events.push(Reverse((now + wait + hop(&mut rng), client, next)));
        }
        (end, writes)
    }
}

/// What is under way: to the row, or back to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Read,
    Version(u32),
    Write(u32),
    Failed,
    Done,
}

/// One way through the network: |Normal(10, 2)| ms, by Box and Muller.
fn hop(rng: &mut StdRng) -> Duration {
    let (radius, angle): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    let normal = (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos();
    Duration::from_secs_f64((10.0 + 2.0 * normal).abs() / 1000.0)
}
