//! One GET: the limit is learned, what is safe is repeated, and the history tells what happened.
//!
//! `cargo run --example get --features testing [URL]`
#![expect(clippy::print_stdout, reason = "an example prints")]

use abide::{Client, ResponseExt, testing::Scripted, testing::Server};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A server that is overloaded once, so that the example runs offline.
    let busy = Scripted::status(503).header("retry-after", "1");
    let server = Server::builder().script(vec![busy, Scripted::status(200).body("hello")]).start().await?;
    let url = std::env::args().nth(1).unwrap_or_else(|| server.url().to_owned());

    let response = Client::new().get(url).send().await?;
    for attempt in response.history().attempts() {
        println!("{}. {:?} after a wait of {:?}", attempt.number(), attempt.status(), attempt.waited().total());
    }
    println!("{}: {}", response.status(), response.text().await?);
    Ok(())
}
