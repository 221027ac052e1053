//! For scripts: no async, and the same limits.
//!
//! `cargo run --example script --features blocking [URL]`
#![expect(clippy::print_stdout, reason = "an example prints")]

use abide::{Quota, blocking::Client};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::builder().quota(Quota::per_minute(30)).build()?;
    let Some(url) = std::env::args().nth(1) else {
        println!("give a URL to get");
        return Ok(());
    };
    println!("{}", client.get(url).send()?.text()?);
    Ok(())
}
