//! What answers teach, under paused time: limits that fall and rise, others, late answers, refusals, silence.

use std::time::Duration;

use abide::{
    Key, Limiter, Quota,
    headers::{Hints, QuotaHint},
};
use tokio::time::{Instant, advance};

fn key() -> Key {
    Key::from("k")
}

/// A contract that a server tells.
pub(crate) fn told(limit: f64, window: u64) -> Hints {
    let mut quota = QuotaHint::default();
    (quota.limit, quota.window) = (Some(limit), Some(Duration::from_secs(window)));
    let mut hints = Hints::default();
    hints.quotas.push(quota);
    hints
}

/// Sends as fast as it is let for a while; gives the instants.
async fn busy(limiter: &Limiter, span: Duration, mut answer: impl FnMut(usize) -> Hints) -> Vec<Duration> {
    let start = Instant::now();
    let mut sent = Vec::new();
    while let Ok(mut permit) = limiter.acquire(&key(), 1, Some(start + span)).await {
        permit.commit();
        sent.push(start.elapsed());
        permit.observe(&answer(sent.len()));
    }
    let rest = (start + span).saturating_duration_since(Instant::now());
    advance(rest).await;
    sent
}

fn most_in(sent: &[Duration], window: Duration) -> usize {
    let within = |i: usize| sent[i..].iter().take_while(|at| **at <= sent[i] + window).count();
    (0..sent.len()).map(within).max().unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn a_told_limit_is_kept_as_it_falls_and_rises() {
    let limiter = Limiter::default();
    let minute = Duration::from_secs(60);
    for (limit, most) in [(50.0, 49), (10.0, 10), (100.0, 98), (1.0, 1), (0.5, 1)] {
        let mut sent = busy(&limiter, minute, |_| told(limit, 1)).await;
        // The first answers tell; the window before them was another's.
        sent.retain(|at| *at > Duration::from_secs(3));
        assert!(most_in(&sent, Duration::from_secs(1)) <= most, "{limit}: {}", most_in(&sent, Duration::from_secs(1)));
        assert!(sent.len() as f64 >= 57.0 * 0.92 * limit - 1.0, "{limit}: {}", sent.len());
    }
}

#[tokio::test(start_paused = true)]
async fn headers_never_raise_a_configured_quota_and_learning_can_be_off() {
    for learn in [true, false] {
        let limiter = Limiter::builder().quota(Quota::per_second(5)).learn(learn).build().unwrap();
        let sent = busy(&limiter, Duration::from_secs(20), |_| told(1_000.0, 1)).await;
        assert!(most_in(&sent, Duration::from_secs(1)) <= 5);
        let lower = busy(&limiter, Duration::from_secs(20), |_| told(2.0, 1)).await;
        assert_eq!(most_in(&lower[5..], Duration::from_secs(1)), if learn { 2 } else { 5 });
    }
}

/// The use of others holds back for a window; a late answer from before changes nothing.
#[tokio::test(start_paused = true)]
async fn the_use_of_others_holds_back_and_late_answers_raise_nothing() {
    let limiter = Limiter::builder().headroom(0.0).build().unwrap();
    let left = |left: f64| {
        let mut hints = told(100.0, 10);
        hints.quotas[0].remaining = Some(left);
        hints
    };
    let mut late = limiter.acquire(&key(), 1, None).await.unwrap();
    late.commit();
    let mut second = limiter.acquire(&key(), 1, None).await.unwrap();
    second.commit();
    second.observe(&left(3.0));
    let before = limiter.snapshot(&key()).unwrap();
    late.observe(&left(99.0));
    assert_eq!(limiter.snapshot(&key()).unwrap().left, before.left);
    let sent = busy(&limiter, Duration::from_secs(1), |_| Hints::default()).await;
    assert!(sent.len() <= 3 + 10, "{}: what others used comes back over the window", sent.len());
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_refusals_cuts_once_and_silence_forgets() {
    let limiter = Limiter::default();
    let mut permits = Vec::new();
    limiter.observe(&key(), &Hints::default());
    for _ in 0..50 {
        let mut permit = limiter.acquire(&key(), 1, None).await.unwrap();
        permit.commit();
        permits.push(permit);
    }
    advance(Duration::from_millis(100)).await;
    let mut refused = Hints::default();
    refused.refused = true;
    for permit in &mut permits[..20] {
        permit.observe(&Hints::default());
    }
    for permit in &mut permits[20..] {
        permit.observe(&refused);
    }
    permits.clear();
    // 0.7 of the 21 accepted in the last second.
    let sent = busy(&limiter, Duration::from_secs(10), |_| Hints::default()).await;
    let rate = sent.len() as f64 / 10.0;
    assert!((12.0..=20.0).contains(&rate), "{rate}");
    advance(Duration::from_secs(3_700)).await;
    assert_eq!(limiter.tracked_keys(), 0);
}

/// A cost above what a learned rate lets out at once was refused as never possible.
#[tokio::test(start_paused = true)]
async fn a_heavy_cost_waits_for_a_learned_rate() {
    let limiter = Limiter::default();
    let mut refused = Hints::default();
    refused.refused = true;
    limiter.observe(&key(), &refused);
    assert!(limiter.acquire(&key(), 5, None).await.is_ok());
    let counted = Limiter::default();
    let mut quota = QuotaHint::default();
    (quota.limit, quota.remaining, quota.reset_after) = (Some(100.0), Some(8.0), Some(Duration::from_secs(10)));
    let mut hints = Hints::default();
    hints.quotas.push(quota);
    counted.observe(&key(), &hints);
    assert!(counted.acquire(&key(), 5, None).await.is_ok());
}

/// The trio without a window: what is left is never overspent, and the quota is named once.
#[tokio::test(start_paused = true)]
async fn a_counter_is_spent_within_what_is_left() {
    let limiter = Limiter::default();
    let start = Instant::now();
    let (mut window, mut used, mut over) = (0, 0, 0);
    busy(&limiter, Duration::from_secs(120), |_| {
        let elapsed = start.elapsed().as_secs();
        if elapsed / 10 != window {
            (window, used) = (elapsed / 10, 0);
        }
        used += 1;
        over += u32::from(used > 50);
        let mut quota = QuotaHint::default();
        quota.limit = Some(50.0);
        quota.remaining = Some(50.0 - f64::from(used.min(50)));
        quota.reset_after = Some(Duration::from_secs(10 - elapsed % 10));
        let mut hints = Hints::default();
        hints.quotas.push(quota);
        hints
    })
    .await;
    assert!(over == 0, "{over}");
    assert_eq!(limiter.snapshot(&key()).unwrap().left.len(), 1);
}
