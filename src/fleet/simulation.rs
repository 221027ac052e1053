//! How cost and error grow with processes and keys: whole fleets over a store in memory, in virtual time.
//!
//! `ABIDE_LONG=1 cargo test --release --all-features --lib fleet::simulation -- --nocapture` prints all rows of the
//! table; without `ABIDE_LONG` its smallest.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{Rng, RngExt, SeedableRng, rngs::SmallRng};
use tokio::{task::JoinSet, time::Instant};

use super::{
    StoreLoss,
    memory::{Member, Memory},
};
use crate::{Backoff, Key, Limiter, Quota, clock, fleet::Fleet};

/// One run: how many ask, of how many keys, how often, and what is allowed on each key.
#[derive(Clone, Copy, Debug)]
struct Scene {
    processes: u64,
    keys: u32,
    /// Calls a second of all processes together.
    calls: f64,
    limit: u32,
    seconds: u64,
}

/// What came of it.
#[derive(Debug, Default)]
struct Figures {
    granted: u64,
    refused: u64,
    /// When something was sent on the key that is used most.
    hot: Vec<Instant>,
    waits: Vec<Duration>,
    round_trips: f64,
}

const SECOND: Duration = Duration::from_secs(1);

impl Scene {
    async fn play(self) -> Figures {
        let memory = Memory::new(Duration::from_millis(1));
        let figures = Arc::new(Mutex::new(Figures::default()));
        let began = clock::now();
        let mut processes = JoinSet::new();
        for process in 0..self.processes {
            let place = Box::new(Member(memory.clone(), process));
            let reconnect = Backoff::full_jitter(Duration::from_millis(50), SECOND);
            let fleet = Fleet::over(place, StoreLoss::LiveShare, (Duration::from_millis(50), reconnect), process);
            let quota = Quota::per_second(self.limit);
            let limiter = Limiter::builder().quota(quota).max_keys(200_000).fleet(fleet).build().unwrap();
            processes.spawn(self.process(limiter, process, began, Arc::clone(&figures)));
        }
        processes.join_all().await;
        let mut figures = std::mem::take(&mut *figures.lock().unwrap());
        figures.round_trips = memory.books().exchanges as f64 / figures.granted as f64;
        figures.hot.sort_unstable();
        figures.waits.sort_unstable();
        figures
    }

    /// Calls at random instants, on keys of which few are used much.
    async fn process(self, limiter: Limiter, seed: u64, began: Instant, figures: Arc<Mutex<Figures>>) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let rate = self.calls / self.processes as f64;
        let end = began + Duration::from_secs(self.seconds);
        let (mut calls, mut at) = (JoinSet::new(), began);
        loop {
            let wait = -rng.random::<f64>().max(1e-12).ln() / rate;
            at += Duration::from_secs_f64(wait.min(1e6));
            if at >= end {
                break;
            }
            clock::sleep_until(at).await;
            while calls.try_join_next().is_some() {}
            let (limiter, figures, key) = (limiter.clone(), Arc::clone(&figures), self.key(&mut rng));
            calls.spawn(async move {
                let asked = clock::now();
                let granted = limiter.acquire(&Key::from(format!("{key}")), 1, Some(asked + SECOND)).await;
                let mut figures = figures.lock().unwrap();
                let Ok(mut permit) = granted else {
                    figures.refused += 1;
                    return;
                };
                permit.commit();
                figures.granted += 1;
                figures.waits.push(clock::now() - asked);
                if key == 0 {
                    figures.hot.push(clock::now());
                }
            });
        }
        calls.join_all().await;
    }

    /// Key n is used in proportion to 1/n, about.
    fn key(&self, rng: &mut impl Rng) -> u32 {
        let keys = f64::from(self.keys);
        let drawn = ((keys + 1.0).ln() * rng.random::<f64>()).exp() - 1.0;
        u32::try_from(crate::limit::whole(drawn)).unwrap_or(u32::MAX).min(self.keys - 1)
    }
}

impl Figures {
    fn most_in_a_second(&self) -> usize {
        let window = |last: usize| {
            let first = self.hot.partition_point(|at| self.hot[last].saturating_duration_since(*at) > SECOND);
            last - first + 1
        };
        (0..self.hot.len()).map(window).max().unwrap_or(0)
    }

    fn wait(&self, share: f64) -> f64 {
        let place = crate::limit::whole(share * self.waits.len() as f64);
        let place = usize::try_from(place).unwrap_or(usize::MAX).min(self.waits.len().saturating_sub(1));
        self.waits.get(place).map_or(0.0, |wait| wait.as_secs_f64() * 1e3)
    }
}

/// `used`: the least share of the hottest key's limit that is used once all have started.
fn check(scene: Scene, (used, round_trips): (f64, f64)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let figures = runtime.block_on(scene.play());
    let first = figures.hot.first().copied();
    let (from, to) = (2 * SECOND, Duration::from_secs(scene.seconds));
    let steady =
        figures.hot.iter().filter(|at| first.is_some_and(|first| (from..to).contains(&(**at - first)))).count();
    let share = steady as f64 / (f64::from(scene.limit) * (scene.seconds - 2) as f64);
    let most = figures.most_in_a_second();
    let Scene { processes, keys, calls, limit, .. } = scene;
    println!(
        "| {processes} | {keys} | {calls} | {limit} | {} | {} | {:.1} % | {most} | {:.3} | {:.1} | {:.1} |",
        figures.granted,
        figures.refused,
        share * 100.0,
        figures.round_trips,
        figures.wait(0.5),
        figures.wait(0.99),
    );
    assert!(most <= limit as usize, "{scene:?}: {most} in a window");
    assert!(share >= used && figures.round_trips <= round_trips, "{scene:?}: {share} {}", figures.round_trips);
}

#[test]
fn cost_and_error_stay_low_as_fleets_grow() {
    let long = std::env::var_os("ABIDE_LONG").is_some();
    println!(
        "| processes | keys | calls/s | limit/s | granted | refused | used of the hottest | most in a window | round trips a call | p50 ms | p99 ms |"
    );
    let scene = |processes, keys, calls, limit| Scene { processes, keys, calls, limit, seconds: 6 };
    // One key, half as much again as it allows.
    for processes in if long { vec![1, 10, 100, 1_000] } else { vec![1, 10] } {
        check(scene(processes, 1, 1_500.0, 1_000), (0.90, 2.5));
    }
    // The same, less than it allows.
    for processes in if long { vec![1, 10, 100, 1_000] } else { vec![10] } {
        // 300 calls a second and process cost a round trip for each ten.
        check(scene(processes, 1, 3_000.0, 10_000), (0.0, if processes <= 10 { 0.1 } else { 1.5 }));
    }
    // Many keys, all of them far below their limits but the first.
    for (processes, keys) in if long { vec![(10, 1_000), (100, 100_000), (1_000, 100_000)] } else { vec![(10, 100)] } {
        check(scene(processes, keys, 5_000.0, 100), (0.0, 2.5));
    }
}
