//! What jitter does for clients that contend for one row: the simulation of the AWS Architecture Blog («Exponential
//! Backoff and Jitter») on abide's own `Backoff`, as a table and as a plot.
//!
//! `cargo run --release --example jitter [FILE.svg]`; the plot goes to `target/jitter.svg` unless told otherwise.
#![expect(clippy::print_stdout, reason = "an example talks to its user")]

mod occ;
mod plot;

use std::{env, fs, io, path::PathBuf};

use occ::{KINDS, Mean};

const RUNS: u64 = 20;

fn main() -> io::Result<()> {
    let path = env::args_os().nth(1).map_or_else(|| PathBuf::from("target/jitter.svg"), PathBuf::from);
    let clients: Vec<u32> = (1..20).map(|tens| tens * 10).collect();
    let curves: Vec<(&str, Vec<Mean>)> = KINDS
        .iter()
        .map(|kind| (kind.name, clients.iter().map(|clients| kind.mean(*clients, RUNS)).collect()))
        .collect();
    println!("{:<14} {:>8} {:>12} {:>8}", "backoff", "clients", "time in ms", "writes");
    for (name, means) in &curves {
        for (clients, mean) in clients.iter().zip(means) {
            println!("{name:<14} {clients:>8} {:>12.0} {:>8.0}", mean.millis, mean.writes);
        }
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&path, plot::svg(&clients, &curves))?;
    println!("plot: {}", path.display());
    Ok(())
}
