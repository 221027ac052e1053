//! `abide run` as a process: killed and resumed, interrupted, on full disks, against refusals.
#![expect(clippy::unwrap_used, reason = "a test on processes fails by panic")]

use std::{collections::BTreeSet, path::Path, time::Duration};

use abide::{
    Quota,
    testing::{Dialect, Server},
};
use serde_json::Value;

use crate::support::{
    clock,
    job::{self, Folder, said},
    rows::Rows,
    script::Entry,
};

/// Rows that charge, a body each.
fn charges(server: &Server, rows: usize) -> String {
    let row = |n| format!("{{\"method\":\"POST\",\"url\":\"{}/charge\",\"body\":{{\"n\":{n}}}}}\n", base(server));
    (0..rows).map(row).collect()
}

fn gets(server: &Server, rows: usize) -> String {
    (0..rows).map(|n| format!("{}/thing?n={n}\n", base(server))).collect()
}

fn base(server: &Server) -> String {
    server.url().to_string().trim_end_matches('/').to_owned()
}

/// How many moments a crash test takes: few in the normal run, `ABIDE_CRASHES` for more.
fn moments() -> u64 {
    std::env::var("ABIDE_CRASHES").ok().and_then(|number| number.parse().ok()).unwrap_or(8)
}

/// Kills the run at random moments until one comes through, and looks at what is left.
async fn crash(rows: usize, kills: u64, options: &str) {
    let server = Server::builder().latency(Duration::ZERO..Duration::from_millis(20)).start().await.unwrap();
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", charges(&server, rows));
    let (out, summary) = (folder.file("out.jsonl"), folder.file("summary.json"));
    let paths = [jobs.as_path(), Path::new("-o"), &out, Path::new("--summary"), &summary];
    for kill in 0..kills {
        let mut child = job::command(&format!("{options} --resume"), &paths).spawn().unwrap();
        // A few milliseconds after it has begun to write, or before.
        let first = folder.lines("out.jsonl");
        let wait = rand::random_range(0..60);
        clock::sleep(clock::ms(wait)).await;
        for _ in 0..if kill % 4 == 0 { 0 } else { 200 } {
            if folder.lines("out.jsonl") > first {
                break;
            }
            clock::sleep(clock::ms(2)).await;
        }
        clock::sleep(clock::ms(wait)).await;
        child.kill().await.unwrap();
    }
    let output = job::run(&format!("{options} --resume"), &paths).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let results = folder.results("out.jsonl");
    assert_eq!(results.len(), rows);
    let charges = server.charges();
    assert_eq!(charges.bare, 0);
    assert!(charges.keyed.values().all(|executions| *executions == 1), "a charge was executed twice");
    assert_eq!(charges.total(), rows as u64, "rows and charges differ");
    for (line, result) in &results {
        let key = result["idempotency_key"].as_str().unwrap();
        assert_eq!((result["ok"].as_bool(), charges.of(key)), (Some(true), 1), "line {line}: {result}");
    }
    let summary: Value = serde_json::from_str(&folder.read("summary.json")).unwrap();
    assert_eq!((summary["ok"].as_u64(), summary["failed"].as_u64()), (Some(rows as u64), Some(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_comes_back_and_charges_nothing_twice() {
    let rows = if moments() > 8 { 20 * usize::try_from(moments()).unwrap() } else { 400 };
    crash(rows, moments(), "--idempotency-key auto --concurrency 16 --base 10ms --cap 50ms").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_fsync_too() {
    crash(60, 3, "--idempotency-key auto --concurrency 8 --base 10ms --cap 50ms --fsync").await;
}

#[tokio::test]
async fn a_row_of_unknown_fate_is_named_and_not_sent() {
    let slow = Entry { delay_ms: Some(400), ..Entry::status(200) };
    let server = Rows::start(Entry::status(200), [(2, vec![slow])].into()).await;
    let folder = Folder::new();
    let row = |n: u64| format!("{{\"id\":\"row-{n}\",\"method\":\"POST\",\"url\":\"{}\"}}\n", server.url(n));
    let jobs = folder.write("jobs.jsonl", [row(1), row(2)].concat());
    let out = folder.file("out.jsonl");
    let paths = [jobs.as_path(), Path::new("-o"), &out];
    let mut child = job::command("", &paths).spawn().unwrap();
    while server.book().arrivals.len() < 2 {
        clock::sleep(clock::ms(5)).await;
    }
    clock::sleep(clock::ms(50)).await;
    child.kill().await.unwrap();
    let output = job::run("--resume", &paths).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("line 2 (row-2): unknown"), "{}", said(&output));
    assert!(said(&output).contains("1 ok, 0 failed, 1 unknown"), "{}", said(&output));
    assert_eq!((server.book().arrivals.len(), folder.results("out.jsonl").len()), (2, 1));
}

#[tokio::test]
async fn a_torn_line_is_repaired() {
    let server = Server::builder().start().await.unwrap();
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", gets(&server, 20));
    let out = folder.file("out.jsonl");
    let paths = [jobs.as_path(), Path::new("-o"), &out];
    assert_eq!(job::run("", &paths).await.status.code(), Some(0));
    let whole = folder.read("out.jsonl");
    folder.write("out.jsonl", &whole[..whole.len() - 30]);
    let output = job::run("--resume", &paths).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!((folder.results("out.jsonl").len(), server.stats().requests), (20, 21));
}

#[tokio::test]
async fn failed_rows_are_sent_again_and_their_last_result_counts() {
    let twice = vec![Entry::status(500), Entry::status(200)];
    let server = Rows::start(Entry::status(200), [(3, twice), (4, vec![Entry::status(404)])].into()).await;
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", (0..10).map(|n| format!("{}\n", server.url(n))).collect::<String>());
    let (out, summary) = (folder.file("out.jsonl"), folder.file("summary.json"));
    let paths = [jobs.as_path(), Path::new("-o"), &out, Path::new("--summary"), &summary];
    assert_eq!(job::run("--max-attempts 1", &paths).await.status.code(), Some(1));
    assert_eq!(job::run("--max-attempts 1 --retry-failed", &paths).await.status.code(), Some(1));
    let results = folder.results("out.jsonl");
    let failed: Vec<u64> = results.iter().filter(|(_, result)| result["ok"] == false).map(|(line, _)| *line).collect();
    assert_eq!((results.len(), failed), (10, vec![5]));
    let summary: Value = serde_json::from_str(&folder.read("summary.json")).unwrap();
    let sums = ["ok", "failed", "attempts"].map(|name| summary[name].as_u64().unwrap());
    assert_eq!(sums, [9, 1, 12]);
    // Nothing is left of it but its head.
    assert_eq!(folder.lines("out.jsonl.journal"), 1);
}

#[cfg(unix)]
#[tokio::test]
async fn a_full_disk_ends_it_with_a_word() {
    let server = Server::builder().start().await.unwrap();
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", gets(&server, 50));
    let output = job::run("", &[&jobs, Path::new("-o"), Path::new("/dev/full")]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("No space left on device"), "{}", said(&output));
    let output = job::run("", &[&jobs, Path::new("-o"), Path::new("/nowhere/out.jsonl")]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("/nowhere/out.jsonl: No such file"), "{}", said(&output));
    assert!(!Path::new("/dev/full.journal").exists());
}

#[cfg(unix)]
#[tokio::test]
async fn a_disk_that_fills_up_leaves_a_run_to_resume() {
    let server = Server::builder().start().await.unwrap();
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", charges(&server, 400));
    let out = folder.file("out.jsonl");
    let paths = [jobs.as_path(), Path::new("-o"), &out];
    // No file may grow beyond 40 KiB, as if the disk were full; without the signal that comes with it.
    let program = env!("CARGO_BIN_EXE_abide");
    let limited = format!("trap '' XFSZ; ulimit -f 40; exec {program} run \"$@\"");
    let mut command = tokio::process::Command::new("bash");
    command.args(["-c", &limited, "abide", "--idempotency-key", "auto"]).args(paths);
    let output = command.output().await.unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("out.jsonl: File too large"), "{}", said(&output));
    assert!(folder.read("out.jsonl").ends_with('\n'));
    let output = job::run("--idempotency-key auto --resume", &paths).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!((folder.results("out.jsonl").len(), server.charges().total()), (400, 400));
}

#[cfg(unix)]
#[tokio::test]
async fn what_it_writes_is_for_its_owner_and_holds_no_secret() {
    use std::os::unix::fs::PermissionsExt;

    let server = Server::builder().start().await.unwrap();
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", gets(&server, 5));
    let (out, report) = (folder.file("out.jsonl"), folder.file("report.html"));
    let mut command = job::command("--dry-run -H x-api-key:env:ABIDE_TEST_SECRET", &[&jobs, Path::new("-o"), &out]);
    let dry = command.env("ABIDE_TEST_SECRET", "s3cr3t-1").output().await.unwrap();
    assert_eq!((dry.status.code(), server.stats().requests, out.exists()), (Some(0), 0, false));
    let paths = [jobs.as_path(), Path::new("-o"), &out, Path::new("--report"), &report];
    let mut command = job::command("-v -H x-api-key:env:ABIDE_TEST_SECRET -H authorization:s3cr3t-2", &paths);
    let output = command.env("ABIDE_TEST_SECRET", "s3cr3t-1").output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    for name in ["out.jsonl", "out.jsonl.journal"] {
        let mode = folder.file(name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let texts = [folder.read("out.jsonl"), folder.read("out.jsonl.journal"), folder.read("report.html")];
    let said = [said(&output), said(&dry), String::from_utf8_lossy(&dry.stdout).into_owned()];
    assert!(texts.iter().chain(&said).all(|text| !text.contains("s3cr3t")), "{texts:?} {said:?}");
}

#[tokio::test]
async fn exit_codes_tell_why_it_stopped() {
    let refused = Rows::start(Entry::status(401), [].into()).await;
    let failing = Rows::start(Entry::status(500), [].into()).await;
    let folder = Folder::new();
    let many = |server: &Rows| (0..5000).map(|n| format!("{}\n", server.url(n))).collect::<String>();
    let (denied, broken) = (folder.write("denied", many(&refused)), folder.write("broken", many(&failing)));
    let check = async |options: &str, jobs: &Path, code: i32| {
        let output = job::run(options, &[jobs]).await;
        assert_eq!(output.status.code(), Some(code), "{options}: {}", said(&output));
        output
    };
    check("--concurrency 4", &denied, 4).await;
    check("--max-attempts 1 --concurrency 4 --stop-after 7", &broken, 3).await;
    check("--max-attempts 1 --concurrency 4 --stop-rate 5%", &broken, 3).await;
    check("--resume", &broken, 2).await;
    check("--limit 0/s", &broken, 2).await;
    check("--concurrency 0", &broken, 2).await;
    check("", Path::new("/nowhere"), 2).await;
    let seen = (refused.book().arrivals.len(), failing.book().arrivals.len());
    assert!(seen.0 < 20 && seen.1 < 60, "{seen:?}");
    let nonsense = folder.write("nonsense", "nonsense\n\n{\"url\":1}\n");
    let output = check("", &nonsense, 1).await;
    let kinds: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["error"]["kind"].clone())
        .collect();
    assert_eq!(kinds, ["invalid", "invalid"]);
}

#[tokio::test]
async fn a_throttled_row_has_not_failed() {
    let quota = Quota::window(20, Duration::from_millis(500));
    let server = Server::builder().limit(quota).dialect(Dialect::Silent).start().await.unwrap();
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", charges(&server, 60));
    let out = folder.file("out.jsonl");
    let options = "--idempotency-key auto --concurrency 30 --max-attempts 1 --base 20ms --cap 100ms";
    let output = job::run(options, &[&jobs, Path::new("-o"), &out]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(server.stats().refused > 0);
    assert_eq!((folder.results("out.jsonl").len(), server.charges().total()), (60, 60));
}

#[tokio::test]
async fn a_longer_wait_than_allowed_fails_the_rows() {
    let long = Entry { headers: vec![("retry-after".into(), "600".into())], ..Entry::status(429) };
    let server = Rows::start(long, [].into()).await;
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", (0..10).map(|n| format!("{}\n", server.url(n))).collect::<String>());
    let output = job::run("--max-server-wait 5s", &[&jobs]).await;
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.lines().filter(|line| line.contains("\"kind\":\"throttled\"")).count(), 10, "{text}");
}

#[tokio::test]
async fn a_host_that_pauses_does_not_hold_the_others() {
    let pause = Entry { headers: vec![("retry-after".into(), "2".into())], ..Entry::status(429) };
    let paused =
        Rows::start(Entry::status(200), (0..100).map(|n| (n, vec![pause.clone(), Entry::status(200)])).collect());
    let (paused, brisk) = (paused.await, Rows::start(Entry::status(200), [].into()).await);
    let folder = Folder::new();
    let rows = (0..200).map(|n| format!("{}\n", if n % 2 == 0 { paused.url(n / 2) } else { brisk.url(n / 2) }));
    let jobs = folder.write("jobs.jsonl", rows.collect::<String>());
    let started = clock::now();
    let mut child = job::command("--concurrency 4", &[&jobs]).spawn().unwrap();
    while brisk.book().answered.len() < 100 {
        assert!(started.elapsed() < Duration::from_millis(1900), "{} answers", brisk.book().answered.len());
        clock::sleep(clock::ms(5)).await;
    }
    child.kill().await.unwrap();
}

#[tokio::test]
async fn concurrency_follows_the_limit() {
    let latency = Duration::from_millis(200);
    let server = Server::builder().latency(latency..latency).dialect(Dialect::Silent).start().await.unwrap();
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", gets(&server, 300));
    let output = job::run("--limit 100/s --concurrency 1000", &[&jobs]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let most = server.stats().most_in_flight;
    assert!(most <= 50, "{most} in flight");
}

#[tokio::test]
async fn a_sample_is_done_first_and_the_rest_later() {
    let server = Server::builder().start().await.unwrap();
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", gets(&server, 400));
    let out = folder.file("out.jsonl");
    let paths = [jobs.as_path(), Path::new("-o"), &out];
    assert_eq!(job::run("--sample 10%", &paths).await.status.code(), Some(0));
    let some: BTreeSet<u64> = folder.results("out.jsonl").into_keys().collect();
    assert!((15..90).contains(&some.len()), "{}", some.len());
    assert_eq!(job::run("--resume", &paths).await.status.code(), Some(0));
    assert_eq!((folder.results("out.jsonl").len(), server.stats().requests), (400, 400));
    // Another input is not that run's.
    let other = folder.write("other.jsonl", gets(&server, 3).replace("thing", "other"));
    let output = job::run("--resume", &[&other, Path::new("-o"), &out]).await;
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}
