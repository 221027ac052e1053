//! Each API key has a limit of its own: a tenant that is busy does not slow another.
//!
//! `cargo run --example per_key --features testing`
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "an example prints, and keeps time")]

use abide::{
    Client, Quota,
    testing::{KeyBy, Server},
};
use tokio::{task::JoinSet, time::Instant};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder().limit(Quota::per_second(20)).key_by(KeyBy::Authorization).start().await?;
    // The default key: the origin, and a hash of the credential.
    let client = Client::builder().quota(Quota::per_second(20)).build()?;
    let mut calls = JoinSet::new();
    for (tenant, requests) in [("busy", 40), ("calm", 3)] {
        for _ in 0..requests {
            let call = client.get(server.url()).bearer_auth(tenant);
            calls.spawn(async move { Ok::<_, abide::Error>((tenant, call.send().await?.status(), Instant::now())) });
        }
    }
    let started = Instant::now();
    let mut last = [("busy", started), ("calm", started)];
    while let Some(call) = calls.join_next().await {
        let (tenant, status, at) = call??;
        assert_eq!(status, 200);
        last.iter_mut().filter(|(name, _)| *name == tenant).for_each(|(_, last)| *last = at.max(*last));
    }
    for (tenant, at) in last {
        println!("{tenant} done after {:.1} s", (at - started).as_secs_f64());
    }
    println!("{} keys, {} refusals", client.limiter().tracked_keys(), server.stats().refused);
    Ok(())
}
