//! A run of 2,000 rows at 500 a second against the practice server, stopped half-way and resumed. Needs no network.
//!
//! `cargo run --example bulk --features bulk,testing`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use abide::{
    Client, Quota,
    bulk::{Bulk, Job},
    http::Method,
    reqwest::{Request, Url},
    testing::Server,
};
use futures_util::{StreamExt, stream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let latency = Duration::from_millis(5)..Duration::from_millis(40);
    let server = Server::builder().limit(Quota::per_second(500)).latency(latency).start().await?;
    let charge: Url = format!("{}/charge", server.url().to_string().trim_end_matches('/')).parse()?;
    let jobs = move || {
        let charge = charge.clone();
        stream::iter((0..2000).map(move |n| {
            let mut request = Request::new(Method::POST, charge.clone());
            *request.body_mut() = Some(format!("amount={n}").into());
            Job::new(format!("charge-{n}"), request)
        }))
    };
    let folder = std::env::temp_dir().join(format!("abide-bulk-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let bulk = || -> Result<Bulk, abide::Error> {
        let client = Client::builder().quota(Quota::per_second(500)).build()?;
        let bulk = Bulk::new(client).auto_idempotency_keys().resume();
        Ok(bulk.journal(folder.join("charges.journal")).results(folder.join("charges.jsonl")))
    };

    // Half-way it is dropped, as if the process had been killed.
    let half = bulk()?.run(jobs()).take(1000).count().await;
    println!("dropped after {half} rows");

    let mut run = bulk()?.run(jobs());
    while let Some(outcome) = run.next().await {
        if !outcome.is_ok() {
            println!("{} failed: {:?}", outcome.id, outcome.error);
        }
    }
    println!("{}", run.summary());
    println!("the server executed {} charges", server.charges().total());
    std::fs::write(folder.join("report.html"), run.report())?;
    println!("results and report are in {}", folder.display());
    Ok(())
}
