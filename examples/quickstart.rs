//! A client that is told nothing stays below a server's limit, and a charge whose answer is lost is made once.
//!
//! `cargo run --release --example quickstart --features testing`
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "an example prints, and keeps time")]

use std::{error::Error, process::ExitCode, time::Duration};

use abide::{
    Backoff, Client, Policy, Quota, ResponseExt,
    testing::{Dialect, Fault, Faults, Server},
};
use tokio::{task::JoinSet, time::Instant};

const LIMIT: u32 = 100;
const GETS: usize = 300;
const TASKS: usize = 32;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    let server = Server::builder().limit(Quota::per_second(LIMIT)).dialect(Dialect::Draft11).start().await?;
    let client = Client::new();
    let (rate, ok) = gets(&client, &server).await?;
    let stats = server.stats();
    let (executions, history) = lost_charge(&client).await?;

    println!("GETs sent                 {:>7}   answered with 200: {ok}", stats.accepted);
    println!("refused by the server     {:>7}", stats.refused);
    println!("most in any second        {:>7}   of {LIMIT}", stats.most_in_window);
    println!("achieved rate, steady     {rate:>7.1}/s of {LIMIT}/s");
    println!("the POST was executed     {executions:>7}   its first answer was lost");
    println!("its history: {history}");
    let fine = ok == GETS && stats.refused == 0 && rate >= 92.0 && executions == 1;
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sends the GETs from many tasks; gives the rate after the first hundred, and how many were answered well.
async fn gets(client: &Client, server: &Server) -> Result<(f64, usize), Box<dyn Error + Send + Sync>> {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (client, url) = (client.clone(), format!("{}/things", server.url()));
        tasks.spawn(async move {
            let mut ends = Vec::new();
            for _ in (task..GETS).step_by(TASKS) {
                let response = client.get(&url).send().await?;
                ends.push((Instant::now(), response.status()));
            }
            Ok::<_, abide::Error>(ends)
        });
    }
    let mut ends = tasks.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    ends.sort_unstable_by_key(|(at, _)| *at);
    let steady = ends[GETS - 1].0 - ends[99].0;
    let ok = ends.iter().filter(|(_, status)| status.is_success()).count();
    Ok(((GETS - 100) as f64 / steady.as_secs_f64(), ok))
}

/// A POST with a key to a server that makes the charge and loses the answer, once.
async fn lost_charge(client: &Client) -> Result<(u32, String), Box<dyn Error + Send + Sync>> {
    let server = Server::builder().faults(Faults::rate(1.0).kinds([Fault::ResetBody])).start().await?;
    let charge = client
        .post(format!("{}/charge", server.url()))
        .policy(Policy::default().backoff(Backoff::constant(Duration::from_millis(100))))
        .auto_idempotency_key()
        .body("amount=10")
        .buffered(1024);
    let charge = tokio::spawn(charge.send());
    while server.stats().faults == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.set_faults(Faults::default())?;
    let response = charge.await??;
    let history = response.history().attempts().iter().map(|attempt| match attempt.status() {
        Some(status) => format!("{status} after {:?}", attempt.elapsed()),
        None => format!(
            "{} after {:?}",
            attempt.error().map_or_else(String::new, |cause| cause.to_string()),
            attempt.elapsed()
        ),
    });
    let history = history.collect::<Vec<_>>().join(", then ");
    Ok((server.charges().total().try_into()?, history))
}
