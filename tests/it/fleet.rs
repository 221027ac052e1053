//! One limit for several fleets of one store, against a real redis-server: what they share.

use std::time::Duration;

use abide::{Key, Limiter, Quota, Unit, fleet::StoreLoss, headers::Hints};
use tokio::{task::JoinSet, time::Instant};

use crate::support::{
    clock::{self, ms},
    fleet::{SECOND, Starts, acquire, drive, fleet, key, limiter, member, told, until},
    redis::{Redis, skip},
    stalls::Stalls,
};

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

/// Of the same window too, in whatever order.
#[tokio::test(flavor = "multi_thread")]
async fn two_quotas_of_one_window_hold_both() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let stalls = Stalls::watch();
    let (many, few) = (Quota::window(100, SECOND), Quota::window(20, SECOND));
    let one = limiter(fleet(&redis), [many.clone(), few.clone(), few.clone()]).await;
    let other = limiter(fleet(&redis), [few.clone(), many, few]).await;
    let (starts, began, mut calls) = (Starts::default(), clock::now(), JoinSet::new());
    drive(&mut calls, &one, (4, 1), began + 4 * SECOND, &starts);
    drive(&mut calls, &other, (4, 1), began + 4 * SECOND, &starts);
    calls.join_all().await;
    let (most, all) = (starts.most(stalls.nearly(SECOND)), starts.units(began, began + 4 * SECOND));
    assert!(most <= 20, "{most} in a second");
    assert!(f64::from(all) >= 55.0 * stalls.least(1.0), "{all}");
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

/// What is held counts, however long that is.
#[tokio::test(flavor = "multi_thread")]
async fn permits_that_are_held_leave_nothing_to_others() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    // A store that is lost would let out shares.
    let one = || limiter(fleet(&redis).timeout(20 * SECOND), [Quota::window(4, SECOND).burst(4)]);
    let (one, other) = (one().await, one().await);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(acquire(&one, &key(), 20 * SECOND).await.unwrap());
    }
    // Two windows.
    for limiter in [&other, &one] {
        assert!(acquire(limiter, &key(), SECOND).await.unwrap_err().is_deadline());
    }
    drop(held.split_off(2));
    for _ in 0..2 {
        held.push(acquire(&other, &key(), 20 * SECOND).await.expect("two of four are free"));
    }
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
