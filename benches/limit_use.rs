//! How much of a limit is used, and how often the server refuses: client × algorithm × dialect against the practice
//! server, on real sockets and the real clock.
//!
//! `cargo bench --features testing --bench limit_use [-- steady | jobs | all] [requests]`
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a bench prints, and keeps time"
)]

use std::{
    fmt::Write,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use abide::{
    Client, Policy, Quota,
    testing::{Algorithm, Dialect, Faults, Server},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

const WORKERS: usize = 64;
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::Gcra,
];

/// A limit, and how it is told.
#[derive(Clone)]
struct Row {
    what: &'static str,
    dialect: Dialect,
    quota: Quota,
    /// Requests per second.
    rate: f64,
    goal: &'static str,
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let which = arguments.first().map_or("all", String::as_str);
    let requests = arguments.get(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    if which != "jobs" {
        steady(requests).await;
    }
    if which != "steady" {
        jobs().await;
    }
}

/// The table on use of the limit, and the plot.
async fn steady(requests: usize) {
    let row = |what, dialect, n: u32, per: u64, goal| Row {
        what,
        dialect,
        quota: Quota::window(n, Duration::from_secs(per)),
        rate: f64::from(n) / per as f64,
        goal,
    };
    let rows = [
        row("contract known, W = 5 s", Dialect::Draft11, 1_000, 5, "≥ 95 %, 0 steady, ≤ 1 all"),
        row("contract known, W = 1 s", Dialect::Draft06, 200, 1, "≥ 93 %, 0 steady, ≤ 1 all"),
        row("window unknown, W = 5 s", Dialect::XRateLimit, 1_000, 5, "≥ 85 %, ≤ 5"),
        row("nothing advertised, W = 5 s", Dialect::RetryAfterOnly, 1_000, 5, "≥ 75 %, ≤ 30"),
    ];
    println!(
        "| limit | algorithm | used, steady | refused per 1,000: all | steady | most in a window | first learned | goal |"
    );
    println!("| --- | --- | --: | --: | --: | --: | --: | --- |");
    let mut panels = Vec::new();
    for row in rows {
        let mut runs = JoinSet::new();
        for (place, algorithm) in ALGORITHMS.into_iter().enumerate() {
            let row = row.clone();
            runs.spawn(async move { (place, algorithm, use_of(algorithm, &row, requests).await) });
        }
        let mut done = runs.join_all().await;
        done.sort_by_key(|(place, ..)| *place);
        for (_, algorithm, out) in done {
            println!(
                "| {} | {algorithm} | {:.1} % | {:.1} | {:.1} | {} of {} | {:.0} ms | {} |",
                row.what, out.used, out.refused, out.late, out.most, row.quota, out.learned, row.goal
            );
            if row.dialect == Dialect::Draft11 {
                panels.push((algorithm.to_string(), out.per_tenth, row.rate / 10.0));
            }
        }
    }
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/limit_use.svg"), plot(&panels)).unwrap();
}

/// What came of one run.
struct Use {
    used: f64,
    refused: f64,
    late: f64,
    most: u64,
    learned: f64,
    per_tenth: Vec<usize>,
}

async fn use_of(algorithm: Algorithm, row: &Row, requests: usize) -> Use {
    let server = Server::builder()
        .limit(row.quota.clone())
        .algorithm(algorithm)
        .dialect(row.dialect)
        .latency(Duration::from_millis(20)..Duration::from_millis(60))
        .start()
        .await
        .unwrap();
    let client = Client::builder().policy(Policy::default().no_deadline().max_attempts(10)).build().unwrap();
    let start = Instant::now();
    let ends = drive(&client, server.url(), requests).await;
    let stats = server.stats();
    let steady = &ends[requests / 5..];
    let refusals_steady = steady.iter().map(|end| end.refused).sum::<usize>() as f64;
    let seconds = (steady.last().unwrap().at - steady[0].at).as_secs_f64();
    let mut per_tenth = vec![0; 200];
    for arrival in server.arrivals() {
        if let Some(count) = per_tenth.get_mut((arrival - start).as_millis() as usize / 100) {
            *count += 1;
        }
    }
    Use {
        used: steady.len() as f64 / seconds / row.rate * 100.0,
        refused: stats.refused as f64 * 1e3 / requests as f64,
        late: refusals_steady * 1e3 / steady.len() as f64,
        most: stats.most_in_window,
        learned: (ends[0].at - start).as_secs_f64() * 1e3,
        per_tenth,
    }
}

/// When a call ended, and how often it had been refused.
#[derive(Clone, Copy)]
struct End {
    at: Instant,
    refused: usize,
    ok: bool,
}

/// All calls by [`WORKERS`] tasks, in the order of their ends.
async fn drive(client: &Client, url: &str, requests: usize) -> Vec<End> {
    use abide::ResponseExt;
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (client, url, next) = (client.clone(), url.to_owned(), Arc::clone(&next));
        workers.spawn(async move {
            let mut ends = Vec::new();
            while next.fetch_add(1, Relaxed) < requests {
                let answer = client.get(&url).send().await;
                let refused = answer.as_ref().map_or(0, |response| {
                    let attempts = response.history().attempts();
                    attempts.iter().filter(|attempt| attempt.status().is_some_and(|status| status == 429)).count()
                });
                let ok = answer.is_ok_and(|response| response.status().is_success());
                ends.push(End { at: Instant::now(), refused, ok });
            }
            ends
        });
    }
    let mut ends = workers.join_all().await.concat();
    ends.sort_unstable_by_key(|end| end.at);
    ends
}

/// Jobs of 2,000 at 200/s: abide, told nothing, beside reqwest behind governor, told 90 % of the limit.
async fn jobs() {
    println!(
        "\n| job of 2,000 at 200/s | client | seconds | ÷ 9.0 s (first window free) | ÷ 10.0 s | refused per 1,000 | lost |"
    );
    println!("| --- | --- | --: | --: | --: | --: | --: |");
    for job in ["plain", "limit halved at 5 s", "5 % faults"] {
        for client in ["abide", "governor"] {
            let (seconds, refused, lost) = run_job(job, client).await;
            // Halved at 5 s: 200 at once, 1,000 until then, the rest at 100/s.
            let free = if job.starts_with("limit") { 5.0 + (2_000.0 - 1_200.0) / 100.0 } else { 9.0 };
            let paced = if job.starts_with("limit") { 5.0 + 1_000.0 / 100.0 } else { 10.0 };
            println!(
                "| {job} | {client} | {seconds:.2} | {:.2} | {:.2} | {refused:.1} | {lost} |",
                seconds / free,
                seconds / paced
            );
        }
    }
}

async fn run_job(job: &str, client: &str) -> (f64, f64, usize) {
    let faults = if job.contains("faults") { 0.05 } else { 0.0 };
    let server = Server::builder()
        .limit(Quota::per_second(200))
        .algorithm(Algorithm::SlidingLog)
        .dialect(Dialect::Draft11)
        .latency(Duration::from_millis(20)..Duration::from_millis(60))
        .faults(Faults::rate(faults).kinds([abide::testing::Fault::Unavailable, abide::testing::Fault::Reset]))
        .start()
        .await
        .unwrap();
    let start = Instant::now();
    let halving = async {
        if job.starts_with("limit") {
            sleep(Duration::from_secs(5)).await;
            server.set_limit(Quota::per_second(100)).unwrap();
        }
        std::future::pending::<()>().await;
    };
    let lost = tokio::select! {
        lost = async {
            if client == "abide" {
                let client = Client::builder().policy(Policy::default().max_attempts(6)).build().unwrap();
                drive(&client, server.url(), 2_000).await.iter().filter(|end| !end.ok).count()
            } else {
                governor_job(server.url()).await
            }
        } => lost,
        () = halving => unreachable!("it waits for ever"),
    };
    (start.elapsed().as_secs_f64(), server.stats().refused as f64 / 2.0, lost)
}

/// What a user would build instead: governor before each call, told 90 % of the limit, and reqwest-retry.
async fn governor_job(url: &str) -> usize {
    use reqwest_middleware::ClientBuilder;
    use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
    let limiter = Arc::new(governor::RateLimiter::direct(governor::Quota::per_second(NonZeroU32::new(180).unwrap())));
    let retry = RetryTransientMiddleware::new_with_policy(ExponentialBackoff::builder().build_with_max_retries(5));
    let client = ClientBuilder::new(reqwest::Client::new()).with(retry).build();
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (client, url, next, limiter) = (client.clone(), url.to_owned(), Arc::clone(&next), Arc::clone(&limiter));
        workers.spawn(async move {
            let mut lost = 0;
            while next.fetch_add(1, Relaxed) < 2_000 {
                limiter.until_ready().await;
                let answer = client.get(&url).send().await;
                lost += usize::from(!answer.is_ok_and(|response| response.status().is_success()));
            }
            lost
        });
    }
    workers.join_all().await.into_iter().sum()
}

/// Sent per tenth of a second against the limit, one panel an algorithm.
fn plot(panels: &[(String, Vec<usize>, f64)]) -> String {
    let (width, height) = (640.0, 110.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"12\">\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        width + 80.0,
        panels.len() as f64 * (height + 30.0) + 20.0
    );
    for (place, (name, counts, limit)) in panels.iter().enumerate() {
        let top = place as f64 * (height + 30.0) + 24.0;
        let most = counts.iter().copied().max().unwrap_or(1).max(1) as f64;
        let scale = (height - 10.0) / most.max(limit * 1.5);
        let base = top + height;
        write!(svg, "<text x=\"50\" y=\"{}\">{name}: sent per 100 ms, 20 s</text>", top - 6.0).unwrap();
        for (i, count) in counts.iter().enumerate() {
            let (x, tall) = (50.0 + i as f64 * width / counts.len() as f64, *count as f64 * scale);
            write!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"2.6\" height=\"{tall:.1}\" fill=\"#3b6ea5\"/>",
                base - tall
            )
            .unwrap();
        }
        let line = base - limit * scale;
        writeln!(
            svg,
            "<line x1=\"50\" x2=\"{}\" y1=\"{line:.1}\" y2=\"{line:.1}\" stroke=\"#c0392b\"/><text x=\"8\" y=\"{:.1}\" fill=\"#c0392b\">{limit:.0}</text>",
            50.0 + width,
            line + 4.0
        )
        .unwrap();
    }
    svg + "</svg>\n"
}
