//! What `abide run` makes of the files of an earlier run, or of one that is under way.

use std::path::Path;

use tokio::process::Child;

use crate::support::{
    job::{self, Folder, said},
    rows::Rows,
    script::Entry,
    stage::{end_of, until},
};

fn posts(server: &Rows, rows: std::ops::Range<u64>) -> String {
    rows.map(|n| format!("{{\"id\":\"row-{n}\",\"method\":\"POST\",\"url\":\"{}\"}}\n", server.url(n))).collect()
}

/// A line number that no input has says that the file is broken: nothing is sent, and nothing in it is touched.
#[tokio::test]
async fn results_of_a_row_that_no_input_has_are_an_error() {
    let server = Rows::start(Entry::status(200), [].into()).await;
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", posts(&server, 1..4));
    let out = folder.file("out.jsonl");
    let paths = [jobs.as_path(), Path::new("-o"), &out];
    assert_eq!(job::run("--concurrency 1", &paths).await.status.code(), Some(0));
    let broken = folder.read("out.jsonl").replace("\"line\":2,", "\"line\":1000000000000000,");
    folder.write("out.jsonl", &broken);
    for options in ["--resume", "--retry-failed", "--resume --dry-run"] {
        let output = job::run(options, &paths).await;
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(
            said(&output).contains("out.jsonl: its line 2 is the result of a row 1000000000000000"),
            "{}",
            said(&output)
        );
    }
    assert_eq!((folder.read("out.jsonl"), server.book().arrivals.len()), (broken, 3));
}

/// Memory follows the results that are there, not the numbers in them.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_far_row_takes_no_more_memory_than_a_near_one() {
    let server = Rows::start(Entry::status(200), [].into()).await;
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", posts(&server, 1..4));
    let out = folder.file("out.jsonl");
    let paths = [jobs.as_path(), Path::new("-o"), &out];
    assert_eq!(job::run("", &paths).await.status.code(), Some(0));
    folder.write("out.jsonl", folder.read("out.jsonl").replace("\"line\":3,", "\"line\":9000000000,"));
    // As much as it may ask for, in KiB.
    let program = env!("CARGO_BIN_EXE_abide");
    let limited = format!("ulimit -v 4000000; exec {program} run \"$@\"");
    let mut command = tokio::process::Command::new("bash");
    let output = command.args(["-c", &limited, "abide", "--resume"]).args(paths).output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    // The row whose result it was is sent again: its line says so.
    assert_eq!((server.book().arrivals.len(), folder.results("out.jsonl").len()), (4, 4));
}

/// A run under way, some of whose rows have their results.
async fn under_way(server: &Rows, paths: &[&Path]) -> Child {
    let child = job::command("--concurrency 2", paths).spawn().unwrap();
    until("requests", || server.book().arrivals.len() >= 4).await;
    child
}

#[cfg(unix)]
#[tokio::test]
async fn two_runs_do_not_share_their_results() {
    let slow = Entry { delay_ms: Some(100), ..Entry::status(200) };
    let server = Rows::start(slow, [].into()).await;
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", posts(&server, 0..40));
    let out = folder.file("out.jsonl");
    let paths = [jobs.as_path(), Path::new("-o"), &out];
    let mut first = under_way(&server, &paths).await;
    for options in ["", "--resume", "--retry-failed"] {
        let second = job::run(options, &paths).await;
        assert_eq!(second.status.code(), Some(2), "{}", said(&second));
        assert!(said(&second).contains("out.jsonl: another run is writing it"), "{}", said(&second));
    }
    // Nothing is held by one that is dead.
    first.kill().await.unwrap();
    let third = job::run("--resume", &paths).await;
    assert_eq!(third.status.code(), Some(1), "{}", said(&third));
    let unknown = said(&third).matches("may have sent it").count();
    assert_eq!(folder.results("out.jsonl").len() + unknown, 40);
    assert!(server.book().keys.values().all(|keys| keys.len() == 1), "a row was sent twice");
}

/// Also while a run puts its files in place anew.
#[cfg(unix)]
#[tokio::test]
async fn files_that_are_written_anew_stay_locked() {
    let slow = Entry { delay_ms: Some(2_000), ..Entry::status(200) };
    let server = Rows::start(Entry::status(200), [(3, vec![slow])].into()).await;
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", posts(&server, 1..4));
    let out = folder.file("out.jsonl");
    let journal = abide::bulk::Bulk::new(abide::Client::new()).journal(folder.file("out.jsonl.journal"));
    let child = job::command("", &[&jobs, Path::new("-o"), &out]).spawn().unwrap();
    until("requests", || server.book().arrivals.len() == 3).await;
    // The journal was replaced when it was bound to its input.
    let run = journal.resume().run(futures_util::stream::empty());
    let why = run.error().map(ToString::to_string).unwrap_or_default();
    assert!(why.contains("out.jsonl.journal: another run is writing it"), "{why}");
    drop(run);
    assert_eq!(end_of(child).await.status.code(), Some(0));
}

#[cfg(unix)]
#[tokio::test]
async fn what_is_no_file_is_shared() {
    let slow = Entry { delay_ms: Some(100), ..Entry::status(200) };
    let server = Rows::start(slow, [].into()).await;
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", posts(&server, 0..20));
    for out in ["/dev/null", "-"] {
        let paths = [jobs.as_path(), Path::new("-o"), Path::new(out)];
        let before = server.book().arrivals.len();
        let (first, second) = tokio::join!(job::run("", &paths), job::run("", &paths));
        assert_eq!(
            (first.status.code(), second.status.code()),
            (Some(0), Some(0)),
            "{}{}",
            said(&first),
            said(&second)
        );
        assert_eq!(server.book().arrivals.len() - before, 40);
    }
}

/// Whoever sends failed rows again is told first what that may do twice.
#[tokio::test]
async fn rows_that_may_be_executed_twice_are_counted_before_they_are_sent() {
    let failing = |status| vec![Entry::status(status), Entry::status(200)];
    let rows = [(1, failing(500)), (2, failing(503)), (3, failing(404)), (4, failing(500)), (5, failing(500))];
    let server = Rows::start(Entry::status(200), rows.into()).await;
    let folder = Folder::new();
    let get = format!("{{\"url\":\"{}\"}}\n", server.url(4));
    let keyed = format!("{{\"method\":\"POST\",\"url\":\"{}\",\"idempotency_key\":\"k\"}}\n", server.url(5));
    let jobs = folder.write("jobs.jsonl", [&posts(&server, 0..4), &get, &keyed].map(String::as_str).concat());
    let out = folder.file("out.jsonl");
    let paths = [jobs.as_path(), Path::new("-o"), &out];
    let told = "2 rows that failed may have been executed, have no key, and are not safe to repeat";
    assert_eq!(job::run("--max-attempts 1", &paths).await.status.code(), Some(1));
    let results = folder.results("out.jsonl");
    let marked: Vec<u64> =
        results.iter().filter(|(_, result)| result["maybe_executed"] == true).map(|(line, _)| *line).collect();
    assert_eq!(marked, [2, 3]);
    // One that sends none of them says nothing of them.
    assert!(!said(&job::run("--resume", &paths).await).contains(told));
    let dry = job::run("--retry-failed --dry-run", &paths).await;
    assert!(said(&dry).contains(told), "{}", said(&dry));
    let again = job::run("--retry-failed", &paths).await;
    assert_eq!(again.status.code(), Some(0), "{}", said(&again));
    assert!(said(&again).contains(&format!("{told}: they are sent again")), "{}", said(&again));
    // Now they are done.
    assert!(!said(&job::run("--retry-failed", &paths).await).contains("may have been executed"));
}

/// Killed before its first result a run has nothing in OUT, and all in its journal.
#[cfg(unix)]
#[tokio::test]
async fn what_a_killed_run_left_is_not_started_anew() {
    let slow = Entry { delay_ms: Some(30_000), ..Entry::status(200) };
    let server = Rows::start(slow, [].into()).await;
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", posts(&server, 0..4));
    let out = folder.file("out.jsonl");
    let paths = [jobs.as_path(), Path::new("-o"), &out];
    let mut first = job::command("", &paths).spawn().unwrap();
    until("requests", || server.book().arrivals.len() == 4).await;
    first.kill().await.unwrap();
    let sent = server.book().arrivals.len();
    for out_is_there in [true, false] {
        if !out_is_there {
            std::fs::remove_file(&out).unwrap();
        }
        let again = job::run("--idempotency-key auto", &paths).await;
        assert_eq!(again.status.code(), Some(2), "{}", said(&again));
        assert!(said(&again).contains("out.jsonl.journal: a run was interrupted"), "{}", said(&again));
    }
    assert_eq!(server.book().arrivals.len(), sent);
    let other = folder.write("out.jsonl.journal", "mine\n");
    assert_eq!(job::run("", &paths).await.status.code(), Some(2));
    assert_eq!(std::fs::read_to_string(other).unwrap(), "mine\n");
}

#[tokio::test]
async fn what_is_read_is_not_written_over() {
    let server = Rows::start(Entry::status(200), [].into()).await;
    let folder = Folder::new();
    let text = posts(&server, 1..4);
    let jobs = folder.write("jobs.jsonl", &text);
    let out = folder.file("out.jsonl");
    let [o, report, summary] = ["-o", "--report", "--summary"].map(Path::new);
    for paths in [
        &[jobs.as_path(), o, &jobs][..],
        &[&jobs, o, &out, report, &jobs],
        &[&jobs, o, &out, report, &out],
        &[&jobs, o, &out, summary, &folder.file("out.jsonl.journal")],
        &[&jobs, o, &out, summary, &folder.file("../").join(folder.file("").file_name().unwrap()).join("jobs.jsonl")],
    ] {
        for options in ["", "--resume"] {
            let output = job::run(options, paths).await;
            assert_eq!(output.status.code(), Some(2), "{paths:?}: {}", said(&output));
            assert!(said(&output).contains("are the same file"), "{}", said(&output));
        }
    }
    assert_eq!((folder.read("jobs.jsonl"), server.book().arrivals.len()), (text, 0));
}

/// A link stays one, and its file has one journal.
#[cfg(unix)]
#[tokio::test]
async fn results_behind_a_link_are_the_files() {
    let server = Rows::start(Entry::status(404), [].into()).await;
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", posts(&server, 1..4));
    let (real, link) = (folder.write("real.jsonl", ""), folder.file("link.jsonl"));
    std::os::unix::fs::symlink(&real, &link).unwrap();
    for options in ["", "--retry-failed", "--retry-failed"] {
        let output = job::run(options, &[&jobs, Path::new("-o"), &link]).await;
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    }
    assert!(link.is_symlink() && folder.file("real.jsonl.journal").exists());
    assert!(!folder.file("link.jsonl.journal").exists());
    assert_eq!(folder.results("real.jsonl").len(), 3);
}

/// The key that a row's own header names is the row's.
#[tokio::test]
async fn a_key_in_a_rows_headers_is_its_key() {
    let server = Rows::start(Entry::status(200), [].into()).await;
    let folder = Folder::new();
    let row = |n: u64| {
        let url = server.url(n);
        format!("{{\"method\":\"POST\",\"url\":\"{url}\",\"headers\":{{\"Idempotency-Key\":\"mine-{n}\"}}}}\n")
    };
    let jobs = folder.write("jobs.jsonl", [row(1), row(2)].concat());
    let out = folder.file("out.jsonl");
    let output = job::run("--idempotency-key auto", &[&jobs, Path::new("-o"), &out]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let results = folder.results("out.jsonl");
    let keys: Vec<&str> = results.values().filter_map(|result| result["idempotency_key"].as_str()).collect();
    assert_eq!(keys, ["mine-1", "mine-2"]);
    let book = server.book();
    assert_eq!(book.keys[&1].iter().map(Option::as_deref).collect::<Vec<_>>(), [Some("mine-1")]);
}

/// A wait that is longer than both the deadline and `--max-server-wait` is told with the answer that asked for it.
#[tokio::test]
async fn an_answer_that_asks_for_too_long_a_wait_is_the_result() {
    let mut told = Entry::with_body(429, "later");
    told.headers.push(("Retry-After".into(), "300".into()));
    let server = Rows::start(told, [].into()).await;
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", format!("{{\"url\":\"{}\"}}\n", server.url(1)));
    let out = folder.file("out.jsonl");
    for options in ["", "--deadline 5s"] {
        let _ = std::fs::remove_file(&out);
        let output = job::run(options, &[&jobs, Path::new("-o"), &out]).await;
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let result = &folder.results("out.jsonl")[&1];
        assert_eq!((&result["status"], &result["headers"]["retry-after"]), (&429.into(), &"300".into()), "{result}");
        assert_eq!(result["error"]["kind"], "throttled");
    }
}

/// A password in a URL that stands where a file should is in no message.
#[tokio::test]
async fn a_store_in_the_place_of_a_file_is_named_without_its_password() {
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", "http://127.0.0.1:9/\n");
    let store = Path::new("redis://user:hunter2@store/stream");
    for paths in [&[store][..], &[&jobs, Path::new("-o"), store]] {
        let output = job::run("", paths).await;
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        let why = said(&output);
        assert!(!why.contains("hunter2") && (why.contains("--from") || why.contains("not to a store")), "{why}");
    }
    let zero = job::run("--deadline 0s", &[&jobs]).await;
    assert!(zero.status.code() == Some(2) && said(&zero).contains("--deadline 0s"), "{}", said(&zero));
}

/// Without its journal a run knows its results, and not what was on its way.
#[tokio::test]
async fn a_journal_that_is_lost_is_told_of() {
    let server = Rows::start(Entry::status(200), [].into()).await;
    let folder = Folder::new();
    let jobs = folder.write("jobs.jsonl", posts(&server, 1..4));
    let out = folder.file("out.jsonl");
    let paths = [jobs.as_path(), Path::new("-o"), &out];
    assert!(!said(&job::run("", &paths).await).contains("journal"));
    assert!(!said(&job::run("--resume", &paths).await).contains("journal"));
    std::fs::remove_file(folder.file("out.jsonl.journal")).unwrap();
    let output = job::run("--resume", &paths).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("out.jsonl.journal: it is not there, or has no head"), "{}", said(&output));
    assert_eq!(server.book().arrivals.len(), 3);
}
