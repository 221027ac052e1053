//! Fleets over a store in memory, in virtual time.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};

use super::{
    Fleet, StoreLoss,
    memory::{Member, Memory},
};
use crate::{
    Backoff, Key, Limiter, Quota, Refused, clock,
    headers::{Hints, QuotaHint},
};

const SECOND: Duration = Duration::from_secs(1);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn sleep(time: Duration) {
    clock::sleep_until(clock::now() + time).await;
}

fn fleet(memory: &Memory, member: u64, on_loss: StoreLoss) -> Fleet {
    let reconnect = Backoff::full_jitter(ms(50), SECOND);
    Fleet::over(Box::new(Member(memory.clone(), member)), on_loss, (ms(50), reconnect), member)
}

fn limiter(memory: &Memory, member: u64, quota: Option<Quota>, on_loss: StoreLoss) -> Limiter {
    let builder = Limiter::builder().fleet(fleet(memory, member, on_loss));
    quota.into_iter().fold(builder, crate::LimiterBuilder::quota).build().unwrap()
}

/// When permits were committed, and how long each was waited for.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<(Instant, Duration)>>>);

impl Log {
    fn add(&self, asked: Instant) {
        let now = clock::now();
        self.0.lock().unwrap().push((now, now - asked));
    }

    fn between(&self, from: Instant, to: Instant) -> usize {
        self.0.lock().unwrap().iter().filter(|(at, _)| (from..to).contains(at)).count()
    }

    /// The most in any window that ends in a span.
    fn most(&self, window: Duration, from: Instant, to: Instant) -> usize {
        let mut all: Vec<Instant> = self.0.lock().unwrap().iter().map(|(at, _)| *at).collect();
        all.sort_unstable();
        let ends = all.iter().filter(|at| (from..to).contains(at));
        ends.map(|end| all.iter().filter(|at| **at <= *end && *end - **at <= window).count()).max().unwrap_or(0)
    }
}

/// So many calls at a time on one limiter, each as soon as it may.
fn drive(calls: &mut JoinSet<()>, limiter: &Limiter, workers: usize, until: Instant, log: &Log) {
    for _ in 0..workers {
        let (limiter, log) = (limiter.clone(), log.clone());
        calls.spawn(async move {
            while clock::now() < until {
                let asked = clock::now();
                // Refused at once, when it would come too late.
                let Ok(mut permit) = limiter.acquire(&Key::from("key"), 1, Some(until)).await else { return };
                permit.commit();
                log.add(asked);
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_is_never_exceeded_and_nearly_all_of_it_used() {
    for members in [1, 3, 12] {
        let (memory, log, began) = (Memory::new(ms(1)), Log::default(), clock::now());
        let mut calls = JoinSet::new();
        for member in 0..members {
            let limiter = limiter(&memory, member, Some(Quota::per_second(100)), StoreLoss::default());
            drive(&mut calls, &limiter, 8, began + 10 * SECOND, &log);
        }
        calls.join_all().await;
        let (from, to) = (began + 2 * SECOND, began + 10 * SECOND);
        assert!(log.most(SECOND, began, to) <= 100);
        let used = log.between(from, to);
        assert!(used >= 8 * 90, "{members} members: {used} of 800");
    }
}

#[tokio::test(start_paused = true)]
async fn round_trips_are_few() {
    let (memory, log, began) = (Memory::new(ms(1)), Log::default(), clock::now());
    let limiter = limiter(&memory, 0, Some(Quota::per_second(10_000)), StoreLoss::default());
    let mut calls = JoinSet::new();
    while clock::now() < began + 5 * SECOND {
        let (limiter, log) = (limiter.clone(), log.clone());
        calls.spawn(async move {
            let asked = clock::now();
            limiter.acquire(&Key::from("key"), 1, None).await.unwrap().commit();
            log.add(asked);
        });
        sleep(ms(3)).await;
    }
    calls.join_all().await;
    let (calls, exchanges) = (log.between(began, clock::now() + SECOND) as u64, memory.books().exchanges);
    assert!(exchanges * 10 <= calls, "{exchanges} for {calls}");
    let waited = log.0.lock().unwrap().iter().map(|(_, waited)| *waited).max();
    assert!(waited <= Some(ms(3)), "nobody waits for more than the store: {waited:?}");
}

/// The bound: the limit, and what was leased between a member's last reply and the loss.
#[tokio::test(start_paused = true)]
async fn an_outage_keeps_the_bound_and_ends() {
    for on_loss in [StoreLoss::LiveShare, StoreLoss::LocalShare(4)] {
        for forgets in [false, true] {
            let (memory, log, began) = (Memory::new(ms(1)), Log::default(), clock::now());
            let mut calls = JoinSet::new();
            for member in 0..4 {
                let limiter = limiter(&memory, member, Some(Quota::per_second(100)), on_loss);
                drive(&mut calls, &limiter, 8, began + 15 * SECOND, &log);
            }
            sleep(3 * SECOND).await;
            memory.books().down = true;
            sleep(5 * SECOND).await;
            memory.books().down = false;
            if forgets {
                memory.forget();
            }
            calls.join_all().await;
            let leased = 4 * 8;
            let most = log.most(SECOND, began, began + 15 * SECOND);
            assert!(most <= 100 + leased, "{on_loss:?} {forgets}: {most}");
            let alone = log.between(began + 5 * SECOND, began + 8 * SECOND);
            assert!(alone >= 3 * 80, "{on_loss:?}: {alone} of 300 while the store is away");
            // A window and a lease, and a second.
            let shared = log.between(began + 10_040 * ms(1), began + 15 * SECOND);
            assert!(shared >= 450 - 4, "{on_loss:?} {forgets}: {shared} of 496");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn closed_refuses_at_once_and_open_lets_all_out() {
    let (memory, key) = (Memory::new(ms(1)), Key::from("key"));
    let quota = Some(Quota::per_second(4));
    let closed = limiter(&memory, 1, quota.clone(), StoreLoss::Closed);
    let open = limiter(&memory, 2, quota, StoreLoss::Open);
    for limiter in [&closed, &open] {
        limiter.acquire(&key, 1, None).await.unwrap().commit();
    }
    memory.books().down = true;
    sleep(SECOND).await;
    let asked = clock::now();
    let refused: Refused = closed.acquire(&key, 1, None).await.unwrap_err();
    assert!(clock::now() - asked <= ms(51), "no longer than the timeout");
    assert!(refused.is_store_lost() && refused.retry_at().is_some());
    assert!(closed.try_acquire(&key, 1).unwrap_err().is_store_lost());
    open.acquire(&key, 1, None).await.unwrap().commit();
    for _ in 0..100 {
        open.try_acquire(&key, 1).unwrap().commit();
    }
    memory.books().down = false;
    sleep(2 * SECOND).await;
    closed.acquire(&key, 1, None).await.unwrap().commit();
    // What was sent meanwhile is booked.
    let late = open.acquire(&key, 1, Some(clock::now() + ms(400))).await;
    assert!(late.is_ok(), "a hundred were sent, but more than a window ago");
}

#[tokio::test(start_paused = true)]
async fn a_fleet_says_why_its_store_is_away() {
    let memory = Memory::new(ms(1));
    let fleet = fleet(&memory, 1, StoreLoss::Open);
    let limiter = Limiter::builder().quota(Quota::per_second(4)).fleet(fleet.clone()).build().unwrap();
    limiter.acquire(&Key::from("key"), 1, None).await.unwrap().commit();
    assert_eq!(fleet.why_lost(), None);
    memory.books().down = true;
    sleep(SECOND).await;
    limiter.acquire(&Key::from("key"), 1, None).await.unwrap().commit();
    assert_eq!(fleet.why_lost().unwrap(), "no answer within the timeout");
    sleep(2 * SECOND).await;
    assert_eq!(fleet.why_lost().unwrap(), "refused");
    memory.books().down = false;
    sleep(2 * SECOND).await;
    assert_eq!((fleet.why_lost(), fleet.is_lost()), (None, false));
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_one_is_known_to_all() {
    let (memory, key) = (Memory::new(ms(1)), Key::from("key"));
    for quota in [None, Some(Quota::per_second(100))] {
        memory.forget();
        let [one, two] = [1, 2].map(|member| limiter(&memory, member, quota.clone(), StoreLoss::default()));
        for limiter in [&one, &two] {
            limiter.acquire(&key, 1, None).await.unwrap().commit();
        }
        let until = clock::now() + 20 * SECOND;
        one.observe(&key, &Hints { retry_after: Some(20 * SECOND), ..Hints::default() });
        sleep(ms(140)).await;
        two.acquire(&key, 1, None).await.unwrap().commit();
        assert!(clock::now() >= until && clock::now() <= until + ms(300), "{:?}", clock::now() - until);
    }
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_one_was_told_binds_all() {
    let (memory, key, log, began) = (Memory::new(ms(1)), Key::from("key"), Log::default(), clock::now());
    let [one, two] = [1, 2].map(|member| limiter(&memory, member, None, StoreLoss::default()));
    let hint = QuotaHint { limit: Some(50.0), window: Some(SECOND), ..QuotaHint::default() };
    let mut permit = one.acquire(&key, 1, None).await.unwrap();
    permit.commit();
    permit.observe(&Hints { quotas: vec![hint], ..Hints::default() });
    sleep(ms(140)).await;
    let mut calls = JoinSet::new();
    for limiter in [&one, &two] {
        drive(&mut calls, limiter, 16, began + 6 * SECOND, &log);
    }
    calls.join_all().await;
    assert!(log.most(SECOND, began, began + 6 * SECOND) <= 49);
    let used = log.between(began + 2 * SECOND, began + 6 * SECOND);
    assert!(used >= 4 * 45, "{used} of 200");
    assert!(!two.snapshot(&key).unwrap().left.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_process_that_ends_costs_the_others_no_more_than_its_lease() {
    let (memory, log, began) = (Memory::new(ms(1)), Log::default(), clock::now());
    let mut survivors = JoinSet::new();
    let mut dying = JoinSet::new();
    for member in 0..4 {
        let limiter = limiter(&memory, member, Some(Quota::per_second(100)), StoreLoss::default());
        let calls = if member == 0 { &mut survivors } else { &mut dying };
        drive(calls, &limiter, 8, began + 8 * SECOND, &log);
    }
    sleep(3 * SECOND).await;
    dying.shutdown().await;
    survivors.join_all().await;
    let used = log.between(began + 5 * SECOND, began + 8 * SECOND);
    // The store in memory saves one unit while the window is full; the script saves what comes back during a lease.
    assert!(used >= 260, "{used} of 300 by the one that is left");
}

/// A permit that is held for long keeps its place under the limit: its lease is renewed.
#[tokio::test(start_paused = true)]
async fn what_is_held_for_long_counts_when_it_is_sent() {
    let (memory, key, log) = (Memory::new(ms(1)), Key::from("key"), Log::default());
    let limiter = limiter(&memory, 1, Some(Quota::per_second(20)), StoreLoss::default());
    let (began, mut held) = (clock::now(), Vec::new());
    for _ in 0..5 {
        held.push(limiter.acquire(&key, 1, None).await.unwrap());
    }
    let mut calls = JoinSet::new();
    drive(&mut calls, &limiter, 8, began + 6 * SECOND, &log);
    sleep(4 * SECOND).await;
    for mut permit in held {
        permit.commit();
        log.add(clock::now());
    }
    calls.join_all().await;
    let most = log.most(SECOND, began, began + 6 * SECOND);
    assert!(most <= 20, "{most}");
}

/// A lease that is renewed under a permit takes the place of the old one, here and in the store.
#[tokio::test(start_paused = true)]
async fn what_is_held_for_long_counts_once() {
    let (memory, key) = (Memory::new(ms(1)), Key::from("key"));
    let quota = Some(Quota::window(4, SECOND).burst(4));
    let [one, other] = [1, 2].map(|member| limiter(&memory, member, quota.clone(), StoreLoss::default()));
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(one.acquire(&key, 1, None).await.unwrap());
    }
    for _ in 0..2_000 {
        assert!(one.try_acquire(&key, 1).is_err(), "a fifth of four");
        sleep(ms(1)).await;
    }
    drop(held.split_off(2));
    sleep(2 * SECOND).await;
    for _ in 0..2 {
        let late = Some(clock::now() + 2 * SECOND);
        held.push(other.acquire(&key, 1, late).await.expect("two of four are free"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long_for_a_deadline_is_told_at_once() {
    let (memory, key) = (Memory::new(ms(1)), Key::from("key"));
    let limiter = limiter(&memory, 1, Some(Quota::per_second(10)), StoreLoss::default());
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let limiter = limiter.clone();
        calls.spawn(async move { limiter.acquire(&key, 1, None).await.unwrap().commit() });
    }
    sleep(ms(10)).await;
    let asked = clock::now();
    let refused = limiter.acquire(&key, 1, Some(asked + 2 * SECOND)).await.unwrap_err();
    assert!(refused.is_deadline() && clock::now() == asked && refused.retry_at() > Some(asked + 2 * SECOND));
    calls.join_all().await;
}

/// A lease counts from before it was asked for: of a store that is far away it lasts longer.
#[tokio::test(start_paused = true)]
async fn a_store_may_be_far_away() {
    let (memory, log, began) = (Memory::new(ms(25)), Log::default(), clock::now());
    let quota = Quota::window(20, ms(200));
    let limiter = limiter(&memory, 1, Some(quota), StoreLoss::default());
    let mut calls = JoinSet::new();
    drive(&mut calls, &limiter, 8, began + 5 * SECOND, &log);
    calls.join_all().await;
    assert!(log.most(ms(200), began, began + 5 * SECOND) <= 20);
    let used = log.between(began, began + 5 * SECOND);
    assert!(used >= 250, "{used} of 500");
}

/// What a server tells while the store is away is kept by this process alone until the store is back.
#[tokio::test(start_paused = true)]
async fn a_quota_that_is_told_in_an_outage_lets_calls_go_on() {
    for (on_loss, least, most) in [(StoreLoss::LiveShare, 85, 98), (StoreLoss::LocalShare(2), 42, 49)] {
        for windows in [[Some(SECOND), Some(SECOND)], [None, Some(SECOND)]] {
            let (memory, key, log, began) = (Memory::new(ms(1)), Key::from("key"), Log::default(), clock::now());
            let limiter = limiter(&memory, 1, None, on_loss);
            memory.books().down = true;
            for window in windows {
                let mut permit = limiter.acquire(&key, 1, Some(began + 5 * SECOND)).await.unwrap();
                permit.commit();
                let hint = QuotaHint { limit: Some(100.0), remaining: Some(99.0), window, ..QuotaHint::default() };
                permit.observe(&Hints { quotas: vec![hint], ..Hints::default() });
            }
            let until = began + 10 * SECOND;
            let mut calls = JoinSet::new();
            drive(&mut calls, &limiter, 8, until, &log);
            calls.join_all().await;
            assert!(log.most(SECOND, began, until) <= most, "{on_loss:?}");
            let sent = log.between(began, until);
            assert!(sent >= 9 * least, "{on_loss:?} {windows:?}: {sent} in 10 s");
        }
    }
}

/// The store had said when to ask again for a great cost; that holds for nothing smaller.
#[tokio::test(start_paused = true)]
async fn a_call_that_costs_much_and_has_gone_holds_nobody_up() {
    let (memory, key) = (Memory::new(ms(1)), Key::from("key"));
    let quota = Quota::window(20, 600 * SECOND).burst(20);
    let limiter = limiter(&memory, 1, Some(quota), StoreLoss::default());
    limiter.acquire(&key, 18, None).await.unwrap().commit();
    sleep(2 * SECOND).await;
    let late = clock::now() + 2 * SECOND;
    assert!(limiter.acquire(&key, 5, Some(late)).await.unwrap_err().is_deadline());
    let late = clock::now() + SECOND;
    limiter.acquire(&key, 1, Some(late)).await.unwrap().commit();
}

#[tokio::test]
async fn a_store_that_is_not_there_is_named_and_why() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Fleet::redis(format!("redis://me:secret@{closed}")).connect().await.unwrap_err();
    let said = std::error::Error::source(&error).unwrap().to_string();
    assert!(error.is_connect() && said.starts_with(&format!("the store redis://{closed}: ")), "{said}");
    assert!(!said.contains("I/O") && !said.contains("secret"), "{said}");
}
