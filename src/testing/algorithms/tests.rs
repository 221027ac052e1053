//! The meters against naive references: sums over all that was ever accepted, written from the definitions.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// What was accepted: instant and cost.
type Past = [(u64, u64)];

/// Whether a server by the book admits `cost` at `now`.
fn admits(algorithm: Algorithm, quota: &Quota, past: &Past, cost: u64, now: u64) -> bool {
    let (n, w) = (i128::from(quota.units()), nanos_of(quota.per()));
    let within = |keep: &dyn Fn(u64) -> bool| -> i128 {
        past.iter().filter(|&&(at, _)| keep(at)).map(|&(_, cost)| i128::from(cost)).sum()
    };
    let (cost, wide) = (i128::from(cost), i128::from(w));
    match algorithm {
        Algorithm::FixedWindow => within(&|at| at / w == now / w) + cost <= n,
        Algorithm::SlidingLog => within(&|at| at + w > now) + cost <= n,
        Algorithm::SlidingCounter => {
            let newer = within(&|at| at / w == now / w);
            let older = within(&|at| at / w + 1 == now / w);
            let overlap = i128::from(w - now % w);
            older * overlap + (newer + cost) * wide <= n * wide
        }
        // The arrival curve: no span holds more than burst + rate · span.
        _ => backlog(quota, past, cost, now) <= i128::from(Rate::of(quota).burst) * wide,
    }
}

/// Largest over all spans that end now of what came minus what drained, scaled by the period.
fn backlog(quota: &Quota, past: &Past, cost: i128, now: u64) -> i128 {
    let (n, w) = (i128::from(quota.units()), i128::from(nanos_of(quota.per())));
    let mut sum = cost * w;
    let mut most = sum;
    for &(at, cost) in past.iter().rev() {
        sum += i128::from(cost) * w;
        most = most.max(sum - n * i128::from(now - at));
    }
    most
}

const RATES: [Algorithm; 6] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::Gcra,
];

/// Not a multiple of anything, in 2026.
const START: u64 = 1_790_000_000_123_456_789;

fn quotas() -> impl Strategy<Value = Quota> {
    let period = prop_oneof![1_u64..50, Just(1_000_000_007), Just(86_400_000_000_000)];
    (1_u32..12, period, proptest::option::of(1_u32..20)).prop_map(|(n, per, burst)| {
        let per = Duration::from_nanos(per);
        match burst {
            Some(burst) => Quota::bucket(n, per).burst(burst),
            None => Quota::window(n, per),
        }
    })
}

/// Gaps in 1/60 of the period, so that edges are met, and single nanoseconds around them.
fn arrivals() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    let sixtieths = prop_oneof![4 => Just(0), 4 => 0_u64..30, 1 => Just(60), 1 => 60_u64..200];
    proptest::collection::vec((sixtieths, 0_u64..2, prop_oneof![4 => Just(1_u64), 1 => 0_u64..5]), 1..60)
}

proptest! {
    #[test]
    fn admits_what_the_reference_admits(quota in quotas(), arrivals in arrivals()) {
        for algorithm in RATES {
            check_run(algorithm, &quota, &arrivals)?;
        }
    }

    #[test]
    fn a_delayed_request_starts_when_those_before_it_are_served(quota in quotas(), arrivals in arrivals()) {
        let mut meter = Algorithm::LeakyBucket.meter(&quota);
        let (mut past, mut now) = (Vec::new(), START);
        for (sixtieths, more, cost) in arrivals {
            now += sixtieths * nanos_of(quota.per()) / 60 + more;
            if meter.wait(cost, now) == 0 {
                let ahead = backlog(&quota, &past, 0, now);
                let delay = i128::from(meter.take(cost, now));
                let n = i128::from(quota.units());
                prop_assert!(delay * n >= ahead && (delay - 1) * n < ahead.max(1), "{delay} for {ahead}");
                past.push((now, cost));
            }
        }
    }
}

fn check_run(algorithm: Algorithm, quota: &Quota, arrivals: &[(u64, u64, u64)]) -> Result<(), TestCaseError> {
    let mut meter = algorithm.meter(quota);
    let (mut past, mut now) = (Vec::new(), START);
    for &(sixtieths, more, cost) in arrivals {
        now += sixtieths * nanos_of(quota.per()) / 60 + more;
        let by_the_book = |past: &Past, cost, now| admits(algorithm, quota, past, cost, now);
        let wait = meter.wait(cost, now);
        prop_assert_eq!(wait == 0, by_the_book(&past, cost, now), "{} {} at {}", algorithm, quota, now);
        if wait == NEVER {
            prop_assert!(u128::from(cost) > u128::from(meter.contract().0));
        } else if wait > 0 {
            prop_assert!(by_the_book(&past, cost, now + wait), "{algorithm} {quota}: {wait} is too early");
            prop_assert!(!by_the_book(&past, cost, now + wait - 1), "{algorithm} {quota}: {wait} is too late");
        } else {
            meter.take(cost, now);
            past.push((now, cost));
        }
        let level = meter.level(now);
        prop_assert!(by_the_book(&past, level.remaining, now), "{algorithm} {quota}: fewer remain");
        prop_assert!(!by_the_book(&past, level.remaining + 1, now), "{algorithm} {quota}: more remain");
        if algorithm != Algorithm::SlidingCounter {
            let (capacity, _) = meter.contract();
            prop_assert!(by_the_book(&past, capacity, now + level.reset), "{algorithm} {quota}: not full at its reset");
        }
    }
    Ok(())
}

#[track_caller]
fn remains(algorithm: Algorithm, before: &Quota, after: &Quota, expected: u64) {
    let mut meter = algorithm.meter(before);
    for _ in 0..3 {
        assert_eq!(meter.wait(1, START), 0);
        meter.take(1, START);
    }
    meter.rerate(after, START);
    assert_eq!(meter.level(START).remaining, expected, "{algorithm}");
}

#[test]
fn what_was_taken_stays_taken_when_the_limit_changes() {
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    for algorithm in Algorithm::ALL {
        remains(*algorithm, &Quota::window(5, second), &Quota::window(9, hour), 6);
        remains(*algorithm, &Quota::window(5, hour), &Quota::window(4, second), 1);
        remains(*algorithm, &Quota::window(5, hour), &Quota::window(2, second), 0);
    }
}

#[test]
fn contracts_are_capacity_and_time_to_refill() {
    let quota = Quota::bucket(10, Duration::from_secs(1)).burst(20);
    let second = 1_000_000_000;
    let expected = |algorithm| match algorithm {
        Algorithm::FixedWindow | Algorithm::SlidingLog | Algorithm::SlidingCounter => (10, Some(second)),
        Algorithm::Concurrency => (10, None),
        _ => (20, Some(2 * second)),
    };
    for &algorithm in Algorithm::ALL {
        assert_eq!(algorithm.meter(&quota).contract(), expected(algorithm), "{algorithm}");
    }
}

#[test]
fn a_place_is_free_after_its_release() {
    let mut meter = Algorithm::Concurrency.meter(&Quota::per_second(1));
    meter.take(1, START);
    assert_eq!((meter.wait(1, START), meter.wait(2, START)), (SLOT_WAIT, NEVER));
    meter.release(1);
    assert_eq!(meter.wait(1, START), 0);
}

#[test]
fn names_are_read_back() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.to_string().parse(), Ok(*algorithm));
    }
    let unknown = "leaky".parse::<Algorithm>().unwrap_err();
    assert!(unknown.to_string().contains("expected one of fixed-window, sliding-log"), "{unknown}");
}
