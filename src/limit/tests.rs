//! The limiter as drivers use it, with routes; what servers may say at worst; keys that come and go under threads.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::Method;
use proptest::prelude::*;
use tokio::time::{Instant, advance};

use super::{
    Acquire, Ask, Config, Costs, Key, Limiter, Permit, Quota, Route, Unit,
    gate::MAX_PAUSE,
    keyed::{Cell, Keyed, Origin},
    learn::Rules,
    meter::Meter,
    pause::Ramp,
    scope::{Scope, Turn, Want, Why},
    tick::{Epoch, Tick},
};
use crate::{
    clock,
    headers::{Hints, QuotaHint, QuotaScope},
};

const SECOND: Duration = Duration::from_secs(1);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn key() -> Key {
    Key::from("k")
}

fn route(path: &str) -> Route {
    Route::of(&Method::GET, path)
}

fn admit(limiter: &Limiter, path: &str, deadline: Option<Instant>) -> Acquire {
    let units = &[(Unit::Requests, 1)];
    limiter.admit(&Ask { key: &key(), route: Some(route(path)), units, deadline, max_pause: MAX_PAUSE })
}

/// A quota of a route: `remaining` of `limit` in `window`.
fn bucket(name: &str, limit: f64, remaining: Option<f64>, window: Duration) -> Hints {
    let quota = QuotaHint {
        name: Some(name.to_owned()),
        limit: Some(limit),
        remaining,
        window: Some(window),
        scope: QuotaScope::Route,
        ..QuotaHint::default()
    };
    Hints { quotas: vec![quota], ..Hints::default() }
}

/// Sends on a route and is told.
async fn send(limiter: &Limiter, path: &str, hints: &Hints) -> Duration {
    let start = clock::now();
    let mut permit = admit(limiter, path, None).await.unwrap();
    permit.commit();
    permit.observe(hints);
    clock::now() - start
}

fn poll(wait: &mut std::pin::Pin<Box<Acquire>>) -> Option<Result<Permit, super::Refused>> {
    match Future::poll(wait.as_mut(), &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(turn) => Some(turn),
        Poll::Pending => None,
    }
}

/// Held and in flight at the quotas of a route.
fn at_route(limiter: &Limiter, path: &str) -> (u32, u32) {
    let (path, now) = (route(path), limiter.now());
    let slots = limiter.with(&key(), now, |state, _| {
        let group = state.group_of(Some(path), now)?;
        state.group(group).map(|group| (group.scope.slots.held, group.scope.slots.in_flight))
    });
    slots.and_then(|(_, slots)| slots).unwrap()
}

#[tokio::test(start_paused = true)]
async fn routes_of_one_bucket_share_it_and_others_go_free() {
    let limiter = Limiter::default();
    let told = bucket("abcd", 4.0, None, SECOND * 10);
    send(&limiter, "/channels/1/messages", &told).await;
    send(&limiter, "/channels/1/pins", &told).await;
    send(&limiter, "/guilds", &Hints::default()).await;
    advance(SECOND * 20).await;
    let start = clock::now();
    for path in ["/channels/1/messages", "/channels/1/pins", "/channels/2/messages", "/channels/2/pins"] {
        send(&limiter, path, &told).await;
    }
    let mut waits = Box::pin(admit(&limiter, "/channels/3/pins", None));
    assert!(poll(&mut waits).is_none(), "the bucket is spent, by both");
    assert_eq!(send(&limiter, "/guilds", &Hints::default()).await, Duration::ZERO);
    waits.await.unwrap().commit();
    assert!(clock::now() - start >= SECOND * 10, "{:?}", clock::now() - start);
}

/// All methods of a Riot key shared one bucket, as if they bore one bucket's name.
#[tokio::test(start_paused = true)]
async fn each_method_of_riots_family_has_its_own_quota() {
    let limiter = Limiter::default();
    let told = bucket("method", 1.0, None, SECOND * 10);
    send(&limiter, "/summoner", &told).await;
    assert_eq!(send(&limiter, "/match", &told).await, Duration::ZERO);
    assert!(send(&limiter, "/summoner", &told).await >= SECOND * 10);
}

#[tokio::test(start_paused = true)]
async fn a_spent_route_pauses_its_routes_and_anything_else_the_key() {
    let limiter = Limiter::default();
    let told = bucket("abcd", 100.0, Some(50.0), SECOND);
    send(&limiter, "/a", &told).await;
    send(&limiter, "/b", &Hints::default()).await;
    let spent = Hints { retry_after: Some(SECOND * 5), refused: true, ..bucket("abcd", 100.0, Some(0.0), SECOND) };
    send(&limiter, "/a", &spent).await;
    assert_eq!(send(&limiter, "/b", &Hints::default()).await, Duration::ZERO);
    assert!(limiter.snapshot(&key()).unwrap().paused_until.is_none());
    assert_eq!(send(&limiter, "/a", &told).await, SECOND * 5);
    let whole = Hints { retry_after: Some(SECOND * 5), refused: true, ..Hints::default() };
    send(&limiter, "/b", &whole).await;
    assert_eq!(send(&limiter, "/c", &Hints::default()).await, SECOND * 5);
}

/// One slot at the key, taken; a call through with its route stands in the key's line.
async fn standing_at_the_key(deadline: Option<Duration>) -> (Limiter, Permit, std::pin::Pin<Box<Acquire>>) {
    let limiter = Limiter::builder().max_in_flight(1).build().unwrap();
    send(&limiter, "/a", &bucket("abcd", 10.0, None, SECOND)).await;
    let mut other = admit(&limiter, "/b", None).await.unwrap();
    other.commit();
    advance(SECOND * 2).await;
    let mut wait = Box::pin(admit(&limiter, "/a", deadline.map(|span| clock::now() + span)));
    assert!(poll(&mut wait).is_none());
    assert_eq!(at_route(&limiter, "/a"), (1, 0));
    (limiter, other, wait)
}

#[tokio::test(start_paused = true)]
async fn what_is_held_at_the_route_stays_while_the_call_stands_at_the_key() {
    let (limiter, other, mut wait) = standing_at_the_key(None).await;
    advance(SECOND * 60).await;
    assert_eq!(at_route(&limiter, "/a"), (1, 0), "it does not lapse");
    drop(other);
    let mut permit = poll(&mut wait).unwrap().unwrap();
    permit.commit();
    assert_eq!(at_route(&limiter, "/a"), (0, 1));
    drop(permit);
    assert_eq!(at_route(&limiter, "/a"), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_held_at_the_route_goes_back_on_drop_and_on_refusal() {
    let (limiter, _other, wait) = standing_at_the_key(None).await;
    drop(wait);
    assert_eq!(at_route(&limiter, "/a"), (0, 0));
    let (limiter, _other, mut wait) = standing_at_the_key(Some(SECOND)).await;
    advance(SECOND).await;
    assert!(poll(&mut wait).unwrap().unwrap_err().is_deadline());
    assert_eq!(at_route(&limiter, "/a"), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn dropped_at_every_poll_of_both_stages_leaves_nothing_behind() {
    for polls in 0..8 {
        let limiter = Limiter::builder().quota(Quota::bucket(10, SECOND).burst(1)).build().unwrap();
        let told = bucket("abcd", 2.0, None, ms(400));
        for _ in 0..3 {
            send(&limiter, "/a", &told).await;
        }
        let mut wait = Box::pin(admit(&limiter, "/a", None));
        for step in 0..polls {
            let Some(granted) = poll(&mut wait) else {
                advance(ms([70, 30][step % 2])).await;
                continue;
            };
            drop(granted);
            break;
        }
        drop(wait);
        assert_eq!(at_route(&limiter, "/a"), (0, 0), "after {polls} polls");
        let snapshot = limiter.snapshot(&key()).unwrap();
        assert_eq!((snapshot.waiting, snapshot.in_flight), (0, 0), "after {polls} polls");
        assert!(send(&limiter, "/a", &told).await <= ms(900));
        advance(SECOND * 60 * 60 * 2).await;
        assert_eq!(limiter.tracked_keys(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_of_a_route_passes_on_however_it_ends() {
    for ending in 0..4 {
        let limiter = Limiter::default();
        let told = bucket("abcd", 1_000.0, None, SECOND);
        send(&limiter, "/a", &told).await;
        advance(SECOND).await;
        let spent = Hints { retry_after: Some(SECOND), refused: true, ..bucket("abcd", 1_000.0, Some(0.0), SECOND) };
        send(&limiter, "/a", &spent).await;
        let mut probe = admit(&limiter, "/a", None).await.unwrap();
        let start = clock::now();
        let next = tokio::spawn(admit(&limiter, "/a", None));
        tokio::task::yield_now().await;
        match ending {
            0 => probe.commit(),
            1 => drop(probe),
            2 => {
                probe.commit();
                drop(probe);
            }
            _ => {
                probe.commit();
                probe.observe(&told);
            }
        }
        next.await.unwrap().unwrap().commit();
        let most = if ending == 0 { ms(250) } else { ms(20) };
        assert!(clock::now() - start <= most, "{ending}: {:?}", clock::now() - start);
    }
}

/// What a broken or hostile server may tell.
fn number() -> impl Strategy<Value = Option<f64>> {
    let odd = [0.0, 0.5, 1.0, 3.0, 1e9, 4e9, 1e18, 1e308, 1e-300, -1.0, f64::NAN, f64::INFINITY];
    proptest::option::weighted(0.8, proptest::sample::select(odd.to_vec()))
}

fn span() -> impl Strategy<Value = Option<Duration>> {
    let odd = [
        Duration::ZERO,
        Duration::from_nanos(1),
        ms(300),
        SECOND,
        Duration::from_secs(1_000_000_000),
        Duration::from_secs(u64::MAX - 1),
        Duration::MAX,
    ];
    proptest::option::weighted(0.8, proptest::sample::select(odd.to_vec()))
}

fn odd_hints() -> impl Strategy<Value = Hints> {
    let quota =
        (number(), number(), span(), span(), 0u32..6).prop_map(|(limit, remaining, reset_after, window, name)| {
            let name = (name > 0).then(|| format!("n{name}"));
            let unit =
                if name.as_deref() == Some("n5") { Unit::Other("concurrent-requests".into()) } else { Unit::Requests };
            QuotaHint { name, limit, remaining, reset_after, window, unit, ..QuotaHint::default() }
        });
    (proptest::collection::vec(quota, 0..4), span(), any::<bool>()).prop_map(|(quotas, retry_after, refused)| Hints {
        retry_after,
        refused,
        quotas,
        ..Hints::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing a server says panics, overflows, or raises what is configured.
    #[test]
    fn nothing_a_server_says_breaks_anything(
        steps in proptest::collection::vec((0u64..20_000_000_000, odd_hints(), 1u32..4), 1..60),
    ) {
        let config = Arc::new(config(vec![Quota::window(5, SECOND)], 10));
        let cell = Arc::new(Cell::new(key(), &config, Tick::default()));
        let (mut now, mut sent) = (Tick::default(), Vec::new());
        for (dt, hints, cost) in steps {
            now = now.plus(dt);
            cell.with(|state, wakes| {
                let want = want(cost);
                let mut order = 0;
                if let Turn::Granted { probe } = state.scope.try_now(&want, now, wakes) {
                    order = state.scope.commit(&want.costs, now);
                    sent.push((now.nanos(), cost));
                    probe.into_iter().for_each(|probe| state.scope.probe_back(probe));
                    state.scope.free_slot();
                }
                let origin = Origin { route: None, order, group: None, sent: now, now };
                state.observe(&hints, &origin, config.rules, wakes);
            });
            let window: u32 = sent.iter().filter(|(at, _)| *at + 1_000_000_000 >= now.nanos()).map(|(_, n)| n).sum();
            prop_assert!(window <= 5);
        }
    }

    /// A clock that stands or steps back changes nothing.
    #[test]
    fn a_repeated_or_backward_now_changes_nothing(
        steps in proptest::collection::vec((0u64..2_000_000_000, odd_hints(), 0u64..5_000_000_000), 1..20),
    ) {
        let config = Arc::new(config(vec![Quota::window(5, SECOND), Quota::bucket(2, SECOND)], 10));
        let cell = Arc::new(Cell::new(key(), &config, Tick::default()));
        let mut now = Tick::default();
        for (dt, hints, back) in steps {
            now = now.plus(dt);
            let (once, twice) = cell.with(|state, wakes| {
                let origin = Origin { route: None, order: state.scope.orders(), group: None, sent: now, now };
                state.observe(&hints, &origin, config.rules, wakes);
                if let Turn::Granted { .. } = state.scope.try_now(&want(1), now, wakes) {
                    state.scope.commit(&want(1).costs, now);
                    state.scope.free_slot();
                }
                state.scope.pump(now, wakes);
                let once = format!("{:?}", state.scope);
                state.scope.pump(now, wakes);
                state.scope.pump(Tick::from_nanos(now.nanos().saturating_sub(back)), wakes);
                (once, format!("{:?}", state.scope))
            });
            prop_assert_eq!(once, twice);
        }
    }
}

fn config(quotas: Vec<Quota>, max_keys: usize) -> Config {
    Config {
        quotas,
        max_in_flight: u32::MAX,
        max_keys,
        max_waiting: 10,
        rules: Rules { headroom: 0.02, learn: true },
        epoch: Epoch::new(clock::now()),
        hub: None,
    }
}

fn want(cost: u32) -> Want {
    Want { costs: Costs::requests(cost), deadline: Tick::NEVER, max_pause: u64::MAX, most_waiting: 10 }
}

/// Threads use keys while another evicts all that rest: no budget is doubled by a key that leaves and comes back.
#[test]
fn a_key_that_leaves_as_it_is_used_never_doubles_its_budget() {
    const STEP: u64 = 300_000_000;
    let (keyed, config) = (Arc::new(Keyed::default()), Arc::new(config(vec![Quota::per_second(8)], 4)));
    // Whoever acts holds the present instant still.
    let (clock, done) = (Arc::new(RwLock::new(0u64)), Arc::new(AtomicBool::new(false)));
    let turns = Arc::new(AtomicU64::new(0));
    let keys: Vec<Key> = (0..4).map(|i| Key::from(format!("k{i}"))).collect();
    let users = [0, 1, 2].map(|user| {
        let (keyed, config, keys) = (Arc::clone(&keyed), Arc::clone(&config), keys.clone());
        let (clock, done, turns) = (Arc::clone(&clock), Arc::clone(&done), Arc::clone(&turns));
        std::thread::spawn(move || {
            let mut sent: BTreeMap<(usize, u64), u64> = BTreeMap::new();
            let mut turn = user;
            while !done.load(Relaxed) {
                let now = clock.read().unwrap();
                turn += 1;
                // Some keys rest for long between uses.
                let which = (turn + usize::try_from(*now / STEP / 16).unwrap()) % keys.len();
                let took = use_once(&keyed, &keys[which], &config, Tick::from_nanos(*now));
                *sent.entry((which, *now)).or_default() += took;
                turns.fetch_add(1, Relaxed);
            }
            sent
        })
    });
    for step in 0..400 {
        let now = clock.read().unwrap();
        keyed.sweep(Tick::from_nanos(*now), usize::MAX);
        drop(now);
        // However busy the machine is, somebody has had a turn.
        let before = turns.load(Relaxed);
        while turns.load(Relaxed) == before {
            std::thread::yield_now();
        }
        // Long enough for all to rest, now and then.
        *clock.write().unwrap() += if step % 16 == 15 { STEP * 16 } else { STEP };
    }
    done.store(true, Relaxed);
    let mut sent: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    for user in users {
        for (at, n) in user.join().unwrap() {
            *sent.entry(at).or_default() += n;
        }
    }
    assert!(sent.values().sum::<u64>() > 100);
    for (key, at) in sent.keys() {
        let window: u64 = sent.range((*key, *at)..=(*key, *at + 1_000_000_000)).map(|(_, n)| n).sum();
        assert!(window <= 8, "{window} in a second");
    }
}

/// The line that it stood in had ended, and another had begun, with later numbers.
#[test]
fn one_who_is_too_late_is_told_so_even_by_another_line() {
    let quota = Quota::bucket(1, SECOND);
    let mut scope = Scope::new(vec![Meter::full(&quota, Tick::default())], u32::MAX, Ramp::over());
    let at = |ms: u64| Tick::from_nanos(ms * 1_000_000);
    let late = Want { deadline: at(1_500), ..want(1) };
    let (waker, mut wakes) = (Waker::noop(), Vec::new());
    let mut join = |scope: &mut Scope, want: &Want, now| scope.join(want, waker, now, &mut wakes);
    assert!(matches!(join(&mut scope, &late, at(0)), Turn::Granted { .. }));
    scope.commit(&late.costs, at(0));
    let Turn::Wait { seq, .. } = join(&mut scope, &late, at(0)) else { unreachable!("one a second") };
    assert!(matches!(join(&mut scope, &want(1), at(1_600)), Turn::Granted { .. }), "nobody waits any more");
    assert!(matches!(join(&mut scope, &want(1), at(1_600)), Turn::Wait { .. }));
    let turn = scope.poll((seq, waker), &late, at(1_600), &mut Vec::new());
    assert!(matches!(turn, Turn::Refused { why: Why::Deadline, .. }), "{turn:?}");
}

fn use_once(keyed: &Keyed, key: &Key, config: &Arc<Config>, now: Tick) -> u64 {
    let took = keyed.with(key, config, now, |state, wakes| match state.scope.try_now(&want(1), now, wakes) {
        Turn::Granted { .. } => {
            state.scope.commit(&want(1).costs, now);
            state.scope.free_slot();
            1
        }
        _ => 0,
    });
    took.map_or(0, |(_, took)| took)
}
