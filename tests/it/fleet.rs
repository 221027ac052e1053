//! One limit for several fleets of one store, against a real redis-server.

use std::{sync::Arc, time::Duration};

use abide::{Key, Limiter, Quota, fleet::Fleet};
use tokio::{sync::Mutex, task::JoinSet, time::Instant};

use crate::support::{
    clock::{self, ms},
    redis::{Redis, skip},
};

/// Instants at which permits were committed.
type Starts = Arc<Mutex<Vec<Instant>>>;

async fn member(redis: &Redis, quota: Quota) -> Limiter {
    let fleet = Fleet::redis(redis.url()).connect().await.unwrap();
    Limiter::builder().quota(quota).fleet(fleet).build().unwrap()
}

/// So many calls at a time, each as soon as it may, until the end.
fn drive(calls: &mut JoinSet<()>, limiter: &Limiter, workers: usize, until: Instant, starts: &Starts) {
    for _ in 0..workers {
        let (limiter, starts) = (limiter.clone(), Arc::clone(starts));
        calls.spawn(async move {
            while clock::now() < until {
                let Ok(mut permit) = limiter.acquire(&Key::from("key"), 1, Some(until)).await else { return };
                permit.commit();
                starts.lock().await.push(clock::now());
            }
        });
    }
}

fn most_in(starts: &[Instant], window: Duration) -> usize {
    let mut first = 0;
    let mut most = 0;
    for (last, at) in starts.iter().enumerate() {
        while *at - starts[first] > window {
            first += 1;
        }
        most = most.max(last - first + 1);
    }
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn several_members_keep_one_window() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let starts = Starts::default();
    let (began, mut calls) = (clock::now(), JoinSet::new());
    for _ in 0..4 {
        let limiter = member(&redis, Quota::per_second(100)).await;
        drive(&mut calls, &limiter, 16, began + ms(5_000), &starts);
    }
    calls.join_all().await;
    let mut starts = starts.lock().await.clone();
    starts.sort_unstable();
    let steady = starts.iter().filter(|at| **at > began + ms(2_000)).count();
    println!("{} in 5 s, {} in the last 3 s, most in a second {}", starts.len(), steady, most_in(&starts, ms(1_000)));
    assert!(most_in(&starts, ms(1_000)) <= 100);
    assert!(steady >= 250, "{steady} of 300");
}
