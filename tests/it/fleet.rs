//! One limit for several fleets of one store, against a real redis-server: what they share, and what becomes of it when
//! the store, its memory, a runtime or a fleet goes.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use abide::{
    Client, Key, Limiter, LimiterBuilder, Permit, Quota, Refused, Unit,
    fleet::{Fleet, FleetBuilder, StoreLoss},
    headers::{Hints, QuotaHint},
    testing::{Algorithm, Server},
};
use tokio::{runtime, task::JoinSet, time::Instant};

use crate::support::{
    clock::{self, ms},
    is_long,
    redis::{Redis, skip},
    stalls::Stalls,
};

const SECOND: Duration = Duration::from_secs(1);

/// A store's answer may take so long on a machine that is busy.
const PATIENT: Duration = Duration::from_millis(500);

/// Instants at which permits were committed, and how many units.
#[derive(Clone, Debug, Default)]
struct Starts(Arc<Mutex<Vec<(Instant, u32)>>>);

impl Starts {
    fn commit(&self, permit: &mut Permit, units: u32) {
        permit.commit();
        self.0.lock().unwrap().push((clock::now(), units));
    }

    fn units(&self, from: Instant, to: Instant) -> u32 {
        self.0.lock().unwrap().iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, units)| units).sum()
    }

    /// The most units in any closed window.
    fn most(&self, window: Duration) -> u32 {
        let mut starts = self.0.lock().unwrap().clone();
        starts.sort_unstable();
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for (at, units) in &starts {
            sum += units;
            while *at - starts[first].0 > window {
                sum -= starts[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }
}

fn key() -> Key {
    Key::from("key")
}

fn fleet(redis: &Redis) -> FleetBuilder {
    Fleet::redis(redis.url()).timeout(PATIENT)
}

async fn limiter(fleet: FleetBuilder, quotas: impl IntoIterator<Item = Quota>) -> Limiter {
    let builder = Limiter::builder().fleet(fleet.connect().await.unwrap());
    quotas.into_iter().fold(builder, LimiterBuilder::quota).build().unwrap()
}

async fn member(redis: &Redis, quota: Quota) -> Limiter {
    limiter(fleet(redis), [quota]).await
}

/// So many calls at a time, each as soon as it may, until the end.
fn drive(calls: &mut JoinSet<()>, limiter: &Limiter, (workers, cost): (usize, u32), until: Instant, starts: &Starts) {
    for _ in 0..workers {
        let (limiter, starts) = (limiter.clone(), starts.clone());
        calls.spawn(async move {
            while clock::now() < until {
                match limiter.acquire(&key(), cost, Some(until)).await {
                    Ok(mut permit) => starts.commit(&mut permit, cost),
                    Err(_) => clock::sleep(ms(5)).await,
                }
            }
        });
    }
}

async fn acquire(limiter: &Limiter, key: &Key, patience: Duration) -> Result<Permit, Refused> {
    limiter.acquire(key, 1, Some(clock::now() + patience)).await
}

/// Waits until it is so.
async fn until(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = clock::now();
    while !is_so() {
        assert!(clock::now() < began + patience, "not within {patience:?}: {what}");
        clock::sleep(ms(2)).await;
    }
    clock::now() - began
}

/// Connections other than that which asks.
fn connections(redis: &Redis) -> usize {
    redis.cli(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() - 1
}

#[tokio::test(flavor = "multi_thread")]
async fn several_members_keep_one_window() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let stalls = Stalls::watch();
    let starts = Starts::default();
    let (began, mut calls) = (clock::now(), JoinSet::new());
    for _ in 0..4 {
        let limiter = member(&redis, Quota::per_second(100)).await;
        drive(&mut calls, &limiter, (16, 1), began + 5 * SECOND, &starts);
    }
    calls.join_all().await;
    let (most, steady) = (starts.most(stalls.nearly(SECOND)), starts.units(began + 2 * SECOND, began + 5 * SECOND));
    println!("most in a second {most}, {steady} of 300 in the last 3 s");
    assert!(most <= 100, "{most}");
    assert!(f64::from(steady) >= stalls.least(250.0), "{steady} of 300");
}

/// A call each 5 ms.
async fn be_busy(limiter: &Limiter, key: &Key, until: Instant) {
    while clock::now() < until {
        acquire(limiter, key, SECOND).await.unwrap().commit();
        clock::sleep(ms(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_of_one_holds_all() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let stalls = Stalls::watch();
    let quotas = [None, Some(Quota::per_second(100)), Some(Quota::bucket(50, SECOND).burst(10))];
    for quota in quotas {
        let (one, other) = (limiter(fleet(&redis), quota.clone()).await, limiter(fleet(&redis), quota.clone()).await);
        let key = Key::from(format!("{quota:?}"));
        // Both make calls: the one that is told last is busy.
        let told = clock::now() + ms(400);
        let mut last = None;
        let mut calls = JoinSet::new();
        {
            let one = one.clone();
            calls.spawn(async move {
                be_busy(&one, &key, told).await;
                let mut hints = Hints::default();
                hints.refused = true;
                hints.retry_after = Some(ms(1_500));
                one.observe(&key, &hints);
            });
        }
        let first_after = loop {
            let Ok(mut permit) = acquire(&other, &key, 4 * SECOND).await else { panic!("refused") };
            permit.commit();
            let now = clock::now();
            if now > told + SECOND {
                break now;
            }
            last = Some(now);
            clock::sleep(ms(2)).await;
        };
        calls.join_all().await;
        let (heard, held) = (last.unwrap().saturating_duration_since(told), first_after - told);
        println!("{quota:?}: the other stops after {heard:?} and goes on after {held:?}");
        // A lease and 100 ms, and what a busy machine adds.
        assert!(heard <= ms(200) + SECOND.mul_f64(0.1 / stalls.least(1.0)), "{heard:?}");
        assert!(held >= ms(1_490) && held < 4 * SECOND, "{held:?}");
    }
}

fn told(name: &str, limit: u32, window: Duration, remaining: u32) -> Hints {
    let (mut hints, mut quota) = (Hints::default(), QuotaHint::default());
    (quota.name, quota.limit, quota.window) = (Some(name.into()), Some(limit.into()), Some(window));
    (quota.remaining, quota.reset_after) = (Some(remaining.into()), Some(window));
    hints.quotas.push(quota);
    hints
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learned_quota_reaches_those_who_never_heard_it() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let stalls = Stalls::watch();
    let (one, other) = (limiter(fleet(&redis), None).await, limiter(fleet(&redis), None).await);
    let mut permit = acquire(&one, &key(), SECOND).await.unwrap();
    permit.commit();
    permit.observe(&told("day", 50, SECOND, 49));
    let quotas = |limiter: &Limiter| limiter.snapshot(&key()).map_or(0, |snapshot| snapshot.left.len());
    // It makes calls, and hears nothing of a server.
    let began = clock::now();
    while quotas(&other) == 0 {
        assert!(clock::now() < began + SECOND, "nothing is known");
        let _ = acquire(&one, &key(), SECOND).await.map(|mut permit| permit.commit());
        acquire(&other, &key(), SECOND).await.unwrap().commit();
        clock::sleep(ms(10)).await;
    }
    println!("known after {:?}", clock::now() - began);
    let (starts, from, mut calls) = (Starts::default(), clock::now(), JoinSet::new());
    drive(&mut calls, &other, (64, 1), from + 3 * SECOND, &starts);
    calls.join_all().await;
    let most = starts.most(stalls.nearly(SECOND));
    println!("most {most}, {} in 3 s", starts.units(from, from + 3 * SECOND));
    assert!(most <= 49, "{most}");
    assert!(f64::from(starts.units(from + SECOND, from + 3 * SECOND)) >= stalls.least(75.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_refuses_and_open_lets_out_while_the_store_is_away() {
    if skip() {
        return;
    }
    let mut redis = Redis::standalone().await;
    let quota = || Quota::per_second(20);
    let closed = limiter(fleet(&redis).on_store_loss(StoreLoss::Closed), [quota()]).await;
    let open = limiter(fleet(&redis).on_store_loss(StoreLoss::Open), [quota()]).await;
    for limiter in [&closed, &open] {
        acquire(limiter, &key(), SECOND).await.unwrap().commit();
    }
    redis.kill();
    let refused = loop {
        match acquire(&closed, &key(), 5 * SECOND).await {
            Ok(mut permit) => permit.commit(),
            Err(refused) => break refused,
        }
    };
    assert!(refused.is_store_lost() && !refused.is_never() && !refused.is_deadline(), "{refused}");
    // The next attempt to reach the store.
    assert!(refused.retry_at().unwrap() <= clock::now() + 2 * SECOND);
    assert!(closed.try_acquire(&key(), 1).unwrap_err().is_store_lost());
    let began = clock::now();
    for _ in 0..300 {
        acquire(&open, &key(), 5 * SECOND).await.unwrap().commit();
    }
    assert!(clock::now() - began < 3 * SECOND, "{:?} for 300", clock::now() - began);
    // What is asked for by the server still holds.
    open.pause(&key(), clock::now() + 3_600 * SECOND);
    assert!(acquire(&open, &key(), SECOND).await.unwrap_err().is_deadline());
    redis.start().await;
    let back = until("closed goes on", 10 * SECOND, || closed.try_acquire(&Key::from("new"), 1).is_ok()).await;
    println!("{back:?} after the store's return");
    // The pause that was told meanwhile reaches the others.
    until("the pause is told", 5 * SECOND, || {
        closed.snapshot(&key()).unwrap().paused_until.is_some() || {
            drop(closed.try_acquire(&key(), 1));
            false
        }
    })
    .await;
}

/// Nobody waits longer for a store than its timeout, whatever it does.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_holds_nobody_up() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let stalls = Stalls::watch();
    for on_loss in [StoreLoss::LiveShare, StoreLoss::LocalShare(1), StoreLoss::Open, StoreLoss::Closed] {
        let fleet = fleet(&redis).timeout(ms(200)).on_store_loss(on_loss);
        let limiter = limiter(fleet, [Quota::bucket(2_000, SECOND).burst(1_000)]).await;
        let key = Key::from(format!("{on_loss:?}"));
        let (mut slowest, mut refused) = (Duration::ZERO, 0);
        for call in 0..150 {
            match call {
                30 => redis.pause(),
                110 => redis.resume(),
                _ => {}
            }
            let asked = clock::now();
            match acquire(&limiter, &key, 20 * SECOND).await {
                Ok(mut permit) => permit.commit(),
                Err(_) => refused += 1,
            }
            slowest = slowest.max(clock::now() - asked);
            clock::sleep(ms(10)).await;
        }
        println!("{on_loss:?}: slowest {slowest:?}, {refused} refused");
        assert!(slowest < ms(220) + SECOND.mul_f64(0.1 / stalls.least(1.0)), "{on_loss:?}: {slowest:?}");
        assert_eq!(refused > 0, on_loss == StoreLoss::Closed, "{on_loss:?}: {refused} refused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limiters_outlive_the_runtime_of_their_fleet() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let stalls = Stalls::watch();
    for (on_loss, least) in [(StoreLoss::LiveShare, 40.0), (StoreLoss::LocalShare(2), 20.0), (StoreLoss::Open, 500.0)] {
        let url = redis.url();
        let (far, limiter) = tokio::task::spawn_blocking(move || {
            let far = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let fleet = Fleet::redis(url).timeout(PATIENT).on_store_loss(on_loss);
            let limiter = far.block_on(limiter(fleet, [Quota::bucket(100, SECOND).burst(20)]));
            (far, limiter)
        })
        .await
        .unwrap();
        acquire(&limiter, &key(), SECOND).await.unwrap().commit();
        // Some wait while it goes.
        let (starts, from, mut calls) = (Starts::default(), clock::now(), JoinSet::new());
        drive(&mut calls, &limiter, (32, 1), from + 2 * SECOND, &starts);
        clock::sleep(ms(300)).await;
        far.shutdown_background();
        calls.join_all().await;
        let after = starts.units(from + SECOND, from + 2 * SECOND);
        println!("{on_loss:?}: {after} in the second after");
        assert!(f64::from(after) >= stalls.least(least), "{on_loss:?}: {after}");
        assert!(on_loss == StoreLoss::Open || after <= 105, "{on_loss:?}: {after}");
    }
    until("connections are closed", 5 * SECOND, || connections(&redis) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_task_and_its_connection_end_with_the_last_user() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let near = runtime::Handle::current().metrics();
    let tasks = near.num_alive_tasks();
    let fleet = fleet(&redis).connect().await.unwrap();
    let limiter = Limiter::builder().quota(Quota::per_second(10)).fleet(fleet.clone()).build().unwrap();
    drop(fleet);
    // The limiter still uses it, …
    acquire(&limiter, &key(), SECOND).await.unwrap().commit();
    assert_eq!(connections(&redis), 1);
    let permit = acquire(&limiter, &key(), SECOND).await.unwrap();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(&key(), 10, None).await.map(drop) }
    });
    clock::sleep(ms(50)).await;
    waiting.abort();
    let _ = waiting.await;
    drop((limiter, permit));
    // … and then nobody.
    until("the connection is closed", 5 * SECOND, || connections(&redis) == 0).await;
    until("no task is left", 5 * SECOND, || near.num_alive_tasks() <= tasks).await;
    assert_eq!(redis.cli(&["GET", "none"]), "(nil)");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_credential_is_in_the_store() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let server = Server::builder().limit(Quota::per_second(50)).algorithm(Algorithm::SlidingLog).start().await.unwrap();
    let fleet = fleet(&redis).name("crawler").connect().await.unwrap();
    assert!(!format!("{fleet:?}").contains("s3cret"));
    let client = Client::builder().quota(Quota::per_second(40)).fleet(fleet).build().unwrap();
    for call in 0..20 {
        let call = client.get(format!("{}/s3cret-path?token=s3cret-query-{call}", server.url()));
        let call =
            call.bearer_auth("s3cret-bearer").header("x-api-key", "s3cret-key").header("cookie", "id=s3cret-cookie");
        assert!(call.send().await.unwrap().status().is_success());
    }
    let call = client.get(server.url()).key("s3cret-of-the-caller");
    assert!(call.send().await.unwrap().status().is_success());
    clock::sleep(ms(200)).await;
    let keys = redis.keys();
    assert_eq!(keys.len(), 4, "a state and members, of two keys: {keys:?}");
    for (name, _) in &keys {
        let value = match redis.cli(&["TYPE", name]).as_str() {
            "string" => redis.cli(&["GET", name]),
            _ => redis.cli(&["ZRANGE", name, "0", "-1"]),
        };
        assert!(!value.is_empty() && name.starts_with("crawler:"), "{name}: {value}");
        for text in [name, &value] {
            assert!(!text.contains("s3cret") && !text.contains("127.0.0.1"), "{name}: {value}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_limiters_with_two_quotas_on_one_key_keep_both() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let stalls = Stalls::watch();
    // Of different windows: each its own. Of one window: the stricter one may win, never more than the larger.
    let (minute, second) = (Quota::window(30, ms(2_000)), Quota::window(20, SECOND));
    let both = limiter(fleet(&redis), [minute, second.clone()]).await;
    let one = member(&redis, second).await;
    let (starts, of_both, began, mut calls) = (Starts::default(), Starts::default(), clock::now(), JoinSet::new());
    drive(&mut calls, &both, (4, 1), began + 5 * SECOND, &of_both);
    drive(&mut calls, &one, (4, 1), began + 5 * SECOND, &starts);
    calls.join_all().await;
    let own = of_both.most(stalls.nearly(2 * SECOND));
    starts.0.lock().unwrap().extend(of_both.0.lock().unwrap().iter());
    let (most, all) = (starts.most(stalls.nearly(SECOND)), starts.units(began, began + 5 * SECOND));
    println!("both {}, most in 2 s {own}; all {all}, most in 1 s {most}", of_both.units(began, began + 5 * SECOND));
    assert!(own <= 30 && most <= 20, "{own} {most}");
    let part = stalls.least(1.0);
    assert!(f64::from(all) >= 75.0 * part && f64::from(of_both.units(began, began + 5 * SECOND)) >= 15.0 * part);
}

#[tokio::test(flavor = "multi_thread")]
async fn costs_above_one_and_units_are_shared() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let stalls = Stalls::watch();
    let (starts, began, mut calls) = (Starts::default(), clock::now(), JoinSet::new());
    for cost in [1, 3, 7, 40] {
        let limiter = member(&redis, Quota::per_second(100)).await;
        drive(&mut calls, &limiter, (2, cost), began + 6 * SECOND, &starts);
    }
    calls.join_all().await;
    let (most, steady) = (starts.most(stalls.nearly(SECOND)), starts.units(began + 2 * SECOND, began + 6 * SECOND));
    let heavy = starts.0.lock().unwrap().iter().filter(|(_, units)| *units == 40).count();
    println!("most {most}, {steady} of 400, {heavy} of 40");
    assert!(most <= 100, "{most}");
    assert!(f64::from(steady) >= stalls.least(280.0), "{steady} of 400");
    assert!(heavy >= 1, "a heavy call starves");
    let never = member(&redis, Quota::per_second(100)).await.try_acquire(&key(), 101).unwrap_err();
    assert!(never.is_never());
    // Tokens and requests: both hold, of all processes.
    let quotas = || [Quota::per_second(1_000), Quota::window(500, SECOND).unit(Unit::Tokens)];
    let (starts, began, mut calls) = (Starts::default(), clock::now(), JoinSet::new());
    for _ in 0..3 {
        let (limiter, starts) = (limiter(fleet(&redis), quotas()).await, starts.clone());
        calls.spawn(async move {
            let (key, units) = (Key::from("tokens"), [(Unit::Requests, 1), (Unit::Tokens, 50)]);
            while let Ok(mut permit) = limiter.acquire_units(&key, &units, Some(began + 3 * SECOND)).await {
                starts.commit(&mut permit, 50);
            }
        });
    }
    calls.join_all().await;
    let (most, all) = (starts.most(stalls.nearly(SECOND)), starts.units(began, began + 3 * SECOND));
    println!("tokens: most {most}, {all} of 1500");
    assert!(most <= 500, "{most}");
    assert!(f64::from(all) >= stalls.least(1_000.0), "{all} of 1500");
}

#[tokio::test(flavor = "multi_thread")]
async fn settled_costs_are_the_fleets() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let quota = || Quota::window(100, 2 * SECOND);
    let (one, other) = (member(&redis, quota()).await, member(&redis, quota()).await);
    // Down: what was not used is the other's.
    let mut permit = one.acquire(&key(), 100, None).await.unwrap();
    permit.commit();
    permit.settle(10);
    drop(permit);
    let began = clock::now();
    let deadline = Some(began + ms(1_500));
    let mut permit = other.acquire(&key(), 60, deadline).await.expect("90 are free");
    println!("after {:?}", clock::now() - began);
    permit.commit();
    // Up: what was used more is nobody's.
    permit.settle(120);
    drop(permit);
    let refused = one.acquire(&key(), 50, Some(clock::now() + ms(900))).await;
    assert!(refused.is_err_and(|refused| refused.is_deadline()));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_tries_and_does_not_wait_is_served_next_time() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let stalls = Stalls::watch();
    let limiters = [member(&redis, Quota::per_second(50)).await, member(&redis, Quota::per_second(50)).await];
    let (starts, began) = (Starts::default(), clock::now());
    while clock::now() < began + 4 * SECOND {
        for limiter in &limiters {
            match limiter.try_acquire(&key(), 1) {
                Ok(mut permit) => starts.commit(&mut permit, 1),
                Err(refused) => assert!(!refused.is_never() && !refused.is_full(), "{refused}"),
            }
        }
        clock::sleep(ms(4)).await;
    }
    let (most, steady) = (starts.most(stalls.nearly(SECOND)), starts.units(began + SECOND, began + 4 * SECOND));
    println!("most {most}, {steady} of 150");
    assert!(most <= 50, "{most}");
    assert!(f64::from(steady) >= stalls.least(110.0), "{steady} of 150");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cost_above_the_share_waits_for_the_store() {
    if skip() {
        return;
    }
    let mut redis = Redis::standalone().await;
    let limiter = limiter(fleet(&redis).on_store_loss(StoreLoss::LocalShare(10)), [Quota::per_second(100)]).await;
    acquire(&limiter, &key(), SECOND).await.unwrap().commit();
    redis.kill();
    until("the loss is noticed", 5 * SECOND, || {
        limiter.try_acquire(&Key::from("other"), 11).is_err_and(|r| !r.is_never())
    })
    .await;
    clock::sleep(ms(300)).await;
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(&key(), 40, Some(clock::now() + 20 * SECOND)).await.map(|mut p| p.commit()) }
    });
    clock::sleep(ms(2_500)).await;
    assert!(!waiting.is_finished(), "40 of a share of 10");
    redis.start().await;
    let back = clock::now();
    waiting.await.unwrap().unwrap();
    println!("granted {:?} after the return", clock::now() - back);
    assert!(clock::now() - back < 5 * SECOND);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_keys_at_once() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let count = if is_long() { 5_000 } else { 1_000 };
    let quota = Quota::bucket(1, SECOND).burst(2);
    let limiter = limiter(fleet(&redis).timeout(10 * SECOND), [quota]).await;
    let (began, mut calls) = (clock::now(), JoinSet::new());
    for number in 0..count {
        let limiter = limiter.clone();
        calls.spawn(async move {
            acquire(&limiter, &Key::from(format!("{number}")), 30 * SECOND).await.map(|mut p| p.commit())
        });
    }
    let refused: Vec<Refused> = calls.join_all().await.into_iter().filter_map(Result::err).collect();
    assert!(refused.is_empty(), "{} after {:?}: {}", refused.len(), clock::now() - began, refused[0]);
    let (took, tracked) = (clock::now() - began, limiter.tracked_keys());
    let info = redis.cli(&["INFO", "commandstats"]);
    let script = info.lines().find(|line| line.contains("cmdstat_evalsha:")).unwrap_or_default();
    println!("{count} keys in {took:?}, {} in the store, {script}", redis.keys().len());
    assert!(tracked == count || took > SECOND, "{tracked}");
    // A lease, the refill of the burst, and what the sweep of keys adds: then nobody knows them any more.
    let gone = until("keys are forgotten", 30 * SECOND, || limiter.tracked_keys() == 0).await;
    println!("forgotten after {gone:?}");
    until("the store forgets them", 30 * SECOND, || redis.cli(&["DBSIZE"]) == "0").await;
}

/// What was not used goes back to the store; one that is gone for good keeps no key in memory.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_forgotten_while_the_store_is_away() {
    if skip() {
        return;
    }
    let mut redis = Redis::standalone().await;
    let quota = Quota::bucket(100, SECOND).burst(20);
    let limiter = limiter(fleet(&redis).on_store_loss(StoreLoss::LocalShare(1)), [quota]).await;
    let mut permits = Vec::new();
    for number in 0..4 {
        let mut permit = limiter.acquire(&Key::from(format!("{number}")), 10, None).await.unwrap();
        permit.commit();
        permits.push(permit);
    }
    // One before the loss, one after it.
    permits[0].settle(2);
    redis.kill();
    until("the loss is noticed", 5 * SECOND, || {
        let _ = limiter.try_acquire(&Key::from("0"), 1).map(|mut permit| permit.commit());
        limiter.try_acquire(&Key::from("other"), 1).is_ok()
    })
    .await;
    permits[1].settle(2);
    permits[2].settle(15);
    drop(permits);
    let gone = until("keys are forgotten", 30 * SECOND, || limiter.tracked_keys() == 0).await;
    println!("after {gone:?}");
}

/// The store loses its memory, and nobody tells: the next exchange does.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_forgets_costs_a_lease() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let stalls = Stalls::watch();
    let (starts, began, mut calls) = (Starts::default(), clock::now(), JoinSet::new());
    for _ in 0..4 {
        let limiter = member(&redis, Quota::per_second(100)).await;
        drive(&mut calls, &limiter, (16, 1), began + 7 * SECOND, &starts);
    }
    for at in [2_500, 4_500] {
        clock::sleep_until(began + ms(at)).await;
        redis.cli(&["FLUSHALL"]);
    }
    calls.join_all().await;
    let (most, all) = (starts.most(stalls.nearly(SECOND)), starts.units(began + SECOND, began + 7 * SECOND));
    println!("most {most}, {all} of 600");
    // The limit, and a lease of each that the store knew nothing of.
    assert!(most <= 100 + 4 * 8, "{most}");
    assert!(f64::from(all) >= stalls.least(400.0), "{all} of 600");
}

/// A store that is short of memory drops keys as it likes.
#[tokio::test(flavor = "multi_thread")]
async fn evictions_cost_a_lease() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let stalls = Stalls::watch();
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    let (starts, began, mut calls) = (Starts::default(), clock::now(), JoinSet::new());
    for _ in 0..3 {
        let limiter = member(&redis, Quota::per_second(100)).await;
        drive(&mut calls, &limiter, (8, 1), began + 5 * SECOND, &starts);
    }
    clock::sleep(ms(2_000)).await;
    // Below what it uses: all that can go goes, again and again; then writes are refused.
    redis.cli(&["CONFIG", "SET", "maxmemory", "1mb"]);
    clock::sleep(ms(500)).await;
    let evicted = redis.cli(&["INFO", "stats"]);
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    calls.join_all().await;
    let (most, after) = (starts.most(stalls.nearly(SECOND)), starts.units(began + ms(3_500), began + 5 * SECOND));
    let evicted = evicted.lines().find(|line| line.starts_with("evicted_keys")).unwrap_or_default().to_owned();
    println!("most {most}, {after} of 150 in the end, {evicted}");
    assert!(most <= 100 + 3 * 10, "{most}");
    assert!(f64::from(after) >= stalls.least(80.0), "{after} of 150");
}

/// What the store has noted lies an hour ahead of its clock now.
const AN_HOUR_BACK: &str = "
local hour, state = 3600000000, cmsgpack.unpack(redis.call('GET', KEYS[1]))
state.last = state.last + hour
for _, line in pairs(state.quotas) do
  line.at, line.heard, line.others_at = line.at + hour, line.heard + hour, line.others_at + hour
  for i = 1, #line.slices, 2 do line.slices[i] = line.slices[i] + hour end
end
redis.call('SET', KEYS[1], cmsgpack.pack(state), 'KEEPTTL')
local members = redis.call('ZRANGE', KEYS[2], 0, -1)
for _, member in ipairs(members) do redis.call('ZINCRBY', KEYS[2], hour, member) end
return #members";

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_goes_back_changes_nothing() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let stalls = Stalls::watch();
    let (starts, began, mut calls) = (Starts::default(), clock::now(), JoinSet::new());
    for _ in 0..3 {
        let limiter = member(&redis, Quota::per_second(100)).await;
        drive(&mut calls, &limiter, (8, 1), began + 6 * SECOND, &starts);
    }
    clock::sleep(ms(2_500)).await;
    let keys: Vec<String> = redis.keys().into_iter().map(|(key, _)| key).collect();
    let state = keys.iter().find(|key| !key.ends_with(":members")).unwrap();
    assert_eq!(redis.cli(&["EVAL", AN_HOUR_BACK, "2", state, &format!("{state}:members")]), "3");
    let back = clock::now();
    calls.join_all().await;
    let (most, after) = (starts.most(stalls.nearly(SECOND)), starts.units(back + ms(100), back + ms(3_100)));
    println!("most {most}, {after} of 300 after the step");
    assert!(most <= 100 + 8, "{most}");
    assert!(f64::from(after) >= stalls.least(240.0), "{after} of 300");
}

#[tokio::test(flavor = "multi_thread")]
async fn fleets_of_other_names_share_nothing() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let (one, other) = (fleet(&redis).name("one"), fleet(&redis).name("other"));
    for fleet in [one, other] {
        let limiter = limiter(fleet, [Quota::window(10, 60 * SECOND).burst(10)]).await;
        for _ in 0..10 {
            acquire(&limiter, &key(), 5 * SECOND).await.unwrap().commit();
        }
        assert!(acquire(&limiter, &key(), ms(200)).await.unwrap_err().is_deadline());
    }
}

/// What the store keeps of one key: bytes, of a busy window, of its members and of learned quotas.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_of_a_key_is_small() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let limiter = limiter(fleet(&redis), [Quota::window(1_000, SECOND)]).await;
    let until = clock::now() + ms(1_500);
    while clock::now() < until {
        acquire(&limiter, &key(), SECOND).await.unwrap().commit();
    }
    let keys = redis.keys();
    let state = &keys.iter().find(|(key, _)| !key.ends_with(":members")).unwrap().0;
    let bytes = |key: &str| redis.cli(&["MEMORY", "USAGE", key]).parse::<u32>().unwrap();
    let (busy, members) = (bytes(state), bytes(&format!("{state}:members")));
    for number in 0..100 {
        let mut permit = acquire(&limiter, &key(), SECOND).await.unwrap();
        permit.commit();
        permit.observe(&told(&format!("quota-{number}"), 1_000_000, 60 * SECOND, 999_000));
    }
    clock::sleep(ms(300)).await;
    acquire(&limiter, &key(), SECOND).await.unwrap().commit();
    clock::sleep(ms(300)).await;
    let learned = bytes(state);
    println!("{busy} bytes of a busy window, {members} of one member, {learned} with 100 learned quotas");
    assert!(busy < 2_000 && members < 300 && learned < 60_000);
    // A thousand processes, of which this one asks.
    let mut others = vec!["ZADD".to_owned(), format!("{state}:members")];
    let now: f64 = redis.cli(&["TIME"]).lines().next().unwrap().parse().unwrap();
    others.extend((0..1_000).flat_map(|number| [format!("{}", now * 1e6), format!("{number:032x}")]));
    redis.cli(&others.iter().map(String::as_str).collect::<Vec<_>>());
    redis.cli(&["CONFIG", "RESETSTAT"]);
    for _ in 0..20 {
        let _ = acquire(&limiter, &key(), ms(100)).await.map(|mut permit| permit.commit());
        clock::sleep(ms(20)).await;
    }
    let said = redis.cli(&["INFO", "commandstats"]);
    let script = said.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    println!("a thousand members: {} bytes, {script}", bytes(&format!("{state}:members")));
}

/// Limits at the ends of what can be said: as many as they let out at once, no panic, no error of the store.
#[tokio::test(flavor = "multi_thread")]
async fn extreme_quotas_are_shared_too() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let day = 86_400 * SECOND;
    let quotas = [
        (Quota::window(u32::MAX, day), 1_000, 500),
        (Quota::window(u32::MAX, ms(1)), 1_000, 500),
        (Quota::window(1, day), 3, 1),
        (Quota::window(4, 366 * day), 5, 1),
        (Quota::window(10, ms(1)), 4, 2),
        (Quota::window(u32::MAX, Duration::from_nanos(1)), 1_000, 500),
        (Quota::bucket(u32::MAX, day).burst(u32::MAX), 1_000, 500),
        (Quota::bucket(u32::MAX, Duration::from_nanos(1)).burst(u32::MAX), 1_000, 500),
        (Quota::bucket(1, day).burst(1), 3, 1),
        (Quota::bucket(1, 366 * day).burst(3), 4, 2),
        (Quota::bucket(1, ms(1)).burst(1), 100, 5),
    ];
    for (quota, asked, least) in quotas {
        let said = format!("{quota:?}");
        let (one, other) = (member(&redis, quota.clone()).await, member(&redis, quota).await);
        let (key, until) = (Key::from(said.clone()), clock::now() + ms(1_000));
        let mut calls = JoinSet::new();
        for number in 0..asked {
            let limiter = if number % 2 == 0 { one.clone() } else { other.clone() };
            calls.spawn(async move { limiter.acquire(&key, 1, Some(until)).await.map(|mut permit| permit.commit()) });
        }
        let granted = calls.join_all().await.into_iter().filter(Result::is_ok).count();
        println!("{said}: {granted} of {asked}");
        assert!(granted >= least, "{said}: {granted} of {asked}");
    }
    // A server may tell what nobody would configure.
    for (limit, window) in [(4, Duration::from_secs(1_000_000_000)), (u32::MAX, Duration::MAX), (7, ms(1))] {
        let (one, other) = (limiter(fleet(&redis), None).await, limiter(fleet(&redis), None).await);
        let key = Key::from(format!("{limit} {window:?}"));
        one.observe(&key, &told("far", limit, window, limit));
        let mut granted = 0;
        for limiter in [&one, &other, &one, &other] {
            if let Ok(mut permit) = acquire(limiter, &key, ms(700)).await {
                permit.commit();
                granted += 1;
            }
        }
        println!("{limit} per {window:?} told: {granted} of 4");
        assert!(granted >= 1);
    }
    // The script fails for nothing but that the store does not know it yet.
    let said = redis.cli(&["INFO", "commandstats"]);
    let failed = |command: &str| {
        said.lines()
            .find(|line| line.starts_with(command))
            .map_or("", |line| line.rsplit("failed_calls=").next().unwrap_or_default())
    };
    assert_eq!(failed("cmdstat_eval:"), "0");
    assert!(failed("cmdstat_evalsha:").parse::<u32>().unwrap() <= 64, "{said}");
    assert!(redis.keys().iter().all(|(_, ttl)| *ttl > 0), "{:?}", redis.keys());
}

/// Clocks of processes may differ as they like: nothing of the fleet and of the limits names the wall clock.
#[test]
fn a_fleet_reads_no_wall_clock() {
    for folder in ["src/fleet", "src/limit"] {
        for entry in std::fs::read_dir(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let names = ["SystemTime", "clock::wall", "UNIX_EPOCH"].iter().find(|name| text.contains(**name));
            assert!(names.is_none(), "{}: {names:?}", path.display());
        }
    }
}

/// A unit of a slow limit goes to who waits for it, however many others there are.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_limit_is_not_waited_for_in_vain() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let mut members = Vec::new();
    for _ in 0..6 {
        members.push(member(&redis, Quota::bucket(1, 4 * SECOND).burst(5)).await);
    }
    // All are seen, and none of them but one wants more.
    for limiter in &members[1..] {
        acquire(limiter, &key(), 5 * SECOND).await.unwrap().commit();
    }
    let asked = clock::now();
    acquire(&members[0], &key(), 20 * SECOND).await.unwrap().commit();
    println!("after {:?}", clock::now() - asked);
    // A unit's time, and 2 s.
    assert!(clock::now() - asked < 9 * SECOND);
    // What is saved is there, to the last unit, for two as for one.
    let quota = || Quota::bucket(1, 366 * 86_400 * SECOND).burst(3);
    let limiters = [member(&redis, quota()).await, member(&redis, quota()).await];
    for limiter in [&limiters[0], &limiters[1], &limiters[0]] {
        acquire(limiter, &Key::from("year"), 5 * SECOND).await.unwrap().commit();
    }
    assert!(acquire(&limiters[1], &Key::from("year"), SECOND).await.is_err());
}
