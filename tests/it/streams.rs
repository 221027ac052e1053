//! `abide run --from`: one stream of rows for many workers, which may die, and a store that may go away.

use std::{collections::BTreeSet, path::Path, time::Duration};

use abide::testing::Server;
use serde_json::Value;
use tokio::process::Child;

use crate::support::{
    clock,
    job::{self, said},
    redis::{Redis, skip},
    rows::Rows,
    script::Entry,
    stage::{Stage, charges, end_of, until},
};

#[tokio::test(flavor = "multi_thread")]
async fn eight_workers_of_which_two_are_killed_charge_each_row_once() {
    if skip() {
        return;
    }
    const ROWS: usize = 600;
    let latency = Duration::ZERO..Duration::from_millis(40);
    let server = Server::builder().latency(latency).fault_rate(0.05).start().await.unwrap();
    let stage = Stage::on(Redis::standalone().await);
    let pushed = stage.push(charges(&server, ROWS)).await;
    assert_eq!(pushed.status.code(), Some(0), "{}", said(&pushed));
    let options = "-v --idempotency-key auto --concurrency 8 --base 10ms --cap 50ms --max-attempts 10 \
                   --attempt-timeout 1s --claim-after 3s";
    let outs: Vec<String> = (0..8).map(|n| format!("out-{n}.jsonl")).collect();
    let mut workers: Vec<Child> = outs.iter().map(|out| stage.worker(out, options).spawn().unwrap()).collect();
    let written = || outs.iter().map(|out| stage.folder.lines(out)).sum::<usize>();
    for share in [ROWS / 8, ROWS / 3] {
        until("results", || written() > share).await;
        workers.swap_remove(rand::random_range(0..workers.len())).kill().await.unwrap();
    }
    for worker in workers {
        let output = end_of(worker).await;
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}", said(&output));
    }
    let (results, charges) = (stage.results(&outs), server.charges());
    assert_eq!((results.len(), charges.bare, charges.total()), (ROWS, 0, ROWS as u64), "rows and charges differ");
    assert!(charges.keyed.values().all(|executions| *executions == 1), "a charge was executed twice");
    for (entry, results) in &results {
        // Two, if its worker was killed between the result and the acknowledgement.
        for result in results {
            let key = result["idempotency_key"].as_str().unwrap();
            // A 500 that the server keeps for its key is an answer too.
            let kept = result["headers"]["idempotent-replayed"] == "true";
            assert!((result["ok"] == true || kept) && charges.of(key) == 1, "{entry}: {result}");
        }
    }
    assert_eq!(stage.open(), 0);
}

#[tokio::test]
async fn rows_go_from_a_file_through_a_stream_to_results() {
    if skip() {
        return;
    }
    let server = Rows::start(Entry::status(200), [(3, vec![Entry::status(404)])].into()).await;
    let stage = Stage::on(Redis::standalone().await);
    let row = format!("{{\"id\":\"mine\",\"url\":\"{}\",\"meta\":[1]}}\n", server.url(1));
    let bad = "nonsense\n\n{\"url\":\"http://h.example/\",\"body_file\":\"/etc/hostname\"}\n";
    let pushed = stage.push([&row, bad, &server.url(2), "\n", &server.url(3)].concat()).await;
    assert_eq!(pushed.status.code(), Some(1), "{}", said(&pushed));
    for line in ["line 2: neither", "line 4: body_file", "pushed 3 rows, left out 2 lines"] {
        assert!(said(&pushed).contains(line), "{}", said(&pushed));
    }
    // What others put there.
    for words in [["row", "nonsense"], ["row", "{\"url\":"], ["url", "http://h.example/"]] {
        stage.redis.cli(&["XADD", "jobs", "*", words[0], words[1]]);
    }
    let summary = stage.folder.file("summary.json");
    let worker = stage.worker("out.jsonl", &format!("-v --summary {}", summary.display())).output().await.unwrap();
    assert_eq!(worker.status.code(), Some(1), "{}", said(&worker));
    let results = stage.folder.results("out.jsonl");
    let ids: BTreeSet<&str> = results.values().map(|result| result["id"].as_str().unwrap()).collect();
    let own = |result: &&Value| result["id"] == result["entry"];
    assert!(ids.contains("mine") && results.values().filter(own).count() == 5, "{ids:?}");
    let kinds = |kind: &str| results.values().filter(|result| result["error"]["kind"] == kind).count();
    assert_eq!((results.len(), kinds("invalid"), server.book().arrivals.len()), (6, 3, 3));
    assert!(said(&worker).contains("no field `row`"), "{}", said(&worker));
    let summary: Value = serde_json::from_str(&stage.folder.read("summary.json")).unwrap();
    let sums = ["ok", "failed", "unknown"].map(|name| summary[name].as_u64().unwrap());
    assert_eq!((sums, stage.open(), stage.consumers()), ([2, 4, 0], 0, 0));
    // Once more: nothing is left to do, and what is there stays.
    let worker = stage.worker("out.jsonl", "").output().await.unwrap();
    assert_eq!(worker.status.code(), Some(1), "{}", said(&worker));
    assert_eq!((stage.folder.results("out.jsonl").len(), server.book().arrivals.len()), (6, 3));
    // Another group begins at the start.
    let from = format!("--from {} --group other", stage.url());
    let worker = job::run(&from, &[]).await;
    assert_eq!(worker.status.code(), Some(1), "{}", said(&worker));
    assert_eq!((String::from_utf8_lossy(&worker.stdout).lines().count(), server.book().arrivals.len()), (6, 6));
}

#[tokio::test]
async fn clusters_and_sentinels_hold_streams_too() {
    if skip() {
        return;
    }
    let server = Server::builder().start().await.unwrap();
    for redis in [Redis::cluster(3).await, Redis::sentinel().await] {
        let stage = Stage::on(redis);
        let before = server.charges().total();
        let pushed = stage.push(charges(&server, 300)).await;
        assert_eq!(pushed.status.code(), Some(0), "{}", said(&pushed));
        let worker = stage.worker("out.jsonl", "--idempotency-key auto").output().await.unwrap();
        assert_eq!(worker.status.code(), Some(0), "{}", said(&worker));
        assert_eq!((stage.folder.results("out.jsonl").len(), stage.open()), (300, 0));
        assert_eq!(server.charges().total() - before, 300);
    }
    assert!(server.charges().keyed.values().all(|executions| *executions == 1));
}

#[tokio::test]
async fn a_row_that_may_not_be_repeated_is_named_and_set_aside_when_its_worker_dies() {
    if skip() {
        return;
    }
    let slow = Entry { delay_ms: Some(120_000), ..Entry::status(200) };
    let server = Rows::start(
        Entry::status(200),
        [(1, vec![slow.clone(), Entry::status(200)]), (2, vec![slow, Entry::status(200)])].into(),
    )
    .await;
    let stage = Stage::on(Redis::standalone().await);
    let post = |n, key| format!("{{\"method\":\"POST\",\"url\":\"{}\"{key}}}\n", server.url(n));
    let rows = [post(1, ""), post(2, ",\"idempotency_key\":\"k2\""), post(3, ""), format!("{}\n", server.url(4))];
    assert_eq!(stage.push(rows.concat()).await.status.code(), Some(0));
    // Two are on the wire, two are read and not sent.
    let mut worker = stage.worker("one.jsonl", "--claim-after 1s --concurrency 2").spawn().unwrap();
    until("two requests", || server.book().arrivals.len() == 2 && stage.open() == 4).await;
    worker.kill().await.unwrap();
    // The server is quick by now.
    let output = stage.worker("two.jsonl", "--claim-after 1s").output().await.unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("3 ok, 0 failed, 1 unknown"), "{}", said(&output));
    let named = said(&output).lines().find(|line| line.contains("unknown: a worker that is gone")).unwrap().to_owned();
    let keys = server.book().keys.clone();
    assert_eq!((keys[&1].len(), &keys[&2]), (1, &vec![Some("k2".to_owned()); 2]), "{named}");
    assert_eq!((keys[&3].len(), keys[&4].len()), (1, 1));
    assert_eq!((stage.folder.results("two.jsonl").len(), stage.open(), stage.consumers()), (3, 0, 1));
    // Set aside as it was, and where it was; from there it is sent when somebody says so.
    let aside = stage.redis.cli(&["XRANGE", "jobs:unknown", "-", "+"]);
    let entry = aside.lines().skip_while(|line| *line != "entry").nth(1).unwrap().to_owned();
    assert!(aside.contains(rows[0].trim()) && named.contains(&entry), "{aside} {named}");
    let from = format!("--from {}:unknown --group g", stage.url());
    let output = job::run(&from, &[]).await;
    assert_eq!((output.status.code(), server.book().keys[&1].len()), (Some(0), 2), "{}", said(&output));
}

#[tokio::test]
async fn an_interrupted_worker_hands_back_what_it_did_not_send() {
    if skip() {
        return;
    }
    let slow = Entry { delay_ms: Some(300), ..Entry::status(200) };
    let server = Rows::start(slow, [].into()).await;
    let stage = Stage::on(Redis::standalone().await);
    let post = |n| format!("{{\"method\":\"POST\",\"url\":\"{}\"}}\n", server.url(n));
    assert_eq!(stage.push((0..30).map(post).collect::<String>()).await.status.code(), Some(0));
    let worker = stage.worker("one.jsonl", "--concurrency 2").spawn().unwrap();
    until("requests", || server.book().arrivals.len() > 4).await;
    job::signal(&worker, "INT").await;
    let output = end_of(worker).await;
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    let sent = server.book().arrivals.len();
    assert_eq!(stage.folder.results("one.jsonl").len(), sent, "{}", said(&output));
    // What is left is there for others at once, as if it had never been read: they may send rows without a key.
    let output = stage.worker("two.jsonl", "").output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!((stage.folder.results("two.jsonl").len(), server.book().arrivals.len()), (30 - sent, 30));
    assert!(server.book().keys.values().all(|keys| keys.len() == 1));
    assert_eq!((stage.open(), stage.consumers()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_worker_that_lives_is_not_robbed() {
    if skip() {
        return;
    }
    let slow = Entry { delay_ms: Some(13_000), ..Entry::status(200) };
    let busy = Entry { headers: vec![("retry-after".into(), "13".into())], ..Entry::status(429) };
    let rows = [(1, vec![slow]), (2, vec![busy, Entry::status(200)])];
    let server = Rows::start(Entry::status(200), rows.into()).await;
    let stage = Stage::on(Redis::standalone().await);
    let post = |n| format!("{{\"method\":\"POST\",\"url\":\"{}\"}}\n", server.url(n));
    assert_eq!(stage.push((1..3).map(post).collect::<String>()).await.status.code(), Some(0));
    let options = "--claim-after 6s --max-attempts 1 --idempotency-key auto";
    let slow = stage.worker("slow.jsonl", options).spawn().unwrap();
    until("two requests", || server.book().arrivals.len() == 2).await;
    // It waits until all is done, for the slow one might die.
    let idle = stage.worker("idle.jsonl", options).spawn().unwrap();
    let (slow, idle) = (end_of(slow).await, end_of(idle).await);
    assert_eq!((slow.status.code(), idle.status.code()), (Some(0), Some(0)), "{}{}", said(&slow), said(&idle));
    assert_eq!((stage.folder.results("slow.jsonl").len(), stage.folder.results("idle.jsonl").len()), (2, 0));
    let keys = &server.book().keys;
    assert_eq!((keys[&1].len(), keys[&2].len()), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_comes_back_loses_nothing() {
    if skip() {
        return;
    }
    const ROWS: usize = 400;
    let latency = Duration::from_millis(20)..Duration::from_millis(60);
    let server = Server::builder().latency(latency).start().await.unwrap();
    let mut stage = Stage::on(Redis::durable().await);
    assert_eq!(stage.push(charges(&server, ROWS)).await.status.code(), Some(0));
    let options = "--idempotency-key auto --concurrency 8 --claim-after 15s";
    let outs: Vec<String> = (0..2).map(|n| format!("out-{n}.jsonl")).collect();
    let workers: Vec<Child> = outs.iter().map(|out| stage.worker(out, options).spawn().unwrap()).collect();
    for share in [ROWS / 8, ROWS / 2] {
        until("results", || outs.iter().map(|out| stage.folder.lines(out)).sum::<usize>() > share).await;
        stage.redis.restart(clock::ms(700)).await;
    }
    for worker in workers {
        let output = end_of(worker).await;
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let said = said(&output);
        assert!(said.contains("is away") && said.contains("is back"), "{said}");
    }
    let (results, charges) = (stage.results(&outs), server.charges());
    assert_eq!((results.len(), charges.total(), stage.open()), (ROWS, ROWS as u64, 0));
    assert!(results.values().all(|results| results.len() == 1), "a row was answered twice");
    assert!(charges.keyed.values().all(|executions| *executions == 1), "a charge was executed twice");
}

#[tokio::test]
async fn what_has_a_result_is_acknowledged_and_not_sent_again() {
    if skip() {
        return;
    }
    let slow = Entry { delay_ms: Some(500), ..Entry::status(200) };
    let server = Rows::start(slow, [].into()).await;
    let stage = Stage::on(Redis::standalone().await);
    let rows: String = (0..4).map(|n| format!("{}\n", server.url(n))).collect();
    assert_eq!(stage.push(&rows).await.status.code(), Some(0));
    let mut worker = stage.worker("out.jsonl", "").spawn().unwrap();
    until("requests", || server.book().arrivals.len() == 4).await;
    // The store hears nothing of the results.
    stage.redis.pause();
    until("results", || stage.folder.lines("out.jsonl") == 4).await;
    worker.kill().await.unwrap();
    stage.redis.resume();
    assert_eq!(stage.open(), 4);
    let output = stage.worker("out.jsonl", "").output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("4 ok"), "{}", said(&output));
    assert_eq!((stage.open(), server.book().arrivals.len(), stage.folder.results("out.jsonl").len()), (0, 4, 4));
    // Results of another input are not taken for those of this one.
    let file = stage.folder.write("file.jsonl", &rows);
    let other = stage.folder.file("other.jsonl");
    assert_eq!(job::run("", &[&file, Path::new("-o"), &other]).await.status.code(), Some(0));
    let output = stage.worker("other.jsonl", "").output().await.unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("another input"), "{}", said(&output));
}

#[tokio::test]
async fn a_worker_claims_what_it_can_send_soon() {
    if skip() {
        return;
    }
    let server = Server::builder().start().await.unwrap();
    let stage = Stage::on(Redis::standalone().await);
    assert_eq!(stage.push(charges(&server, 2000)).await.status.code(), Some(0));
    let mut worker = stage.worker("out.jsonl", "--limit 20/s").spawn().unwrap();
    for results in [10, 30, 50] {
        until("results", || stage.folder.lines("out.jsonl") > results).await;
        // A second's rows, a burst of them, and those on the wire.
        let open = stage.open();
        assert!(open <= 60, "{open} rows claimed");
    }
    worker.kill().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_follows_waits_for_more() {
    if skip() {
        return;
    }
    let server = Server::builder().start().await.unwrap();
    let stage = Stage::on(Redis::standalone().await);
    let worker = stage.worker("out.jsonl", "--follow --idempotency-key auto").spawn().unwrap();
    for rows in [5, 10] {
        assert_eq!(stage.push(charges(&server, 5)).await.status.code(), Some(0));
        until("results", || stage.folder.lines("out.jsonl") == rows).await;
    }
    job::signal(&worker, "TERM").await;
    let output = end_of(worker).await;
    assert_eq!((output.status.code(), stage.open(), stage.consumers()), (Some(130), 0, 0), "{}", said(&output));
    // A rule stops it as well, and what it leaves is there for others.
    let failing = Rows::start(Entry::status(500), [].into()).await;
    let rows: String = (0..500).map(|n| format!("{}\n", failing.url(n))).collect();
    assert_eq!(stage.push(rows).await.status.code(), Some(0));
    let options = "--stop-after 5 --max-attempts 1 --concurrency 2";
    let output = stage.worker("stopped.jsonl", options).output().await.unwrap();
    assert_eq!((output.status.code(), stage.consumers() < 2), (Some(3), true), "{}", said(&output));
    assert_eq!(stage.folder.results("stopped.jsonl").len(), failing.book().arrivals.len());
    assert!(failing.book().arrivals.len() < 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_frozen_does_no_harm() {
    if skip() {
        return;
    }
    let latency = Duration::from_millis(10)..Duration::from_millis(30);
    let server = Server::builder().latency(latency).start().await.unwrap();
    let stage = Stage::on(Redis::standalone().await);
    assert_eq!(stage.push(charges(&server, 300)).await.status.code(), Some(0));
    let options = "--idempotency-key auto --concurrency 8 --claim-after 1s";
    let frozen = stage.worker("frozen.jsonl", options).spawn().unwrap();
    until("results", || stage.folder.lines("frozen.jsonl") > 50).await;
    job::signal(&frozen, "STOP").await;
    let output = stage.worker("other.jsonl", options).output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(stage.open(), 0);
    job::signal(&frozen, "CONT").await;
    let output = end_of(frozen).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let results = stage.results(&["frozen.jsonl".into(), "other.jsonl".into()]);
    assert_eq!((results.len(), server.charges().total()), (300, 300));
    assert!(server.charges().keyed.values().all(|executions| *executions == 1), "a charge was executed twice");
}

#[tokio::test]
async fn a_row_that_ends_its_workers_is_set_aside() {
    if skip() {
        return;
    }
    let server = Server::builder().start().await.unwrap();
    let stage = Stage::on(Redis::standalone().await);
    assert_eq!(stage.push(charges(&server, 2)).await.status.code(), Some(0));
    stage.redis.cli(&["XGROUP", "CREATE", "jobs", "g", "0"]);
    stage.redis.cli(&["XREADGROUP", "GROUP", "g", "ghost", "STREAMS", "jobs", ">"]);
    let entries = stage.redis.cli(&["XPENDING", "jobs", "g", "-", "+", "2"]);
    for (entry, deliveries) in entries.lines().filter(|line| line.contains('-')).zip(["9", "10"]) {
        let claim = ["XCLAIM", "jobs", "g", "ghost", "0", entry, "IDLE", "90000", "RETRYCOUNT", deliveries];
        stage.redis.cli(&[&claim[..], &["JUSTID"]].concat());
    }
    let output = stage.worker("out.jsonl", "--idempotency-key auto").output().await.unwrap();
    assert_eq!((output.status.code(), server.charges().total(), stage.open()), (Some(1), 1, 0), "{}", said(&output));
    assert!(said(&output).contains("unknown: 10 workers had it"), "{}", said(&output));
    assert_eq!(stage.redis.cli(&["XLEN", "jobs:unknown"]), "1");
}

#[tokio::test]
async fn outcomes_that_were_dealt_with_are_acknowledged() {
    use abide::bulk::{Bulk, Source};
    use futures_util::StreamExt;

    if skip() {
        return;
    }
    let server = Server::builder().start().await.unwrap();
    let stage = Stage::on(Redis::standalone().await);
    assert_eq!(stage.push(charges(&server, 20)).await.status.code(), Some(0));
    let work = async |most: usize| {
        let mut rows = Source::redis(stage.url(), "g").connect().await.unwrap();
        let ending = rows.ending();
        let mut outcomes = Bulk::new(abide::Client::new()).concurrency(2).auto_idempotency_keys().run(rows);
        let mut seen = 0;
        while seen < most && outcomes.next().await.is_some() {
            seen += 1;
        }
        drop(outcomes);
        assert_eq!(ending.await, 0);
        seen
    };
    // The last one was given out, and nobody knows whether it was dealt with.
    assert_eq!(work(5).await, 5);
    assert_eq!(work(100).await, 16);
    assert_eq!((server.charges().total(), stage.open(), stage.consumers()), (20, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_answer_was_lost_are_found_again() {
    if skip() {
        return;
    }
    let server = Rows::start(Entry::status(200), [].into()).await;
    let stage = Stage::on(Redis::standalone().await);
    let post = |n| format!("{{\"method\":\"POST\",\"url\":\"{}\"}}\n", server.url(n));
    assert_eq!(stage.push((0..100).map(post).collect::<String>()).await.status.code(), Some(0));
    let worker = stage.worker("out.jsonl", "--limit 20/s").spawn().unwrap();
    until("results", || stage.folder.lines("out.jsonl") > 20).await;
    // It asks for rows, gives the store up after 10 s, and only then does the store read what it was asked.
    stage.redis.pause();
    clock::sleep(Duration::from_secs(12)).await;
    stage.redis.resume();
    let output = end_of(worker).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!((stage.folder.results("out.jsonl").len(), server.book().arrivals.len(), stage.open()), (100, 100, 0));
}

#[tokio::test]
async fn a_store_that_forgets_ends_the_run() {
    if skip() {
        return;
    }
    // Rows that the store is told of before they are sent, and others.
    for method in ["POST", "GET"] {
        let slow = Entry { delay_ms: Some(100), ..Entry::status(200) };
        let server = Rows::start(slow, [].into()).await;
        let mut stage = Stage::on(Redis::standalone().await);
        let row = |n| format!("{{\"method\":\"{method}\",\"url\":\"{}\"}}\n", server.url(n));
        assert_eq!(stage.push((0..200).map(row).collect::<String>()).await.status.code(), Some(0));
        let worker = stage.worker("out.jsonl", "--concurrency 2").spawn().unwrap();
        until("results", || stage.folder.lines("out.jsonl") > 5).await;
        stage.redis.restart(clock::ms(10)).await;
        let output = end_of(worker).await;
        assert_eq!(output.status.code(), Some(2), "{method}: {}", said(&output));
        assert!(said(&output).contains("the stream jobs or its group g is gone"), "{}", said(&output));
        // What was on the wire has its result.
        assert_eq!(stage.folder.lines("out.jsonl"), server.book().arrivals.len());
        assert!(server.book().arrivals.len() < 200);
    }
}

/// Rows that wait for the store to know of them hold up no end.
#[tokio::test]
async fn a_worker_is_stopped_while_the_store_is_away() {
    if skip() {
        return;
    }
    let server = Rows::start(Entry { delay_ms: Some(100), ..Entry::status(200) }, [].into()).await;
    let mut stage = Stage::on(Redis::standalone().await);
    let row = |n| format!("{{\"method\":\"POST\",\"url\":\"{}\"}}\n", server.url(n));
    assert_eq!(stage.push((0..200).map(row).collect::<String>()).await.status.code(), Some(0));
    let worker = stage.worker("out.jsonl", "--concurrency 2").spawn().unwrap();
    until("results", || stage.folder.lines("out.jsonl") > 5).await;
    stage.redis.kill();
    let mut sent = 0;
    until("a standstill", || {
        let arrived = server.book().arrivals.len();
        std::mem::replace(&mut sent, arrived) == arrived
    })
    .await;
    job::signal(&worker, "INT").await;
    let output = end_of(worker).await;
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert_eq!(stage.folder.lines("out.jsonl"), server.book().arrivals.len(), "what was on the wire has its result");
}
