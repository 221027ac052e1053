//! All interleavings of two or three threads at one cell: no wake is lost, nothing is given back twice.

use std::{
    sync::Arc,
    task::{Wake, Waker},
    time::Duration,
};

use loom::thread::{self, Thread};

use super::{
    Config, Key, Quota,
    costs::Costs,
    keyed::Cell,
    learn::Rules,
    scope::{Turn, Want},
    tick::{Epoch, Tick},
};
use crate::clock;

/// Time stands still: only wakes bring anybody on.
const NOW: Tick = Tick::from_nanos(1);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn cell(quotas: Vec<Quota>, max_in_flight: u32) -> Arc<Cell> {
    let config = Config {
        quotas,
        max_in_flight,
        max_keys: 1,
        max_waiting: 10,
        rules: Rules { headroom: 0.0, learn: false },
        epoch: Epoch::new(clock::now()),
        hub: None,
    };
    Arc::new(Cell::new(Key::from("k"), &Arc::new(config), NOW))
}

fn one_unit() -> Vec<Quota> {
    vec![Quota::bucket(1, Duration::from_secs(1)).burst(1)]
}

fn want() -> Want {
    Want { costs: Costs::requests(1), deadline: Tick::NEVER, max_pause: u64::MAX, most_waiting: 10 }
}

fn join(cell: &Arc<Cell>, waker: &Waker) -> Turn {
    cell.with(|state, wakes| state.scope.join(&want(), waker, NOW, wakes))
}

/// Waits by parking, as a task waits by its waker.
fn acquire(cell: &Arc<Cell>) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut turn = join(cell, &waker);
    while let Turn::Wait { seq, .. } = turn {
        thread::park();
        turn = cell.with(|state, wakes| state.scope.poll((seq, &waker), &want(), NOW, wakes));
    }
    assert!(matches!(turn, Turn::Granted { .. }));
}

fn give_back(cell: &Arc<Cell>) {
    cell.with(|state, wakes| {
        state.scope.give_back(&want().costs, None);
        state.scope.pump(NOW, wakes);
    });
}

/// Nothing is held, and exactly one unit is there: given back once each time.
fn check_at_rest(cell: &Arc<Cell>) {
    let mut state = cell.lock();
    state.scope.pump(NOW, &mut Vec::new());
    assert_eq!((state.scope.slots.held, state.scope.slots.in_flight, state.scope.waiting()), (0, 0, 0));
    assert!(!state.scope.has_line());
    for meter in &state.scope.meters {
        assert_eq!((meter.held(), meter.left(NOW)), (0, 1));
    }
}

#[test]
fn two_threads_hand_one_unit_to_each_other() {
    loom::model(|| {
        let cell = cell(one_unit(), u32::MAX);
        let other = thread::spawn({
            let cell = Arc::clone(&cell);
            move || {
                acquire(&cell);
                give_back(&cell);
            }
        });
        acquire(&cell);
        give_back(&cell);
        other.join().unwrap();
        check_at_rest(&cell);
    });
}

#[test]
fn two_threads_hand_one_slot_to_each_other() {
    fn send(cell: &Arc<Cell>) {
        acquire(cell);
        cell.with(|state, wakes| {
            state.scope.commit(&want().costs, NOW);
            state.scope.pump(NOW, wakes);
        });
        cell.with(|state, wakes| {
            state.scope.free_slot();
            state.scope.pump(NOW, wakes);
        });
    }
    loom::model(|| {
        let cell = cell(Vec::new(), 1);
        let other = thread::spawn({
            let cell = Arc::clone(&cell);
            move || send(&cell)
        });
        send(&cell);
        other.join().unwrap();
        check_at_rest(&cell);
    });
}

#[test]
fn a_waiter_that_leaves_as_it_is_granted_passes_it_on() {
    loom::model(|| {
        let cell = cell(one_unit(), u32::MAX);
        acquire(&cell);
        let leaver = thread::spawn({
            let cell = Arc::clone(&cell);
            move || match join(&cell, Waker::noop()) {
                Turn::Wait { seq, .. } => cell.with(|state, wakes| state.scope.leave(seq, NOW, wakes)),
                Turn::Granted { .. } => give_back(&cell),
                Turn::Refused { .. } => unreachable!("nobody is refused"),
            }
        });
        let waiter = thread::spawn({
            let cell = Arc::clone(&cell);
            move || {
                acquire(&cell);
                give_back(&cell);
            }
        });
        give_back(&cell);
        leaver.join().unwrap();
        waiter.join().unwrap();
        check_at_rest(&cell);
    });
}
