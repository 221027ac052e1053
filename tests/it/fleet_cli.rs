//! The command line and its store: what is said when it goes and comes, and signals before it is there.

use std::{fs::File, path::Path};

use tokio::net::TcpListener;

use crate::support::{
    fleet::{SECOND, until},
    job::{self, Folder, said},
    redis::{Redis, skip},
    rows::Rows,
    script::Entry,
    stage::{end_of, push},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_says_why_its_store_is_away() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let (rows, folder) = (Rows::start(Entry::status(200), [].into()).await, Folder::new());
    let jobs = folder.write("jobs", (0..5_000).map(|n| rows.url(n) + "\n").collect::<String>());
    let mut command =
        job::command("--limit 50/s --fleet", &[Path::new(&redis.url()), Path::new("-o"), &folder.file("out"), &jobs]);
    let child = command.stderr(File::create(folder.file("said")).unwrap()).spawn().unwrap();
    let count = |part: &str| folder.read("said").lines().filter(|line| line.contains(part)).count();
    until("rows are done", 60 * SECOND, || folder.lines("out") > 20).await;
    for (number, (words, undo, code)) in [
        (["REPLICAOF", "127.0.0.1", "1"].as_slice(), ["REPLICAOF", "NO", "ONE"].as_slice(), "(READONLY)"),
        (&["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"], "(OOM)"),
        (&["ACL", "SETUSER", "default", "-evalsha"], &["ACL", "SETUSER", "default", "+evalsha"], "(NOPERM)"),
    ]
    .into_iter()
    .enumerate()
    {
        redis.cli(words);
        until(code, 30 * SECOND, || count(code) == 1).await;
        redis.cli(undo);
        until("it is back", 30 * SECOND, || count("store is back") == number + 1).await;
        assert_eq!(count("store is away"), number + 1, "{}", folder.read("said"));
    }
    // One cause, and then another.
    redis.cli(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let known = redis::Client::open(redis.url().replace("//", "//:s3cret@")).unwrap();
    let kill: redis::RedisResult<u32> =
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut known.get_connection().unwrap());
    kill.unwrap();
    until("why", 30 * SECOND, || count("(NOAUTH)") == 1).await;
    job::signal(&child, "INT").await;
    let output = end_of(child).await;
    assert_eq!(output.status.code(), Some(130), "{}", folder.read("said"));
    println!("{}", folder.read("said"));
    assert!(!folder.read("said").contains("s3cret"));
}

/// The store takes the connection and says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_connecting_ends_a_command_at_once() {
    let folder = Folder::new();
    let jobs = folder.write("jobs", "http://127.0.0.1:1/\n");
    let file = jobs.to_string_lossy().into_owned();
    for signal in ["INT", "TERM"] {
        for number in 0..3 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("redis://{}", listener.local_addr().unwrap());
            let mut command = match number {
                0 => job::command(&format!("--fleet {url}"), &[&jobs]),
                1 => job::command(&format!("--from {url}/rows --group g"), &[]),
                _ => push(&[&file, "--to", &format!("{url}/rows")]),
            };
            let child = command.spawn().unwrap();
            let _silent = listener.accept().await.unwrap();
            job::signal(&child, signal).await;
            // Else it ends with 2, when it gives up.
            let output = end_of(child).await;
            assert_eq!(output.status.code(), Some(130), "{signal} {number}: {}", said(&output));
        }
    }
}
