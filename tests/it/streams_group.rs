//! What a worker finds in its group: rows that others left, nothing, or no stream at all.

use crate::support::{
    job::{self, said},
    redis::{Redis, skip},
    rows::Rows,
    script::Entry,
    stage::{Stage, end_of, until},
};

/// A group in which `ghost` has all rows of the stream, and was last heard of long ago; its entries.
fn left_behind(stage: &Stage, rows: usize) -> Vec<String> {
    for n in 0..rows {
        stage.redis.cli(&["XADD", "jobs", &format!("1-{}", n + 1), "row", "http://127.0.0.1:1/"]);
    }
    stage.redis.cli(&["XGROUP", "CREATE", "jobs", "g", "0"]);
    stage.redis.cli(&["XREADGROUP", "GROUP", "g", "ghost", "COUNT", "100000", "STREAMS", "jobs", ">"]);
    let entries: Vec<String> = (0..rows).map(|n| format!("1-{}", n + 1)).collect();
    give(stage, "ghost", &entries);
    entries
}

fn give(stage: &Stage, consumer: &str, entries: &[String]) {
    let mut claim = vec!["XCLAIM", "jobs", "g", consumer, "0"];
    claim.extend(entries.iter().map(String::as_str));
    claim.extend(["IDLE", "90000", "JUSTID"]);
    stage.redis.cli(&claim);
}

/// Those that a worker has itself hide none of the dead behind them, and no look is a long one.
#[tokio::test]
async fn rows_of_a_dead_worker_are_found_behind_others() {
    if skip() {
        return;
    }
    let stage = Stage::on(Redis::standalone().await);
    let entries = left_behind(&stage, 3_001);
    give(&stage, "me", &entries[..3_000]);
    let script = include_str!("../../src/bulk/stream/take.lua");
    let (mut from, mut looks) = ("-".to_owned(), 0);
    let found = loop {
        looks += 1;
        assert!(looks < 10, "not found");
        let take = ["EVAL", script, "1", "jobs", "g", "me", "4", "60000", "abide-handed-back", &from];
        let answer = stage.redis.cli(&take);
        let mut lines = answer.lines().map(str::to_owned);
        from = lines.next().unwrap_or_default();
        if let Some(entry) = lines.next() {
            break entry;
        }
    };
    assert_eq!((found.as_str(), looks), ("1-3001", 4));
}

#[tokio::test]
async fn entries_that_are_gone_hide_no_row() {
    if skip() {
        return;
    }
    let server = Rows::start(Entry::status(200), [].into()).await;
    for owner in ["ghost", "abide-handed-back"] {
        let stage = Stage::on(Redis::standalone().await);
        let entries = left_behind(&stage, 3_000);
        stage.redis.cli(&["XADD", "jobs", "2-1", "row", &server.url(1)]);
        stage.redis.cli(&["XREADGROUP", "GROUP", "g", owner, "STREAMS", "jobs", ">"]);
        give(&stage, owner, &[&entries[..], &["2-1".to_owned()]].concat());
        stage.redis.cli(&["XTRIM", "jobs", "MAXLEN", "1"]);
        let output = end_of(stage.worker("out.jsonl", "").spawn().unwrap()).await;
        assert_eq!((output.status.code(), stage.open()), (Some(0), 0), "{owner}: {}", said(&output));
        assert_eq!(stage.folder.lines("out.jsonl"), 1);
        let stats = stage.redis.cli(&["INFO", "commandstats"]);
        let scripts = stats.lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls=")).unwrap();
        let scripts: u32 = scripts.split(',').next().unwrap().parse().unwrap();
        assert!(scripts < 50, "{owner}: {scripts} scripts");
    }
}

#[tokio::test]
async fn a_stream_that_is_not_there_is_an_error() {
    if skip() {
        return;
    }
    let stage = Stage::on(Redis::standalone().await);
    let output = end_of(stage.worker("out.jsonl", "").spawn().unwrap()).await;
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("there is no stream jobs"), "{}", said(&output));
    assert_eq!(stage.redis.cli(&["EXISTS", "jobs"]), "0");
    assert!(!stage.folder.file("out.jsonl").exists());
}

#[tokio::test]
async fn a_stream_with_nothing_left_is_said_to_have_nothing() {
    if skip() {
        return;
    }
    let stage = Stage::on(Redis::standalone().await);
    stage.redis.cli(&["XADD", "jobs", "1-1", "row", "http://127.0.0.1:1/"]);
    stage.redis.cli(&["XGROUP", "CREATE", "jobs", "g", "0"]);
    stage.redis.cli(&["XREADGROUP", "GROUP", "g", "other", "STREAMS", "jobs", ">"]);
    stage.redis.cli(&["XACK", "jobs", "g", "1-1"]);
    let nothing = "the stream jobs has nothing left for the group g";
    // All acknowledged, then empty.
    for _ in 0..2 {
        let output = end_of(stage.worker("out.jsonl", "").spawn().unwrap()).await;
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert_eq!(said(&output).matches(nothing).count(), 1, "{}", said(&output));
        stage.redis.cli(&["XDEL", "jobs", "1-1"]);
    }
}

#[tokio::test]
async fn a_worker_that_follows_says_that_there_is_no_stream_yet() {
    if skip() {
        return;
    }
    let server = Rows::start(Entry::status(200), [].into()).await;
    let stage = Stage::on(Redis::standalone().await);
    let worker = stage.worker("out.jsonl", "--follow").spawn().unwrap();
    until("a group", || stage.redis.cli(&["EXISTS", "jobs"]) == "1").await;
    assert_eq!(stage.push(server.url(1)).await.status.code(), Some(0));
    until("a result", || stage.folder.lines("out.jsonl") == 1).await;
    job::signal(&worker, "TERM").await;
    let output = end_of(worker).await;
    assert_eq!(said(&output).matches("there is no stream jobs yet: waiting").count(), 1, "{}", said(&output));
}

/// A store that lets one in and then refuses is away until it does what it is asked: two lines, not two a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_is_away_until_it_serves() {
    if skip() {
        return;
    }
    let slow = Entry { delay_ms: Some(300), ..Entry::status(200) };
    let server = Rows::start(slow, [].into()).await;
    let stage = Stage::on(Redis::standalone().await);
    let rows: String = (0..24).map(|n| format!("{{\"url\":\"{}\"}}\n", server.url(n))).collect();
    assert_eq!(stage.push(rows).await.status.code(), Some(0));
    let worker = stage.worker("out.jsonl", "--concurrency 2 --claim-after 15s").spawn().unwrap();
    until("results", || stage.folder.lines("out.jsonl") >= 2).await;
    stage.redis.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    stage.redis.cli(&["REPLICAOF", "NO", "ONE"]);
    let output = end_of(worker).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let said = said(&output);
    assert_eq!((said.matches("is away").count(), said.matches("is back").count()), (1, 1), "{said}");
    assert_eq!(stage.folder.results("out.jsonl").len(), 24);
}
