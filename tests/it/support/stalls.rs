//! How busy the machine is while something is measured: what a test may ask of instants and of speed depends on it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use super::clock::{self, ms};

/// Watches until it is dropped.
pub(crate) struct Stalls {
    over: Arc<AtomicBool>,
    /// The most by which a thread that slept was late, in microseconds.
    worst: Arc<AtomicU64>,
}

impl Stalls {
    pub(crate) fn watch() -> Self {
        let (over, worst) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (own_over, own_worst) = (Arc::clone(&over), Arc::clone(&worst));
        thread::spawn(move || {
            while !own_over.load(Ordering::Relaxed) {
                let due = clock::now() + ms(1);
                thread::sleep(ms(1));
                let late = clock::now().saturating_duration_since(due).as_micros();
                own_worst.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { over, worst }
    }

    fn worst(&self) -> Duration {
        Duration::from_micros(self.worst.load(Ordering::Relaxed))
    }

    /// A window, shorter by what two instants may have come nearer to each other: each was noted, or had its request
    /// served, as late as any thread of this machine was.
    pub(crate) fn nearly(&self, window: Duration) -> Duration {
        window.saturating_sub(ms(20) + 2 * self.worst())
    }

    /// The share of a use that can be had: all of it, or a third where processes wait for a processor.
    pub(crate) fn least(&self, share: f64) -> f64 {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load: f64 = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
        let processors = thread::available_parallelism().map_or(1, usize::from) as f64;
        let busy = self.worst() > ms(15) || load > 1.5 * processors;
        println!("late by {:?}, load {load}{}", self.worst(), if busy { ": busy" } else { "" });
        if busy { share / 3.0 } else { share }
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
