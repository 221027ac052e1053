//! A server of a store is killed and another one takes its place: the bound of an outage holds, then limits are shared.

use abide::{Key, Limiter, Quota, fleet::Fleet};
use tokio::task::JoinSet;

use crate::support::{
    clock::{self, ms},
    fleet::{PATIENT, SECOND, Starts, until},
    redis::{Redis, skip},
    stalls::Stalls,
};

/// Of each key, in any second.
const LIMIT: u32 = 50;

const MEMBERS: usize = 3;

/// Members of a fleet at work on some keys, each as fast as it may, until this is dropped.
struct Members {
    fleets: Vec<Fleet>,
    starts: Vec<Starts>,
    _calls: JoinSet<()>,
}

impl Members {
    async fn start(redis: &Redis, keys: usize) -> Self {
        let (mut fleets, mut calls) = (Vec::new(), JoinSet::new());
        let starts: Vec<Starts> = (0..keys).map(|_| Starts::default()).collect();
        for _ in 0..MEMBERS {
            let fleet = Fleet::redis(redis.url()).timeout(PATIENT).connect().await.unwrap();
            let limiter = Limiter::builder().fleet(fleet.clone()).quota(Quota::per_second(LIMIT)).build().unwrap();
            fleets.push(fleet);
            for (number, starts) in starts.iter().enumerate() {
                for _ in 0..2 {
                    calls.spawn(work(limiter.clone(), Key::from(format!("key {number}")), starts.clone()));
                }
            }
        }
        Self { fleets, starts, _calls: calls }
    }

    fn are_lost(&self) -> bool {
        self.fleets.iter().all(Fleet::is_lost)
    }

    fn are_back(&self) -> bool {
        !self.fleets.iter().any(Fleet::is_lost)
    }
}

async fn work(limiter: Limiter, key: Key, starts: Starts) {
    loop {
        match limiter.acquire(&key, 1, Some(clock::now() + SECOND)).await {
            Ok(mut permit) => starts.commit(&mut permit, 1),
            Err(_) => clock::sleep(ms(5)).await,
        }
    }
}

/// The first server is killed; `is_replaced` tells that another one has its place.
async fn fails_over(mut redis: Redis, keys: usize, is_replaced: impl Fn(&Redis) -> bool) {
    let (members, stalls) = (Members::start(&redis, keys).await, Stalls::watch());
    clock::sleep(3 * SECOND).await;
    redis.kill_one(0);
    let killed = clock::now();
    until("the loss is noticed", 20 * SECOND, || members.are_lost()).await;
    let lost = clock::now();
    until("another takes its place", 60 * SECOND, || is_replaced(&redis)).await;
    let replaced = clock::now();
    until("the limits are shared", 30 * SECOND, || members.are_back()).await;
    let back = clock::now();
    println!("lost after {:?}, replaced after {:?}, back after {:?}", lost - killed, replaced - killed, back - killed);
    // A window and a lease, and a second; and three.
    let mut lost_again = false;
    while clock::now() < back + ms(5_040) {
        lost_again |= !members.are_back();
        clock::sleep(ms(20)).await;
    }
    let part = stalls.least(1.0);
    for (number, starts) in members.starts.iter().enumerate() {
        let most = starts.most(stalls.nearly(SECOND));
        let rate = |from, to| f64::from(starts.units(from, to)) / (to - from).as_secs_f64() / f64::from(LIMIT);
        let (alone, shared) = (rate(lost + SECOND, replaced), rate(back + ms(2_040), back + ms(5_040)));
        let after = starts.most_from(stalls.nearly(SECOND), back + ms(2_040));
        println!("key {number}: most {most}, {after} after; {alone:.2} of the limit while away, {shared:.2} after");
        // What was leased: twice the units of a lease, and a unit for the next call of each.
        assert!(most <= LIMIT + 2 * 2 + u32::try_from(MEMBERS).unwrap(), "key {number}: {most} in a window");
        // On a machine that is too busy it is an outage more.
        assert!(after <= LIMIT || lost_again, "key {number}: {after} in a window when the limits are shared");
        assert!(
            alone >= 0.5 * part || replaced < lost + 2 * SECOND,
            "key {number}: {alone:.2} of the limit while the store is away"
        );
        assert!(shared >= 0.7 * part, "key {number}: {shared:.2} of the limit when it is back");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_the_place_of_a_master() {
    if skip() {
        return;
    }
    let redis = Redis::sentinel_with_replica().await;
    fails_over(redis, 1, |redis| redis.cli_at(1, &["ROLE"]).starts_with("master")).await;
}

/// The keys of the node that is killed, and those of the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_the_place_of_a_node() {
    if skip() {
        return;
    }
    let redis = Redis::cluster_with_replica().await;
    let is_whole = |redis: &Redis, number| redis.cli_at(number, &["CLUSTER", "INFO"]).contains("cluster_state:ok");
    fails_over(redis, 6, |redis| {
        redis.cli_at(3, &["ROLE"]).starts_with("master") && (1..4).all(|number| is_whole(redis, number))
    })
    .await;
}
