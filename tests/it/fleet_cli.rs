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
    let told = || -> Vec<String> {
        let said = folder.read("said");
        said.lines().filter(|line| line.contains("the fleet's store is")).map(str::to_owned).collect()
    };
    let is_last = |part: &str| told().last().is_some_and(|line| line.contains(part));
    until("rows are done", 60 * SECOND, || folder.lines("out") > 20).await;
    let cases: [(&[&str], &[&str], &str); 3] = [
        (&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"], "(READONLY)"),
        (&["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"], "(OOM)"),
        (&["ACL", "SETUSER", "default", "-evalsha"], &["ACL", "SETUSER", "default", "+evalsha"], "(NOPERM)"),
    ];
    for (words, undo, code) in cases {
        redis.cli(words);
        until(code, 30 * SECOND, || told().iter().any(|line| line.contains(code))).await;
        redis.cli(undo);
        until("it is back", 30 * SECOND, || is_last("is back")).await;
    }
    // A connection that is cut, and then another cause.
    redis.cli(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let known = redis::Client::open(redis.url().replace("//", "//:s3cret@")).unwrap();
    let kill: redis::RedisResult<u32> =
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut known.get_connection().unwrap());
    kill.unwrap();
    until("why", 30 * SECOND, || is_last("(NOAUTH)")).await;
    job::signal(&child, "INT").await;
    let output = end_of(child).await;
    let said = folder.read("said");
    println!("{said}");
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
    // Each cause of a loss once; on a busy machine there may be a loss more.
    let told = told();
    for loss in told.split(|line| line.contains("is back")) {
        let causes: Vec<&str> = loss.iter().map(|line| line.rsplit(": ").next().unwrap()).collect();
        let is_first = |line: &String| line.contains("store is away: going on by");
        assert!(loss.first().is_some_and(is_first) && !loss[1..].iter().any(is_first), "{said}");
        assert!((1..causes.len()).all(|number| !causes[..number].contains(&causes[number])), "{said}");
    }
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
