//! The limiter alone: a permit taken, committed and dropped; many waiters; many keys; precision at a high rate.
//!
//! `cargo run --release --manifest-path benches/peers/Cargo.toml --bin acquire`

use std::{
    num::NonZeroU32,
    process::Command,
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use abide::{Key, Limiter, Quota};

const ROUNDS: u32 = 1_000_000;

/// Measured in processes of their own: memory that one has freed would be used again by the next.
const PARTS: [(&str, fn()); 3] = [("keys", keys), ("waiters", waiters), ("precision", precision)];

fn main() {
    if let Some(part) = std::env::args().nth(1) {
        return PARTS.iter().filter(|(name, _)| *name == part).for_each(|(_, run)| run());
    }
    println!("| try_acquire + commit + drop, keyed | one thread, ns | two threads on one key, ns |");
    println!("| --- | --: | --: |");
    let quota = Quota::bucket(1_000_000_000, Duration::from_secs(1));
    let limiter = Limiter::builder().quota(quota).build().unwrap();
    let key = Key::from("key");
    let take = || limiter.try_acquire(&key, 1).unwrap().commit();
    println!("| abide, bucket | {:.0} | {:.0} |", best(1, &take), best(2, &take));
    let window = Limiter::builder().quota(Quota::per_second(u32::MAX)).build().unwrap();
    let take = || window.try_acquire(&key, 1).unwrap().commit();
    println!("| abide, window | {:.0} | {:.0} |", best(1, &take), best(2, &take));
    let governor = governor::RateLimiter::keyed(governor::Quota::per_second(NonZeroU32::MAX));
    let take = || drop(governor.check_key(&"key"));
    println!("| governor (no commit, no give-back) | {:.0} | {:.0} |", best(1, &take), best(2, &take));
    let most = 1 << 31;
    let leaky = leaky_bucket::RateLimiter::builder().max(most).initial(most).refill(most).build();
    let take = || assert!(leaky.try_acquire(1));
    println!("| leaky-bucket (no key, no commit, no give-back) | {:.0} | {:.0} |", best(1, &take), best(2, &take));
    println!();
    for (part, _) in PARTS {
        let status = Command::new(std::env::current_exe().unwrap()).arg(part).status();
        assert!(status.is_ok_and(|status| status.success()), "{part}");
    }
}

/// Nanoseconds an operation, the best of five rounds.
fn best(threads: usize, run: &(impl Fn() + Sync)) -> f64 {
    let round = || {
        let barrier = Arc::new(Barrier::new(threads));
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads)
                .map(|_| {
                    let barrier = Arc::clone(&barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        let start = Instant::now();
                        (0..ROUNDS).for_each(|_| run());
                        start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).fold(0.0, f64::max)
        })
    };
    (0..5).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// 100,000 tasks in one line.
fn waiters() {
    const COUNT: u32 = 100_000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let quota = Quota::bucket(50_000, Duration::from_secs(1)).burst(1);
        let limiter = Limiter::builder().quota(quota).max_waiting(COUNT as usize).build().unwrap();
        let key = Key::from("key");
        let (rss, cpu) = (status_kib("VmRSS:"), cpu());
        let mut waiting: Vec<_> = (0..COUNT).map(|_| Box::pin(limiter.acquire(&key, 1, None))).collect();
        for wait in &mut waiting {
            drop(futures_util::poll!(wait.as_mut()));
        }
        let each = (status_kib("VmRSS:") - rss) * 1024.0 / f64::from(COUNT);
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for (i, wait) in waiting.into_iter().enumerate() {
            tasks.spawn(async move {
                wait.await.unwrap().commit();
                (Instant::now(), i)
            });
        }
        let mut order = tasks.join_all().await;
        order.sort_by_key(|(_, i)| *i);
        // Who wakes collects first among those granted at the same instant: that is no disorder.
        let late = order.windows(2).filter(|pair| pair[0].0 > pair[1].0 + Duration::from_millis(1)).count();
        let grant = (self::cpu() - cpu) * 1e6 / f64::from(COUNT);
        println!("100,000 waiters on one key: {each:.0} bytes each with its boxed future, {grant:.2} µs CPU a grant, {late} out of order by more than 1 ms, {:.1} s", start.elapsed().as_secs_f64());
    });
}

/// A million keys, idle and active.
fn keys() {
    const COUNT: u32 = 1_000_000;
    let limiter = Limiter::builder().quota(Quota::per_second(100)).max_keys(2_000_000).build().unwrap();
    let rss = status_kib("VmRSS:");
    for i in 0..COUNT {
        drop(limiter.try_acquire(&Key::from(format!("{i}")), 1).unwrap());
    }
    let idle = (status_kib("VmRSS:") - rss) * 1024.0 / f64::from(COUNT);
    for i in 0..COUNT {
        limiter.try_acquire(&Key::from(format!("{i}")), 1).unwrap().commit();
    }
    let active = (status_kib("VmRSS:") - rss) * 1024.0 / f64::from(COUNT);
    println!("1,000,000 keys: {idle:.0} bytes each idle, {active:.0} bytes each with a commit booked");
}

/// 10,000 a second from many tasks.
fn precision() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let quota = Quota::bucket(10_000, Duration::from_secs(1)).burst(1);
        let limiter = Limiter::builder().quota(quota).max_waiting(100_000).build().unwrap();
        let sent = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let (limiter, sent) = (limiter.clone(), Arc::clone(&sent));
            tasks.spawn(async move {
                while start.elapsed() < Duration::from_secs(3) {
                    limiter.acquire(&Key::from("key"), 1, None).await.unwrap().commit();
                    sent.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
        tasks.join_all().await;
        let rate = sent.load(std::sync::atomic::Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        println!("release precision at 10,000/s: {:.1} % of the rate", rate / 100.0);
    });
}

fn status_kib(field: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0.0)
}

/// Seconds of CPU that the process has used.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect();
    (fields[11] + fields[12]) / 100.0
}
