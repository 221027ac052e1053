//! Three processes' worth of clients, one limit, kept in Redis.
//!
//! `cargo run --example redis --features testing,redis`, with a redis-server on the path or REDIS_URL set.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "an example prints, and waits for a server")]

use std::{
    env, io,
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::Duration,
};

use abide::{
    Client, Quota,
    fleet::{Fleet, StoreLoss},
    testing::{Algorithm, Server},
};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (_own, url) = store().await?;
    let quota = Quota::per_second(50);
    let server = Server::builder().limit(quota.clone()).algorithm(Algorithm::SlidingLog).start().await?;
    let mut calls = JoinSet::new();
    for _ in 0..3 {
        // In each process:
        let fleet = Fleet::redis(&url).name("example").on_store_loss(StoreLoss::LiveShare).connect().await?;
        let client = Client::builder().quota(quota.clone()).fleet(fleet).build()?;
        for _ in 0..50 {
            calls.spawn(client.get(server.url()).send());
        }
    }
    for call in calls.join_all().await {
        assert_eq!(call?.status(), 200);
    }
    let stats = server.stats();
    println!(
        "{} answered, {} refused, most in any second {} of 50",
        stats.accepted, stats.refused, stats.most_in_window
    );
    Ok(())
}

/// The store that the environment names, or one of our own.
async fn store() -> io::Result<(Option<Own>, String)> {
    if let Ok(url) = env::var("REDIS_URL") {
        return Ok((None, url));
    }
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let own = Command::new("redis-server").args(["--port", &port, "--save", ""]).stdout(Stdio::null()).spawn()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok((Some(Own(own)), format!("redis://127.0.0.1:{port}")))
}

struct Own(Child);

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}
