//! The limiter through its public face, under paused time.

use std::{future::Future, task::Poll, time::Duration};

use abide::{Key, Limiter, Permit, Quota, Refused};
use futures_util::future::poll_immediate;
use tokio::time::{Instant, advance, sleep};

const SECOND: Duration = Duration::from_secs(1);

fn limiter(quota: Quota) -> Limiter {
    Limiter::builder().quota(quota).build().unwrap()
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn key() -> Key {
    Key::from("k")
}

/// Waits, commits at the grant, and gives the time of it.
async fn send(limiter: Limiter, start: Instant) -> Duration {
    let mut permit = limiter.acquire(&key(), 1, None).await.unwrap();
    permit.commit();
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn first_come_first_granted_at_exact_times() {
    let limiter = limiter(Quota::bucket(10, SECOND).burst(1));
    let start = Instant::now();
    let sends: Vec<_> = (0..40).map(|_| tokio::spawn(send(limiter.clone(), start))).collect();
    for (i, sent) in sends.into_iter().enumerate() {
        assert_eq!(sent.await.unwrap(), ms(100 * i as u64));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_permit_and_a_dropped_waiter_give_everything_back() {
    let limiter = limiter(Quota::bucket(1, SECOND).burst(1));
    let start = Instant::now();
    let first = limiter.acquire(&key(), 1, None).await.unwrap();
    let mut waiting: Vec<_> = (0..6).map(|_| Box::pin(limiter.acquire(&key(), 1, None))).collect();
    for waiter in &mut waiting {
        assert!(poll_immediate(waiter).await.is_none());
    }
    drop(first);
    drop(waiting);
    assert_eq!(send(limiter.clone(), start).await, ms(0));
    assert_eq!(send(limiter, start).await, SECOND);
}

/// Polled so late that its grant lapsed by that very poll, while the slot went to the next: it was in no line any more,
/// and nobody woke it before its deadline.
#[tokio::test(start_paused = true)]
async fn a_waiter_polled_after_its_grant_lapsed_stands_in_its_place() {
    for late in [49, 50, 51, 60, 200] {
        let limiter = Limiter::builder().max_in_flight(1).learn(false).build().unwrap();
        let mut holder = limiter.try_acquire(&key(), 1).unwrap();
        holder.commit();
        let [mut first, mut second] = [(); 2].map(|()| Box::pin(limiter.acquire(&key(), 1, None)));
        assert!(poll_immediate(&mut first).await.is_none() && poll_immediate(&mut second).await.is_none());
        drop(holder);
        advance(ms(late)).await;
        // As tasks: nothing but a wake or its own timer polls them.
        let first = tokio::spawn(async { drop(first.await.unwrap()) });
        let second = tokio::spawn(async { drop(second.await.unwrap()) });
        sleep(SECOND).await;
        assert!(first.is_finished() && second.is_finished(), "polled {late} ms after the grant");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_depends_on_another_being_polled() {
    let limiter = limiter(Quota::bucket(10, SECOND).burst(1));
    let start = Instant::now();
    send(limiter.clone(), start).await;
    let mut stuck: Vec<_> = (0..3).map(|_| Box::pin(limiter.acquire(&key(), 1, None))).collect();
    for waiter in &mut stuck {
        assert!(poll_immediate(waiter).await.is_none());
    }
    // Each of the three is granted in its turn, and after 50 ms uncollected the grant goes on to the next.
    let sent = send(limiter.clone(), start).await;
    assert!(sent <= ms(400), "{sent:?}");
    // One of those that lapsed is polled again and stands before newcomers.
    let late = tokio::spawn(send(limiter.clone(), start));
    tokio::task::yield_now().await;
    let mut permit = stuck.remove(0).await.unwrap();
    permit.commit();
    let first = start.elapsed();
    drop(stuck);
    assert!(first < late.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_cannot_be_met_is_refused_at_once() {
    let limiter = limiter(Quota::bucket(1, SECOND).burst(1));
    let start = Instant::now();
    send(limiter.clone(), start).await;
    let refused = limiter.acquire(&key(), 1, Some(start + ms(999))).await.unwrap_err();
    assert!(refused.is_deadline());
    assert_eq!(refused.retry_at(), Some(start + SECOND));
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(limiter.acquire(&key(), 1, Some(start + SECOND + ms(1))).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_can_never_fit_is_refused_at_once() {
    let limiter = limiter(Quota::per_second(10));
    assert!(limiter.acquire(&key(), 11, None).await.unwrap_err().is_never());
    assert!(limiter.try_acquire(&key(), 11).unwrap_err().is_never());
    assert!(limiter.acquire(&key(), 10, None).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_heavy_waiter_is_not_starved() {
    let limiter = limiter(Quota::bucket(10, SECOND).burst(5));
    let start = Instant::now();
    drop_all(&limiter, 5).await;
    let heavy = tokio::spawn({
        let limiter = limiter.clone();
        async move {
            limiter.acquire(&key(), 5, None).await.unwrap().commit();
            start.elapsed()
        }
    });
    tokio::task::yield_now().await;
    let light: Vec<_> = (0..3).map(|_| tokio::spawn(send(limiter.clone(), start))).collect();
    assert_eq!(heavy.await.unwrap(), ms(500));
    for (i, light) in light.into_iter().enumerate() {
        assert_eq!(light.await.unwrap(), ms(600 + 100 * i as u64));
    }
}

async fn drop_all(limiter: &Limiter, cost: u32) {
    limiter.acquire(&key(), cost, None).await.unwrap().commit();
}

#[tokio::test(start_paused = true)]
async fn several_quotas_are_taken_all_or_none() {
    let limiter = Limiter::builder()
        .quota(Quota::bucket(100, SECOND).burst(100))
        .quota(Quota::bucket(2, SECOND * 60).burst(2))
        .build()
        .unwrap();
    let start = Instant::now();
    send(limiter.clone(), start).await;
    send(limiter.clone(), start).await;
    let refused = limiter.try_acquire(&key(), 1).unwrap_err();
    assert_eq!(refused.retry_at(), Some(start + SECOND * 30));
    assert_eq!(limiter.snapshot(&key()).unwrap().left[0].1, 98);
    assert_eq!(send(limiter, start).await, SECOND * 30);
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_all_and_lets_them_out_at_the_pace() {
    let limiter = limiter(Quota::bucket(10, SECOND).burst(5));
    let start = Instant::now();
    limiter.pause(&key(), start + SECOND);
    limiter.pause(&key(), start + ms(10));
    let sends: Vec<_> = (0..5).map(|_| tokio::spawn(answered(limiter.clone(), start))).collect();
    let mut times = Vec::new();
    for sent in sends {
        times.push(sent.await.unwrap());
    }
    assert_eq!(times, [1000, 1100, 1200, 1300, 1400].map(ms));
}

/// As [`send`], with an answer at once.
async fn answered(limiter: Limiter, start: Instant) -> Duration {
    let mut permit = limiter.acquire(&key(), 1, None).await.unwrap();
    permit.commit();
    permit.observe(&abide::headers::Hints::default());
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn the_probe_of_a_pause_goes_alone() {
    let limiter = limiter(Quota::bucket(1000, SECOND).burst(50));
    let start = Instant::now();
    limiter.pause(&key(), start + SECOND);
    let mut probe = limiter.acquire(&key(), 1, None).await.unwrap();
    probe.commit();
    assert_eq!(start.elapsed(), SECOND);
    let next = tokio::spawn(send(limiter.clone(), start));
    sleep(ms(100)).await;
    assert!(!next.is_finished());
    probe.observe(&abide::headers::Hints::default());
    assert_eq!(next.await.unwrap(), ms(1100));
}

#[tokio::test(start_paused = true)]
async fn a_probe_without_an_answer_holds_others_for_a_quarter_second() {
    let limiter = limiter(Quota::bucket(1000, SECOND).burst(50));
    let start = Instant::now();
    limiter.pause(&key(), start + SECOND);
    let mut probe = limiter.acquire(&key(), 1, None).await.unwrap();
    probe.commit();
    assert_eq!(send(limiter.clone(), start).await, ms(1250));
}

#[tokio::test(start_paused = true)]
async fn a_pause_longer_than_ten_minutes_refuses_with_its_end() {
    let limiter = limiter(Quota::per_second(10));
    let start = Instant::now();
    let waiting = limiter.acquire(&key(), 1, Some(start + SECOND * 5));
    limiter.pause(&key(), start + SECOND * 601);
    let refused = limiter.acquire(&key(), 1, None).await.unwrap_err();
    assert!(refused.is_paused());
    assert_eq!(refused.retry_at(), Some(start + SECOND * 601));
    assert!(waiting.await.unwrap_err().is_deadline());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_pause_refuses_at_once_those_who_cannot_wait_it_out() {
    let limiter = limiter(Quota::bucket(1, SECOND).burst(1));
    let start = Instant::now();
    send(limiter.clone(), start).await;
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(&key(), 1, Some(start + SECOND * 5)).await.map(drop) }
    });
    sleep(ms(100)).await;
    limiter.pause(&key(), start + SECOND * 30);
    let refused = waiting.await.unwrap().unwrap_err();
    assert!(refused.is_deadline());
    assert_eq!(refused.retry_at(), Some(start + SECOND * 30));
    assert_eq!(start.elapsed(), ms(100));
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_held_until_the_permit_is_dropped() {
    let limiter = Limiter::builder().max_in_flight(2).learn(false).build().unwrap();
    let start = Instant::now();
    let mut held: Vec<Permit> = Vec::new();
    for _ in 0..2 {
        let mut permit = limiter.acquire(&key(), 1, None).await.unwrap();
        permit.commit();
        held.push(permit);
    }
    let third = tokio::spawn(send(limiter.clone(), start));
    sleep(SECOND).await;
    assert!(!third.is_finished());
    held.pop();
    assert_eq!(third.await.unwrap(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_key_starts_eight_at_once_and_doubles() {
    let limiter = Limiter::default();
    let start = Instant::now();
    let sends: Vec<_> = (0..30).map(|_| tokio::spawn(send(limiter.clone(), start))).collect();
    let mut times = Vec::new();
    for sent in sends {
        times.push(sent.await.unwrap().as_millis());
    }
    assert_eq!(times[..8], [0; 8]);
    assert_eq!(times[8..16], [100; 8]);
    assert_eq!(times[16..30], [200; 14]);
}

#[tokio::test(start_paused = true)]
async fn more_waiters_than_allowed_are_refused_as_full() {
    let limiter = Limiter::builder().quota(Quota::bucket(1, SECOND).burst(1)).max_waiting(3).build().unwrap();
    let start = Instant::now();
    send(limiter.clone(), start).await;
    let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(send(limiter.clone(), start))).collect();
    tokio::task::yield_now().await;
    let refused = limiter.acquire(&key(), 1, None).await.unwrap_err();
    assert!(refused.is_full());
    assert_eq!(refused.retry_at(), Some(start + SECOND * 4));
    drop(waiting);
}

#[tokio::test(start_paused = true)]
async fn idle_keys_leave() {
    let limiter = limiter(Quota::bucket(10, SECOND).burst(1));
    for i in 0..5_000 {
        limiter.try_acquire(&Key::from(format!("k{i}")), 1).unwrap().commit();
    }
    assert_eq!(limiter.tracked_keys(), 5_000);
    advance(SECOND * 60).await;
    assert_eq!(limiter.tracked_keys(), 0);
}

#[tokio::test(start_paused = true)]
async fn keys_that_matter_are_not_pushed_out() {
    let limiter = Limiter::builder().quota(Quota::per_day(2)).max_keys(10).build().unwrap();
    for i in 0..10 {
        limiter.try_acquire(&Key::from(format!("k{i}")), 1).unwrap().commit();
    }
    advance(SECOND * 60).await;
    assert!(limiter.try_acquire(&Key::from("new"), 1).unwrap_err().is_full());
}

#[tokio::test(start_paused = true)]
async fn dropped_at_every_poll_leaves_nothing_behind() {
    for polls in 0..6 {
        let limiter = limiter(Quota::bucket(10, SECOND).burst(1));
        let start = Instant::now();
        send(limiter.clone(), start).await;
        let ahead = tokio::spawn(send(limiter.clone(), start));
        tokio::task::yield_now().await;
        let mut dropped = Box::pin(limiter.acquire(&key(), 1, None));
        let mut count = 0;
        let _: Option<Result<Permit, Refused>> = std::future::poll_fn(|cx| {
            if count == polls {
                return Poll::Ready(None);
            }
            count += 1;
            dropped.as_mut().poll(cx).map(Some)
        })
        .await;
        drop(dropped);
        ahead.await.unwrap();
        advance(SECOND).await;
        let snapshot = limiter.snapshot(&key()).unwrap();
        assert_eq!((snapshot.waiting, snapshot.in_flight, snapshot.left[0].1), (0, 0, 1), "after {polls} polls");
    }
}

/// Wakes cost CPU: a waiter is polled when it joins, when it comes near, and when it is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_polls_a_grant() {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static POLLS: AtomicU64 = AtomicU64::new(0);
    let limiter = limiter(Quota::bucket(2000, SECOND).burst(1));
    let sends: Vec<_> = (0..2000)
        .map(|_| {
            let mut wait = Box::pin(limiter.acquire(&key(), 1, None));
            tokio::spawn(async move {
                let granted = std::future::poll_fn(|cx| {
                    POLLS.fetch_add(1, Relaxed);
                    wait.as_mut().poll(cx)
                });
                granted.await.unwrap().commit();
            })
        })
        .collect();
    for sent in sends {
        sent.await.unwrap();
    }
    let polls = POLLS.load(Relaxed);
    assert!(polls <= 2000 * 5, "{polls} polls for 2,000 grants");
}
