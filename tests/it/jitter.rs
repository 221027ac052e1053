//! Waits are spread: by their distribution, and by what the AWS jitter simulation (the code of `examples/jitter`)
//! makes of them.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

#[path = "../../examples/jitter/occ.rs"]
mod occ;
#[path = "../../examples/jitter/plot.rs"]
mod plot;

use abide::{Backoff, Policy, ResponseExt};
use occ::{KINDS, Mean};

use crate::{
    memory::{Net, status},
    support::clock::ms,
};

const RUNS: u64 = 12;

/// Figures of a port of the simulator, for 100 clients: time in ms and writes, in the order of `KINDS`.
const REFERENCE: [(f64, f64); 5] =
    [(2024.0, 2425.0), (63_268.0, 1854.0), (6541.0, 813.0), (4881.0, 796.0), (4538.0, 1002.0)];

fn all(clients: u32) -> [Mean; 5] {
    KINDS.each_ref().map(|kind| kind.mean(clients, RUNS))
}

#[test]
fn jitter_wins_as_in_the_simulation_of_aws() {
    let [few, some, many] = [10, 50, 100].map(all);
    for (kind, (mean, (millis, writes))) in KINDS.iter().zip(many.iter().zip(REFERENCE)) {
        assert!((mean.millis / millis - 1.0).abs() < 0.15, "{}: {mean:?}, {millis} ms", kind.name);
        assert!((mean.writes / writes - 1.0).abs() < 0.1, "{}: {mean:?}, {writes} writes", kind.name);
    }
    // Without backoff the work grows with the square of the clients.
    let growth = many[0].writes / some[0].writes;
    assert!((3.3..4.7).contains(&growth), "{growth}");
    for (means, slower) in [(few, 5.0), (some, 10.0), (many, 10.0)] {
        let [_, exponential, equal, full, decorrelated] = means;
        assert!(exponential.millis > slower * full.millis, "without jitter it takes longest: {means:?}");
        assert!((equal.writes / full.writes - 1.0).abs() < 0.15 && full.millis < equal.millis, "{means:?}");
        assert!((0.85..1.5).contains(&(decorrelated.writes / full.writes)), "{means:?}");
        assert!((0.65..1.15).contains(&(decorrelated.millis / full.millis)), "{means:?}");
    }
    assert!(many[2..].iter().all(|jitter| jitter.writes < 0.6 * many[1].writes));
    assert!(many[3].writes < 0.5 * many[1].writes, "full jitter halves the work");
}

#[test]
fn the_plot_has_a_curve_for_each_kind() {
    let clients = [10, 20];
    let curves = KINDS.each_ref().map(|kind| (kind.name, clients.map(|clients| kind.mean(clients, 1)).to_vec()));
    let svg = plot::svg(&clients, &curves);
    assert_eq!(svg.matches("<polyline").count(), 10);
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
}

/// The first waits of a thousand concurrent calls, from their histories, as shares of 50 ms.
async fn waits(backoff: Backoff) -> Vec<f64> {
    let net = Net::new((0..1000).map(|_| status(503)).chain((0..1000).map(|_| status(200))));
    let client = net.client().policy(Policy::default().backoff(backoff).no_budget()).seed(7).build().unwrap();
    let url = "https://api.example/v1/things";
    let ended = futures_util::future::join_all((0..1000).map(|_| client.get(url).send())).await;
    let share = |wait: std::time::Duration| wait.as_secs_f64() / 0.05;
    ended.iter().map(|call| share(call.as_ref().unwrap().history().attempts()[1].waited().backoff)).collect()
}

/// Kolmogorov and Smirnov: uniform in `0..=1` unless it is less likely than 10⁻⁶.
fn is_uniform(waits: &[f64]) -> bool {
    let mut waits = waits.to_vec();
    waits.sort_by(f64::total_cmp);
    let count = waits.len() as f64;
    let distance = waits.iter().zip(0u32..).fold(0.0, |most: f64, (wait, rank)| {
        let (below, above) = (f64::from(rank) / count, f64::from(rank + 1) / count);
        most.max((wait - below).abs()).max((above - wait).abs())
    });
    distance < (2e6_f64.ln() / (2.0 * count)).sqrt()
}

fn different(waits: &[f64]) -> usize {
    waits.iter().map(|wait| wait.to_bits()).collect::<std::collections::HashSet<_>>().len()
}

#[tokio::test(start_paused = true)]
async fn the_waits_of_a_thousand_calls_are_uniform_and_differ() {
    let full = waits(Backoff::full_jitter(ms(50), ms(400))).await;
    assert!(is_uniform(&full) && different(&full) > 990);
}

/// The test above can fail: on other jitters, on a bias, on few values, and on waits that calls share.
#[tokio::test(start_paused = true)]
async fn waits_that_are_not_uniform_are_found_out() {
    let (base, cap) = (ms(50), ms(400));
    let backoffs =
        [Backoff::equal_jitter(base, cap), Backoff::exponential(base, cap), Backoff::full_jitter(ms(40), cap)];
    for backoff in backoffs {
        assert!(!is_uniform(&waits(backoff).await), "{backoff:?}");
    }
    let full = waits(Backoff::full_jitter(base, cap)).await;
    let biased: Vec<_> = full.iter().map(|wait| wait * wait).collect();
    let coarse: Vec<_> = full.iter().map(|wait| (wait * 5.0).floor() / 5.0).collect();
    assert!(!is_uniform(&biased) && !is_uniform(&coarse));
    let shared: Vec<_> = full.iter().map(|_| full[0]).collect();
    assert!(!is_uniform(&shared) && different(&shared) == 1);
}
