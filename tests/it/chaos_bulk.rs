//! A bulk run through a network that breaks, killed and resumed: no row is executed twice, none is lost.
#![expect(clippy::panic, reason = "tests fail by panic")]

use std::path::Path;

use abide::testing::{Dialect, Server};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use serde_json::Value;

use crate::support::{
    chaos::Proxy,
    clock::{self, ms},
    job::{self, Folder, said},
};

const ROWS: usize = 30;
const OPTIONS: &str =
    "--concurrency 8 --max-attempts 3 --base 1ms --cap 20ms --attempt-timeout 150ms --deadline 2s --progress never";

/// Runs until nothing is left to do, killed twice on the way; the last output.
async fn to_the_end(seed: u64, options: &str, paths: &[&Path]) -> String {
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..2 {
        let mut child = job::command(&format!("{OPTIONS} {options} --resume"), paths).spawn().unwrap();
        clock::sleep(ms(rng.random_range(20..250))).await;
        child.kill().await.unwrap();
    }
    // Bare rows that failed may have been executed: only who says so sends them again.
    let again = if options.is_empty() { "--resume" } else { "--retry-failed" };
    for _ in 0..30 {
        let output = job::run(&format!("{OPTIONS} {options} {again}"), paths).await;
        match output.status.code() {
            Some(0) => return said(&output),
            Some(1) if options.is_empty() => return said(&output),
            Some(1) => {}
            code => panic!("seed {seed}: {code:?}: {}", said(&output)),
        }
    }
    panic!("seed {seed}: thirty runs, and rows still fail");
}

async fn trial(seed: u64, options: &str) {
    let server = Server::builder().dialect(Dialect::Silent).start().await.unwrap();
    let to = server.url().trim_start_matches("http://").parse().unwrap();
    let proxy = Proxy::start(to, seed, false).await;
    let folder = Folder::new();
    let row = |n| format!("{{\"method\":\"POST\",\"url\":\"{}/charge\",\"body\":\"charge {n}\"}}\n", proxy.url());
    let jobs = folder.write("jobs.jsonl", (0..ROWS).map(row).collect::<String>());
    let out = folder.file("out.jsonl");
    let said = to_the_end(seed, options, &[&jobs, "-o".as_ref(), &out]).await;
    let (results, charges) = (folder.results("out.jsonl"), server.charges());
    let ok = |result: &Value| result["ok"].as_bool() == Some(true);
    let good = results.values().filter(|result| ok(result)).count();
    assert!(charges.most_bare <= 1 && charges.keyed.values().all(|times| *times == 1), "seed {seed}: {charges:?}");
    if options.is_empty() {
        // What was executed is good, failed on its way back, or named as unknown; nothing is left out.
        let unknown = said.matches("may have sent it").count();
        assert_eq!(results.len() + unknown, ROWS, "seed {seed}: {said}");
        assert!(good as u64 <= charges.bare, "seed {seed}: {good} good, {charges:?}");
    } else {
        assert_eq!((good, charges.keyed.len(), charges.bare), (ROWS, ROWS, 0), "seed {seed}: {said}");
        for result in results.values() {
            assert_eq!(charges.of(result["idempotency_key"].as_str().unwrap()), 1, "seed {seed}: {result}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyed_rows_are_executed_exactly_once() {
    for seed in 0..6 {
        trial(seed, "--idempotency-key auto").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bare_rows_are_executed_at_most_once() {
    for seed in 100..106 {
        trial(seed, "").await;
    }
}
