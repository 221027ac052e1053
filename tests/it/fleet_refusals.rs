//! Stores that are there and of no use: that is an error of connect, which says why.

use abide::fleet::{Fleet, StoreLoss};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::support::{
    clock::{self, ms},
    redis::{Redis, skip},
};

/// Why there is no fleet, beside the name of the store.
async fn why(url: &str) -> String {
    let began = clock::now();
    let error = Fleet::redis(url).on_store_loss(StoreLoss::Closed).connect().await.expect_err(url);
    assert!(error.is_connect(), "{url}: {error:?}");
    let said = std::error::Error::source(&error).unwrap().to_string();
    println!("{said} (after {:?})", clock::now() - began);
    assert!(said.starts_with("the store redis") && !said.contains("s3cret"), "{url}: {said}");
    assert!(!said.contains(char::is_control) && said.len() < 400, "{said:?}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_the_script_is_an_error_at_connect() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let (url, host) = (redis.url(), redis.url().trim_start_matches("redis://").to_owned());
    for (words, undo, code) in [
        (["REPLICAOF", "127.0.0.1", "1"].as_slice(), ["REPLICAOF", "NO", "ONE"].as_slice(), "READONLY"),
        (&["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"], "OOM"),
        (
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
            "NOREPLICAS",
        ),
    ] {
        redis.cli(words);
        let said = why(&url).await;
        assert!(said.contains(&format!("({code})")) && said.contains(": it"), "{said}");
        redis.cli(undo);
        Fleet::redis(&url).connect().await.unwrap();
    }
    let user = |name: &str, rules: &[&str]| {
        redis.cli(&[&["ACL", "SETUSER", name, "on", ">s3cret"], rules].concat());
        format!("redis://{name}:s3cret@{host}")
    };
    for rules in [["~*", "+@all", "-evalsha"], ["~*", "+@all", "-zadd"], ["resetkeys", "~other:*", "+@all"]] {
        let said = why(&user("some", &rules)).await;
        assert!(said.contains("(NOPERM)") && said.contains("+evalsha"), "{said}");
    }
    // What is said to be enough is.
    let rules = "~abide:* +evalsha +eval +ping +time +get +set +pexpire +zadd +zcard +zcount +zremrangebyscore";
    let url = user("enough", &rules.split(' ').collect::<Vec<_>>());
    Fleet::redis(&url).connect().await.unwrap();
    let said = why(&format!("{url}/3")).await;
    assert!(said.contains("+select"), "{said}");
    Fleet::redis(user("enough", &["+select"]) + "/3").connect().await.unwrap();
    let cluster = Redis::cluster(3).await;
    let words: Vec<&str> =
        ["ACL", "SETUSER", "enough", "on", ">s3cret", "+cluster"].into_iter().chain(rules.split(' ')).collect();
    cluster.cli_each(&words);
    Fleet::redis(cluster.url().replace("//", "//enough:s3cret@")).connect().await.unwrap();
    let url = redis.url();
    let said = why(&format!("redis://some:s3cret-2@{host}")).await;
    assert!(said.contains("password"), "{said}");
    redis.cli(&["CONFIG", "SET", "requirepass", "s3cret"]);
    for url in [url.clone(), format!("{url}/3")] {
        let said = why(&url).await;
        assert!(said.contains("password") && said.contains("(NOAUTH)"), "{said}");
    }
}

/// What was tried out leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_connects_leaves_no_key() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let fleet = Fleet::redis(redis.url()).connect().await.unwrap();
    let asked = redis.cli(&["INFO", "commandstats"]);
    assert!(asked.contains("cmdstat_evalsha"), "the script was tried: {asked}");
    clock::sleep(ms(100)).await;
    assert!(redis.keys().is_empty(), "{:?}", redis.keys());
    assert!(!fleet.is_lost() && fleet.members() == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_of_the_wrong_kind_is_told() {
    if skip() {
        return;
    }
    let (redis, tls) = Redis::with_tls().await;
    let (cluster, sentinel) = (Redis::cluster(3).await, Redis::sentinel().await);
    let (port, watch) = (redis.ports()[0], sentinel.url().replace("/main", ""));
    let nodes = cluster.ports();
    for (url, part) in [
        (format!("rediss://127.0.0.1:{port}"), "speaks without TLS"),
        (format!("redis://127.0.0.1:{tls}"), "speaks TLS"),
        (format!("redis+cluster://127.0.0.1:{tls}"), "speaks TLS"),
        (format!("rediss+sentinel://127.0.0.1:{port}/main"), "speaks without TLS"),
        (format!("rediss://127.0.0.1:{tls}"), "certificate"),
        (format!("redis+cluster://127.0.0.1:{port}"), "is no cluster"),
        (format!("redis://127.0.0.1:{port}/99"), "no such database"),
        (format!("redis://127.0.0.1:{}", nodes[0]), "redis+cluster://"),
        (format!("redis://127.0.0.1:{}/1", nodes[1]), "no such database"),
        (format!("{watch}/nobody"), "know no master"),
        (format!("{watch}/main/99"), "no such database"),
        (format!("redis+sentinel://127.0.0.1:{port}/main"), "is no sentinel"),
        (watch.replace("+sentinel", ""), "is a sentinel"),
    ] {
        let said = why(&url).await;
        assert!(said.contains(part), "{url}: {said}");
    }
    // A master that is down.
    sentinel.cli(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let said = why(&sentinel.url()).await;
    assert!(said.contains("password"), "{said}");
}

/// Answers everything with an error that a terminal would obey.
async fn evil(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut asked = [0; 4096];
            while let Ok(length) = stream.read(&mut asked).await {
                // As many answers as there were commands.
                let commands = asked[..length].iter().filter(|byte| **byte == b'*').count().max(1);
                let answers = "-E\u{1b}[2J\u{9b}VIL s3cret \u{7}words\r\n".repeat(commands);
                if length == 0 || stream.write_all(answers.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_says_is_not_repeated() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap();
    tokio::spawn(evil(listener));
    for url in [
        format!("redis://{host}"),
        format!("redis://me:s3cret@{host}/3"),
        format!("redis+cluster://{host}"),
        format!("redis+sentinel://{host}/main"),
    ] {
        let said = why(&url).await;
        assert!(!said.contains("VIL") && !said.contains("words"), "{said}");
    }
}
