//! Proofs by random schedules: whatever callers do, and whatever a server says, the contracts hold and nothing is lost.

use std::{future::Future, pin::Pin, time::Duration};

use abide::{
    Key, Limiter, Permit, Quota, Refused,
    headers::{Hints, QuotaHint},
};
use futures_util::{
    FutureExt,
    future::{BoxFuture, poll_immediate},
    stream::{FuturesUnordered, StreamExt},
};
use proptest::prelude::*;
use tokio::time::{Instant, advance, timeout};

const MS: u64 = 1_000_000;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn key() -> Key {
    Key::from("k")
}

/// A quota of a schedule, as plain numbers.
#[derive(Clone, Copy, Debug)]
struct Contract {
    n: u32,
    per_ms: u64,
    /// Of a bucket; none of a window.
    burst: Option<u32>,
}

impl Contract {
    fn quota(self) -> Quota {
        let per = Duration::from_millis(self.per_ms);
        match self.burst {
            Some(burst) => Quota::bucket(self.n, per).burst(burst),
            None => Quota::window(self.n, per),
        }
    }

    fn full(self) -> u64 {
        self.burst.unwrap_or_else(|| (self.n / 4).max(1)).into()
    }

    /// No closed window above n; no span above burst + n · (t + 5 ms) / per.
    fn check(self, sent: &[Sent]) {
        for (i, first) in sent.iter().enumerate() {
            let mut sum = 0u128;
            for last in &sent[i..] {
                sum += u128::from(last.cost);
                let span = u128::from(last.at - first.at);
                let per = u128::from(self.per_ms * MS);
                match self.burst {
                    None if span > per => break,
                    None => assert!(sum <= self.n.into(), "{sum} in {span} ns of {self:?}: {sent:?}"),
                    Some(burst) => {
                        let most = u128::from(burst) * per + u128::from(self.n) * (span + 5_000_000);
                        assert!(sum * per <= most, "{sum} in {span} ns of {self:?}: {sent:?}");
                    }
                }
            }
        }
    }
}

fn contract() -> impl Strategy<Value = Contract> {
    prop_oneof![
        (1u32..25, 20u64..3_000).prop_map(|(n, per_ms)| Contract { n, per_ms, burst: None }),
        (1u32..25, 20u64..3_000, 1u32..12).prop_map(|(n, per_ms, b)| Contract { n, per_ms, burst: Some(b) }),
    ]
}

/// What was committed, at the lower of what was charged and what it really cost.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: u64,
    cost: u32,
}

#[derive(Clone, Debug)]
enum Op {
    Acquire { cost: u32, deadline_ms: Option<u64> },
    Poll(usize),
    PollAll,
    DropWaiter(usize),
    Commit(usize),
    DropPermit(usize),
    Settle(usize, u32),
    Observe(usize, Hints),
    Pause(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1u32..5, proptest::option::weighted(0.2, 1u64..4_000))
            .prop_map(|(cost, deadline_ms)| Op::Acquire { cost, deadline_ms }),
        4 => any::<usize>().prop_map(Op::Poll),
        4 => Just(Op::PollAll),
        2 => any::<usize>().prop_map(Op::DropWaiter),
        6 => any::<usize>().prop_map(Op::Commit),
        4 => any::<usize>().prop_map(Op::DropPermit),
        2 => (any::<usize>(), 0u32..8).prop_map(|(i, actual)| Op::Settle(i, actual)),
        2 => (any::<usize>(), hints()).prop_map(|(i, hints)| Op::Observe(i, hints)),
        1 => (1u64..1_500).prop_map(Op::Pause),
    ]
}

/// A server that changes its mind.
fn hints() -> impl Strategy<Value = Hints> {
    let number = || proptest::option::weighted(0.8, 1u32..40);
    let span = |most| proptest::option::weighted(0.8, 1u64..most);
    (number(), number(), span(4_000), span(2_000), proptest::option::weighted(0.1, 1u64..800), any::<bool>()).prop_map(
        |(limit, remaining, window, reset, wait, refused)| {
            let mut quota = QuotaHint::default();
            quota.limit = limit.map(f64::from);
            quota.remaining = remaining.map(|left| f64::from(left - 1));
            quota.window = window.map(Duration::from_millis);
            quota.reset_after = reset.map(Duration::from_millis);
            let mut hints = Hints::default();
            hints.retry_after = wait.map(Duration::from_millis);
            hints.refused = refused && wait.is_some();
            hints.quotas = vec![quota];
            hints
        },
    )
}

/// One who waits, polled by hand.
type Waiter = Pin<Box<dyn Future<Output = Result<Permit, Refused>> + Send>>;

/// A permit in somebody's hands, and what it charged.
struct Holder {
    permit: Permit,
    cost: u32,
    sent: Option<usize>,
}

struct World {
    limiter: Limiter,
    start: Instant,
    waiters: Vec<(u32, Waiter)>,
    holders: Vec<Holder>,
    sent: Vec<Sent>,
}

impl World {
    fn new(contracts: &[Contract], max_in_flight: Option<u32>) -> Self {
        let mut builder = Limiter::builder();
        for contract in contracts {
            builder = builder.quota(contract.quota());
        }
        if let Some(most) = max_in_flight {
            builder = builder.max_in_flight(most);
        }
        let (limiter, start) = (builder.build().unwrap(), Instant::now());
        Self { limiter, start, waiters: Vec::new(), holders: Vec::new(), sent: Vec::new() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap()
    }

    async fn run(&mut self, op: Op) {
        match op {
            Op::Acquire { cost, deadline_ms } => {
                let deadline = deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
                let wait = Box::pin(self.limiter.acquire(&key(), cost, deadline));
                self.waiters.push((cost, wait));
                self.poll(self.waiters.len() - 1).await;
            }
            Op::Poll(i) if !self.waiters.is_empty() => self.poll(i % self.waiters.len()).await,
            Op::PollAll => self.poll_all().await,
            Op::DropWaiter(i) if !self.waiters.is_empty() => drop(self.waiters.remove(i % self.waiters.len())),
            Op::Commit(i) if !self.holders.is_empty() => self.commit(i % self.holders.len()),
            Op::DropPermit(i) if !self.holders.is_empty() => {
                drop(self.holders.swap_remove(i % self.holders.len()));
            }
            Op::Settle(i, actual) if !self.holders.is_empty() => self.settle(i % self.holders.len(), actual),
            Op::Observe(i, hints) if !self.holders.is_empty() => {
                let i = i % self.holders.len();
                self.holders[i].permit.observe(&hints);
            }
            Op::Pause(ms) => self.limiter.pause(&key(), Instant::now() + Duration::from_millis(ms)),
            _ => {}
        }
    }

    async fn poll(&mut self, i: usize) {
        let Some(turn) = poll_immediate(self.waiters[i].1.as_mut()).await else { return };
        let (cost, _) = self.waiters.remove(i);
        match turn {
            Ok(permit) => self.holders.push(Holder { permit, cost, sent: None }),
            Err(refused) => self.check_refusal(refused),
        }
    }

    fn check_refusal(&self, refused: Refused) {
        assert!(!refused.is_full(), "the line has places left");
        if let (true, Some(at)) = (refused.is_deadline(), refused.retry_at()) {
            assert!(at >= Instant::now(), "{refused:?}");
        }
        assert!(refused.is_deadline() || refused.is_never(), "{refused:?} at {:?}", self.start.elapsed());
    }

    async fn poll_all(&mut self) {
        for i in (0..self.waiters.len()).rev() {
            let i = self.waiters.len().min(i + 1) - 1;
            self.poll(i).await;
        }
    }

    fn commit(&mut self, i: usize) {
        let now = self.now();
        let holder = &mut self.holders[i];
        if holder.sent.is_none() {
            holder.permit.commit();
            holder.sent = Some(self.sent.len());
            self.sent.push(Sent { at: now, cost: holder.cost });
        }
    }

    fn settle(&mut self, i: usize, actual: u32) {
        let holder = &mut self.holders[i];
        holder.permit.settle(actual);
        if let Some(sent) = holder.sent {
            self.sent[sent].cost = self.sent[sent].cost.min(actual);
        }
    }

    /// All who still wait are polled to the end, and come out in order.
    async fn finish(&mut self) {
        self.holders.clear();
        // All stand in their places now. Who was granted while others had lapsed goes before them.
        let mut waiting = Vec::new();
        for (cost, mut wait) in std::mem::take(&mut self.waiters) {
            match poll_immediate(wait.as_mut()).await {
                Some(Ok(permit)) => self.holders.push(Holder { permit, cost, sent: None }),
                Some(Err(refused)) => self.check_refusal(refused),
                None => waiting.push((cost, wait)),
            }
        }
        while !self.holders.is_empty() {
            self.commit(0);
            self.holders.swap_remove(0);
        }
        let start = self.start;
        let line: FuturesUnordered<BoxFuture<'static, _>> = waiting
            .into_iter()
            .enumerate()
            .map(|(place, (cost, wait))| {
                async move {
                    let granted = wait.await;
                    let at = u64::try_from(start.elapsed().as_nanos()).unwrap();
                    let sent = granted.map(|mut permit| permit.commit()).ok().map(|()| Sent { at, cost });
                    (place, at, sent)
                }
                .boxed()
            })
            .collect();
        let mut ends: Vec<_> = timeout(Duration::from_secs(3_600), line.collect()).await.expect("nobody starves");
        self.sent.extend(ends.iter().filter_map(|(_, _, sent)| *sent));
        ends.retain(|(_, _, sent)| sent.is_some());
        ends.sort_by_key(|(place, ..)| *place);
        assert!(ends.is_sorted_by_key(|(_, at, _)| *at), "in order: {ends:?}");
    }

    /// Everything came back, once: full again, and forgotten.
    async fn check_at_rest(&self, contracts: &[Contract]) {
        advance(DAY * 2).await;
        let snapshot = self.limiter.snapshot(&key());
        if let Some(snapshot) = snapshot {
            assert_eq!((snapshot.waiting, snapshot.in_flight, snapshot.paused_until), (0, 0, None));
            for (contract, (_, left)) in contracts.iter().zip(&snapshot.left) {
                assert_eq!(*left, contract.full(), "{contract:?}");
            }
        }
        assert_eq!(self.limiter.tracked_keys(), 0, "nothing of it matters any more");
    }
}

fn paused<F: Future>(run: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(run)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_time: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_schedule_keeps_all_contracts_and_loses_nothing(
        contracts in proptest::collection::vec(contract(), 1..4),
        max_in_flight in proptest::option::weighted(0.3, 1u32..6),
        steps in proptest::collection::vec((0u64..60_000, op()), 1..120),
    ) {
        paused(async {
            let mut world = World::new(&contracts, max_in_flight);
            for (i, (micros, op)) in steps.into_iter().enumerate() {
                // Now and then a longer silence.
                advance(Duration::from_micros(if i % 16 == 15 { micros * 40 } else { micros })).await;
                world.run(op).await;
            }
            world.finish().await;
            for contract in &contracts {
                contract.check(&world.sent);
            }
            world.check_at_rest(&contracts).await;
        });
    }

    /// Who is refused because of a deadline would not have been granted before it; who stands first is told exactly.
    #[test]
    fn a_refusal_by_deadline_is_right(
        contracts in proptest::collection::vec(contract(), 1..3),
        sends in proptest::collection::vec((0u64..400, 1u32..4), 0..20),
        line in proptest::collection::vec(1u32..4, 0..6),
        cost in 1u32..4, deadline_ms in 1u64..3_000,
    ) {
        let run = |deadline: Option<u64>| {
            let (contracts, sends, line) = (contracts.clone(), sends.clone(), line.clone());
            paused(async move {
                let world = World::new(&contracts, None);
                for (dt, cost) in sends {
                    advance(Duration::from_millis(dt)).await;
                    if let Ok(mut permit) = world.limiter.try_acquire(&key(), cost) { permit.commit(); }
                }
                let alone = world.limiter.try_acquire(&key(), cost).map(drop);
                let before: Vec<_> = line.iter().map(|cost| committed(&world.limiter, *cost)).collect();
                let joined = Instant::now();
                let deadline = deadline.map(|ms| joined + Duration::from_millis(ms));
                let granted = world.limiter.acquire(&key(), cost, deadline).await;
                (alone, granted.map(|_| joined.elapsed()), joined, before)
            })
        };
        let (alone, free, joined, _) = run(None);
        let (_, limited, again, _) = run(Some(deadline_ms));
        let deadline = Duration::from_millis(deadline_ms);
        match (free, limited) {
            (Ok(at), Ok(limited)) => prop_assert_eq!(at, limited),
            (Ok(at), Err(refused)) => {
                prop_assert!(refused.is_deadline() && at >= deadline, "{:?} could have gone at {:?}", refused, at);
                let told = refused.retry_at().unwrap() - again;
                prop_assert!(told <= at.max(deadline), "{:?} told, {:?} true", told, at);
            }
            (Err(free), Err(limited)) => prop_assert!(free.is_never() && limited.is_never()),
            (free, limited) => prop_assert!(false, "{:?} {:?}", free, limited),
        }
        if let (true, Err(refused), Ok(at)) = (line.is_empty(), alone, free)
            && let Some(told) = refused.retry_at()
        {
            // Timers are whole milliseconds; the estimate is exact.
            let told = told - joined;
            prop_assert!(told <= at && at < told + Duration::from_millis(2), "{:?} told, {:?} true", told, at);
        }
    }
}

/// In line, granted, committed and dropped by a task of its own.
fn committed(limiter: &Limiter, cost: u32) -> tokio::task::JoinHandle<()> {
    let mut wait = Box::pin(limiter.acquire(&key(), cost, None));
    let first = wait.as_mut().now_or_never();
    tokio::spawn(async move {
        let granted = match first {
            Some(granted) => granted,
            None => wait.await,
        };
        if let Ok(mut permit) = granted {
            permit.commit();
        }
    })
}
