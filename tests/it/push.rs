//! `abide push`, and URLs of streams that make no sense.

use std::path::Path;

use crate::support::{
    clock,
    job::{self, said},
    redis::{Redis, skip},
    stage::{Stage, end_of, push, until},
};

#[tokio::test]
async fn a_push_adds_each_row_once_while_the_store_comes_and_goes() {
    if skip() {
        return;
    }
    const ROWS: usize = 40_000;
    let mut stage = Stage::on(Redis::durable().await);
    let rows: String = (0..ROWS).map(|n| format!("http://h.example/{n}\n")).collect();
    let file = stage.folder.write("jobs.jsonl", rows);
    let (file, url) = (file.to_string_lossy().into_owned(), stage.url());
    let child = push(&[&file, "--to", &url]).spawn().unwrap();
    for share in [1000, 10_000, 20_000] {
        until("rows", || stage.redis.cli(&["XLEN", "jobs"]).parse::<usize>().unwrap() > share).await;
        stage.redis.restart(clock::ms(50)).await;
    }
    let output = end_of(child).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains(&format!("pushed {ROWS} rows")), "{}", said(&output));
    let entries = stage.redis.cli(&["XRANGE", "jobs", "-", "+"]);
    let urls: Vec<&str> = entries.lines().filter(|line| line.starts_with("http")).collect();
    assert!(urls.iter().enumerate().all(|(n, url)| url.ends_with(&format!("/{n}"))), "out of order");
    assert_eq!(urls.len(), ROWS);
}

#[tokio::test]
async fn a_push_that_stops_says_where_to_go_on() {
    if skip() {
        return;
    }
    let stage = Stage::on(Redis::standalone().await);
    let rows: String = (1..=20_000).map(|n| format!("http://h.example/{n}\n")).collect();
    let file = stage.folder.write("jobs.jsonl", rows);
    let (file, url) = (file.to_string_lossy().into_owned(), stage.url());
    // A store that takes no more.
    let used: u64 = stage
        .redis
        .cli(&["INFO", "memory"])
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    stage.redis.cli(&["CONFIG", "SET", "maxmemory", &(used + 500_000).to_string()]);
    let child = push(&[&file, "--to", &url]).spawn().unwrap();
    let there = || stage.redis.cli(&["XLEN", "jobs"]).parse::<usize>().unwrap();
    let mut before = usize::MAX;
    while before != there() || before == 0 {
        before = there();
        clock::sleep(clock::ms(500)).await;
    }
    job::signal(&child, "INT").await;
    let output = end_of(child).await;
    let there = there();
    assert!(there < 20_000 && there > 0);
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    // It was refused: there is no doubt.
    assert!(!said(&output).contains("may be there"), "{}", said(&output));
    let on = format!("--from-line {} goes on", there + 1);
    assert!(said(&output).contains(&on) && said(&output).contains("maxmemory"), "{}", said(&output));
    stage.redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let output = push(&[&file, "--to", &url, "--from-line", &(there + 1).to_string()]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let entries = stage.redis.cli(&["XRANGE", "jobs", "-", "+"]);
    let urls = entries.lines().filter(|line| line.starts_with("http"));
    assert!(urls.zip(1..=20_000).filter(|(url, n)| url.ends_with(&format!("/{n}"))).count() == 20_000);
    let output = push(&["/nowhere", "--to", &url]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

#[tokio::test]
async fn what_makes_no_sense_is_said_without_secrets() {
    if skip() {
        return;
    }
    let stage = Stage::on(Redis::one(&["--save", "", "--requirepass", "s3cret-1"]).await);
    let port = stage.redis.ports()[0];
    let file = stage.folder.write("jobs.jsonl", "http://h.example/\n");
    let file = file.to_string_lossy();
    let host = format!("127.0.0.1:{port}");
    for (url, why) in [
        (format!("redis://me:s3cret-2@{host}/jobs"), "uthentication failed"),
        (format!("redis://{host}/jobs"), "Authentication required"),
        (format!("redis://:s3cret-1@{host}"), "names no stream"),
        (format!("redis://:s3cret-1@{host}/jobs?x"), "query"),
        (format!("redis://me:s3cret/1@{host}/jobs"), "a port is no number"),
        ("redis://:s3cret-1@127.0.0.1:1/jobs".into(), "127.0.0.1:1: "),
        ("http://s3cret-1/".into(), "expected redis[s]://"),
        (format!("redis://:s3cret-1@{host}/list"), "list is no stream"),
    ] {
        if url.ends_with("/list") {
            let client = redis::Client::open(format!("redis://:s3cret-1@{host}")).unwrap();
            let mut connection = client.get_connection().unwrap();
            redis::cmd("LPUSH").arg("list").arg(1).query::<()>(&mut connection).unwrap();
        }
        let worker = job::run(&format!("--from {url} --group g"), &[]).await;
        let pushed = push(&[&file, "--to", &url]).output().await.unwrap();
        for output in [worker, pushed] {
            assert_eq!(output.status.code(), Some(2), "{url}: {}", said(&output));
            assert!(said(&output).contains(why) && !said(&output).contains("s3cret"), "{url}: {}", said(&output));
        }
    }
}

#[tokio::test]
async fn a_login_stays_where_it_belongs() {
    if skip() {
        return;
    }
    let stage = Stage::on(Redis::one(&["--save", "", "--requirepass", "s3cret-1"]).await);
    let store = format!("redis://:s3cret-1@127.0.0.1:{}/jobs", stage.redis.ports()[0]);
    let url = format!("--from {store}");
    for options in [
        url.clone(),
        format!("{url} --group g --retry-failed -o x"),
        format!("{url} --group g --dry-run"),
        format!("{url} --group g --sample 1%"),
        format!("{url} --group g --resume"),
        format!("{url} --group g --claim-after 10ms"),
        "--group g".into(),
        "--claim-after 10s".into(),
    ] {
        let output = job::run(&options, &[]).await;
        assert_eq!(output.status.code(), Some(2), "{options}: {}", said(&output));
        assert!(!said(&output).contains("s3cret"), "{options}: {}", said(&output));
    }
    let both = job::run(&format!("{url} --group g"), &[Path::new("jobs.jsonl")]).await;
    assert_eq!(both.status.code(), Some(2), "{}", said(&both));
    // From the environment it stays out of the list of processes.
    let file = stage.folder.write("none.jsonl", "");
    let words = [&file.to_string_lossy(), "--to", "env:ABIDE_TEST_STORE"];
    let output = push(&words).env("ABIDE_TEST_STORE", &store).output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let output = push(&words).output().await.unwrap();
    assert!(said(&output).contains("no variable \"ABIDE_TEST_STORE\""), "{}", said(&output));
    // The journal and the report do not show it either.
    let out = stage.folder.file("out.jsonl");
    let report = stage.folder.file("report.html");
    let paths = [Path::new("-o"), &out, Path::new("--report"), &report];
    let output = job::run(&format!("{url} --group g"), &paths).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let texts = [stage.folder.read("out.jsonl.journal"), stage.folder.read("report.html"), said(&output)];
    assert!(texts.iter().all(|text| !text.contains("s3cret")), "{texts:?}");
}
