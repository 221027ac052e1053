//! The rows that wait, a lane for each limiter key: whoever paces one key does not hold the others.
//!
//! Invariant: pure. A lane stands in the ring once if its next row may start.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::time::Instant;

use super::row::Row;
use crate::Key;

/// All lanes.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: HashMap<Key, Lane>,
    ring: VecDeque<Key>,
    held: Vec<(Instant, Key)>,
    pub(super) queued: usize,
    /// Bytes of the rows that wait here.
    pub(super) weight: usize,
}

struct Lane {
    queue: VecDeque<Row>,
    in_ring: bool,
    held: bool,
    /// Started rows that wait for the limiter or for a place.
    waiting: Arc<AtomicUsize>,
    /// Rows that are started and not over.
    started: usize,
    /// The server last let something through.
    accepted: Instant,
}

/// Rows of a lane that stand in the limiter's line at once: enough for 10,000 a second at its timer's grain of 5 ms.
const MOST_WAITING: usize = 64;

impl Lanes {
    /// A row for its first round, or for the next.
    pub(super) fn add(&mut self, row: Row, now: Instant) {
        self.queued += 1;
        self.weight += row.weight;
        let key = row.lane;
        self.lane(key, now).queue.push_back(row);
        self.list(key);
    }

    /// The next row that may start, lanes in turn; with the count of those that wait in its lane.
    pub(super) fn next(&mut self) -> Option<(Row, Arc<AtomicUsize>)> {
        while let Some(key) = self.ring.pop_front() {
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            lane.in_ring = false;
            if lane.held || lane.waiting.load(Ordering::Relaxed) >= MOST_WAITING {
                continue;
            }
            let Some(row) = lane.queue.pop_front() else { continue };
            lane.started += 1;
            let waiting = Arc::clone(&lane.waiting);
            self.queued -= 1;
            self.weight -= row.weight;
            self.list(key);
            return Some((row, waiting));
        }
        None
    }

    /// A row of the lane left the limiter's line.
    pub(super) fn list(&mut self, key: Key) {
        if let Some(lane) = self.lanes.get_mut(&key)
            && !lane.in_ring
            && !lane.queue.is_empty()
        {
            lane.in_ring = true;
            self.ring.push_back(key);
        }
    }

    /// A round is over; how long the server has let nothing through before it.
    pub(super) fn landed(&mut self, key: Key, accepted: bool, now: Instant) -> std::time::Duration {
        let Some(lane) = self.lanes.get_mut(&key) else { return std::time::Duration::ZERO };
        lane.started -= 1;
        if accepted {
            lane.accepted = now;
        }
        let silent = now.saturating_duration_since(lane.accepted);
        self.list(key);
        silent
    }

    /// Forgets the lane if nothing of it is left.
    pub(super) fn sweep(&mut self, key: Key) {
        if self.lanes.get(&key).is_some_and(|lane| lane.started == 0 && lane.queue.is_empty() && !lane.held) {
            self.lanes.remove(&key);
        }
    }

    /// Starts nothing in the lane before `until`.
    pub(super) fn hold(&mut self, key: Key, until: Instant) {
        if let Some(lane) = self.lanes.get_mut(&key)
            && !lane.held
        {
            lane.held = true;
            self.held.push((until, key));
        }
    }

    /// When the next hold ends.
    pub(super) fn next_release(&self) -> Option<Instant> {
        self.held.iter().map(|(until, _)| *until).min()
    }

    /// Ends the holds that are due.
    pub(super) fn release(&mut self, now: Instant) {
        let (due, held) = std::mem::take(&mut self.held).into_iter().partition(|(until, _)| *until <= now);
        self.held = held;
        for (_, key) in due {
            if let Some(lane) = self.lanes.get_mut(&key) {
                lane.held = false;
            }
            self.list(key);
            self.sweep(key);
        }
    }

    /// All that wait: the run stops.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Row> {
        self.ring.clear();
        self.held.clear();
        (self.queued, self.weight) = (0, 0);
        std::mem::take(&mut self.lanes).into_values().flat_map(|lane| lane.queue)
    }

    fn lane(&mut self, key: Key, now: Instant) -> &mut Lane {
        self.lanes.entry(key).or_insert_with(|| Lane {
            queue: VecDeque::new(),
            in_ring: false,
            held: false,
            waiting: Arc::default(),
            started: 0,
            accepted: now,
        })
    }
}
