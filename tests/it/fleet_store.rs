//! What a fleet keeps in its store, a real redis-server, and what becomes of it when the store, its memory, a runtime or
//! a fleet goes.

use std::time::Duration;

use abide::{
    Client, Key, Limiter, Quota, Refused,
    fleet::{Fleet, StoreLoss},
    testing::{Algorithm, Server},
};
use tokio::{runtime, task::JoinSet};

use crate::support::{
    clock::{self, ms},
    fleet::{PATIENT, SECOND, Starts, acquire, connections, drive, fleet, key, limiter, member, told, until},
    is_long,
    redis::{Redis, skip},
    stalls::Stalls,
};

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
        acquire(&limiter, &key(), 10 * SECOND).await.unwrap().commit();
    }
    let keys = redis.keys();
    let state = &keys.iter().find(|(key, _)| !key.ends_with(":members")).unwrap().0;
    let bytes = |key: &str| redis.cli(&["MEMORY", "USAGE", key]).parse::<u32>().unwrap();
    let (busy, members) = (bytes(state), bytes(&format!("{state}:members")));
    for number in 0..100 {
        let mut permit = acquire(&limiter, &key(), 10 * SECOND).await.unwrap();
        permit.commit();
        permit.observe(&told(&format!("quota-{number}"), 1_000_000, 60 * SECOND, 999_000));
    }
    clock::sleep(ms(300)).await;
    acquire(&limiter, &key(), 10 * SECOND).await.unwrap().commit();
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
