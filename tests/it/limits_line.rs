//! The line of one key and the map of keys: who is woken, what goes back, and that threads break nothing.

use std::{future::Future, task::Poll, time::Duration};

use abide::{Key, Limiter, Quota};
use futures_util::{
    FutureExt,
    future::poll_immediate,
    stream::{FuturesUnordered, StreamExt},
};
use tokio::time::{Instant, advance, timeout};

use super::limits_learning::told;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn key() -> Key {
    Key::from("k")
}

/// Two were granted a slot in turn while the executor stood still. The first, polled late, was told to wait for a wake
/// that nobody owed it, and its place went to the second.
#[tokio::test(start_paused = true)]
async fn a_lapsed_waiter_that_is_polled_late_keeps_its_place_and_its_wakes() {
    let limiter = Limiter::builder().max_in_flight(1).learn(false).build().unwrap();
    let mut first = limiter.acquire(&key(), 1, None).await.unwrap();
    first.commit();
    let mut stuck = Box::pin(limiter.acquire(&key(), 1, None));
    let mut next = Box::pin(limiter.acquire(&key(), 1, None));
    assert!(poll_immediate(&mut stuck).await.is_none() && poll_immediate(&mut next).await.is_none());
    drop(first);
    advance(Duration::from_millis(60)).await;
    let mut permit = poll_immediate(&mut stuck).await.expect("it kept its place").unwrap();
    permit.commit();
    drop(permit);
    assert!(timeout(Duration::from_secs(1), next).await.is_ok());
}

/// A waiter heavier than a limit that fell stood at the head of the line for ever, and all behind it.
#[tokio::test(start_paused = true)]
async fn a_limit_that_falls_below_a_waiters_cost_refuses_it_and_lets_the_line_on() {
    let limiter = Limiter::builder().quota(Quota::per_second(100)).build().unwrap();
    limiter.observe(&key(), &told(50.0, 1));
    limiter.acquire(&key(), 40, None).await.unwrap().commit();
    let heavy = tokio::spawn(limiter.acquire(&key(), 40, None));
    let light = tokio::spawn(limiter.acquire(&key(), 1, None));
    tokio::task::yield_now().await;
    limiter.observe(&key(), &told(10.0, 1));
    assert!(heavy.await.unwrap().unwrap_err().is_never());
    let light = timeout(Duration::from_secs(10), light).await.expect("the line goes on");
    assert!(light.unwrap().is_ok());
}

/// A limit that fell and rose again before the heavy waiter looked: it stands in its place as before.
#[tokio::test(start_paused = true)]
async fn a_limit_that_falls_and_rises_again_loses_nobody() {
    let limiter = Limiter::builder().quota(Quota::per_second(100)).build().unwrap();
    limiter.observe(&key(), &told(50.0, 1));
    limiter.acquire(&key(), 40, None).await.unwrap().commit();
    let mut heavy = Box::pin(limiter.acquire(&key(), 40, None));
    assert!(poll_immediate(&mut heavy).await.is_none());
    limiter.observe(&key(), &told(10.0, 1));
    limiter.observe(&key(), &told(50.0, 1));
    assert!(timeout(Duration::from_secs(10), heavy).await.expect("not lost").is_ok());
}

/// What was granted and not yet collected when a pause came went out in the midst of it.
#[tokio::test(start_paused = true)]
async fn a_pause_takes_back_what_nobody_has_collected() {
    let limiter = Limiter::builder().quota(Quota::bucket(10, Duration::from_secs(1)).burst(1)).build().unwrap();
    let start = Instant::now();
    limiter.acquire(&key(), 1, None).await.unwrap().commit();
    let mut wait = Box::pin(limiter.acquire(&key(), 1, None));
    assert!(poll_immediate(&mut wait).await.is_none());
    advance(Duration::from_millis(100)).await;
    assert_eq!(limiter.snapshot(&key()).unwrap().waiting, 0, "granted");
    limiter.pause(&key(), start + Duration::from_secs(2));
    wait.await.unwrap().commit();
    assert_eq!(start.elapsed(), Duration::from_secs(2));
}

/// Those in line without a deadline learned of a pause too long for them only when their timers fired.
#[tokio::test(start_paused = true)]
async fn a_pause_too_long_for_those_in_line_refuses_them_at_once() {
    let limiter = Limiter::builder().max_in_flight(1).learn(false).build().unwrap();
    let start = Instant::now();
    let mut first = limiter.acquire(&key(), 1, None).await.unwrap();
    first.commit();
    let waiting = tokio::spawn(limiter.acquire(&key(), 1, None));
    tokio::task::yield_now().await;
    limiter.pause(&key(), start + Duration::from_secs(3_600));
    let refused = waiting.await.unwrap().unwrap_err();
    assert!(refused.is_paused() && start.elapsed() == Duration::ZERO);
}

/// A cost that was corrected late gave units back that the bucket had long refilled: twice its burst at once.
#[tokio::test(start_paused = true)]
async fn a_late_correction_gives_back_only_what_the_bucket_had_room_for() {
    let limiter = Limiter::builder().quota(Quota::bucket(10, Duration::from_secs(1)).burst(10)).build().unwrap();
    let mut first = limiter.acquire(&key(), 10, None).await.unwrap();
    first.commit();
    advance(Duration::from_secs(1)).await;
    limiter.acquire(&key(), 10, None).await.unwrap().commit();
    first.settle(0);
    assert!(limiter.try_acquire(&key(), 1).is_err());
    // In time it comes back in full.
    advance(Duration::from_secs(1)).await;
    let mut second = limiter.acquire(&key(), 10, None).await.unwrap();
    second.commit();
    second.settle(4);
    assert_eq!(limiter.snapshot(&key()).unwrap().left[0].1, 6);
}

/// Polled by hand or not, dropped anywhere: the pending poll of one who is first has a timer.
#[tokio::test(start_paused = true)]
async fn the_seventeenth_is_woken_into_the_group() {
    let limiter = Limiter::builder().quota(Quota::bucket(10, Duration::from_secs(1)).burst(1)).build().unwrap();
    let start = Instant::now();
    limiter.acquire(&key(), 1, None).await.unwrap().commit();
    // Twenty stand before it and are polled once; then sixteen of them leave.
    let mut ahead: Vec<_> = (0..20).map(|_| Box::pin(limiter.acquire(&key(), 1, None))).collect();
    for wait in &mut ahead {
        assert!(poll_immediate(wait).await.is_none());
    }
    let last = tokio::spawn(limiter.acquire(&key(), 1, None));
    tokio::task::yield_now().await;
    ahead.truncate(4);
    drop(ahead);
    last.await.unwrap().unwrap().commit();
    assert_eq!(start.elapsed(), Duration::from_millis(100));
}

/// Each of the ways in which room comes early wakes who waits for it.
#[tokio::test(start_paused = true)]
async fn a_raise_a_correction_and_a_freed_slot_wake() {
    let limiter = Limiter::builder().quota(Quota::bucket(1, DAY).burst(5)).max_in_flight(2).build().unwrap();
    let mut first = limiter.acquire(&key(), 5, None).await.unwrap();
    first.commit();
    let corrected = tokio::spawn(limiter.acquire(&key(), 1, None));
    tokio::task::yield_now().await;
    first.settle(3);
    let mut second = timeout(Duration::from_secs(1), corrected).await.unwrap().unwrap().unwrap();
    second.commit();
    let freed = tokio::spawn(limiter.acquire(&key(), 1, None));
    tokio::task::yield_now().await;
    assert!(!freed.is_finished());
    drop(second);
    assert!(timeout(Duration::from_secs(1), freed).await.unwrap().unwrap().is_ok());
    let learning = Limiter::default();
    learning.observe(&key(), &told(1.0, 3_600));
    learning.acquire(&key(), 1, None).await.unwrap().commit();
    let raised = tokio::spawn(learning.acquire(&key(), 1, None));
    tokio::task::yield_now().await;
    learning.observe(&key(), &told(100.0, 3_600));
    assert!(timeout(Duration::from_secs(60), raised).await.unwrap().unwrap().is_ok());
}

/// A future that is dropped at its n-th poll.
async fn dropped_after<F: Future + Unpin>(polls: usize, mut future: F) {
    let mut count = 0;
    std::future::poll_fn(|cx| {
        if count == polls {
            return Poll::Ready(());
        }
        count += 1;
        future.poll_unpin(cx).map(drop)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_probe_dropped_at_any_poll_passes_on() {
    for polls in 0..5 {
        let limiter = Limiter::builder().quota(Quota::bucket(1_000, Duration::from_secs(1))).build().unwrap();
        let start = Instant::now();
        limiter.pause(&key(), start + Duration::from_secs(1));
        let mut probe = Box::pin(limiter.acquire(&key(), 1, None));
        assert!(poll_immediate(&mut probe).await.is_none());
        let next = tokio::spawn(limiter.acquire(&key(), 1, None));
        tokio::task::yield_now().await;
        dropped_after(polls, probe).await;
        next.await.unwrap().unwrap().commit();
        assert!(start.elapsed() <= Duration::from_millis(1_051), "{polls}: {:?}", start.elapsed());
    }
}

/// Most that was certainly within one window: each commit's instant lies between the two clock readings around it.
fn most_within(mut sent: Vec<(std::time::Instant, std::time::Instant)>, window: Duration) -> usize {
    sent.sort();
    let within = |(i, (first, _)): (usize, &(std::time::Instant, _))| {
        let end = *first + window;
        sent[i..].iter().take_while(|(before, _)| *before <= end).filter(|(_, after)| *after <= end).count()
    };
    sent.iter().enumerate().map(within).max().unwrap_or(0)
}

/// Many threads wait, give up, give back and send on one key.
#[tokio::test(flavor = "multi_thread", worker_threads = 32)]
async fn a_storm_of_threads_breaks_no_window_and_loses_nothing() {
    let window = Duration::from_millis(250);
    let limiter = Limiter::builder().quota(Quota::window(200, window)).max_in_flight(40).build().unwrap();
    let tasks: Vec<_> = (0..64).map(|task| tokio::spawn(a_task_of_the_storm(limiter.clone(), task))).collect();
    let mut sent = Vec::new();
    for task in tasks {
        sent.extend(timeout(Duration::from_secs(60), task).await.expect("nobody starves").unwrap());
    }
    assert!(sent.len() > 400, "{}", sent.len());
    let most = most_within(sent, window);
    assert!(most <= 200, "{most} in a window");
    let snapshot = limiter.snapshot(&key()).unwrap();
    assert_eq!((snapshot.waiting, snapshot.in_flight), (0, 0));
}

/// Gives the clock before and after each commit.
async fn a_task_of_the_storm(limiter: Limiter, task: u64) -> Vec<(std::time::Instant, std::time::Instant)> {
    let mut sent = Vec::new();
    for turn in 0..12u64 {
        let patience = if (task + turn).is_multiple_of(5) { 3 } else { 60_000 };
        let wait = limiter.acquire(&key(), 1, None);
        let Ok(granted) = timeout(Duration::from_millis(patience), wait).await else { continue };
        let mut permit = granted.unwrap();
        if (task + turn).is_multiple_of(7) {
            continue;
        }
        tokio::task::yield_now().await;
        let before = std::time::Instant::now();
        permit.commit();
        sent.push((before, std::time::Instant::now()));
        tokio::task::yield_now().await;
    }
    sent
}

#[tokio::test(start_paused = true)]
async fn a_long_line_comes_out_in_exact_order() {
    const LINE: u32 = 20_000;
    let quota = Quota::bucket(1_000, Duration::from_secs(1)).burst(1);
    let limiter = Limiter::builder().quota(quota).max_waiting(LINE as usize).build().unwrap();
    let start = Instant::now();
    let line: FuturesUnordered<_> = (0..LINE)
        .map(|place| {
            let wait = limiter.acquire(&key(), 1, None);
            tokio::spawn(async move {
                wait.await.unwrap().commit();
                (start.elapsed(), place)
            })
        })
        .collect();
    let mut out: Vec<_> = line.map(Result::unwrap).collect().await;
    out.sort_by_key(|(_, place)| *place);
    assert!(out.is_sorted());
    let last = out[LINE as usize - 1].0;
    assert!(last <= Duration::from_millis(LINE.into()) + Duration::from_millis(50), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hostile_key_space_is_bounded_and_keeps_half_spent_days() {
    let limiter = Limiter::builder().quota(Quota::per_day(4)).max_keys(500).build().unwrap();
    let mine: Vec<Key> = (0..100).map(|i| Key::from(format!("mine{i}"))).collect();
    for key in &mine {
        limiter.try_acquire(key, 1).unwrap().commit();
    }
    let mut refused = 0;
    for i in 0..20_000u32 {
        // Looked at, and given back: nothing of it matters.
        refused += u32::from(limiter.try_acquire(&Key::from(format!("k{i}")), 1).is_err());
        if i % 100 == 0 {
            advance(Duration::from_secs(1)).await;
        }
    }
    assert!(limiter.tracked_keys() <= 500);
    assert!(refused < 1_000, "{refused}");
    advance(Duration::from_secs(60)).await;
    assert_eq!(limiter.tracked_keys(), 100, "only those of which something is spent");
    advance(Duration::from_secs(6 * 3_600)).await;
    for key in &mine {
        limiter.try_acquire(key, 3).unwrap().commit();
        assert!(limiter.acquire(key, 1, Some(Instant::now() + Duration::from_secs(3_600))).await.is_err());
    }
}
