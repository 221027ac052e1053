//! The command line.

mod explain;
mod head;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The calling side of HTTP rate limits.
#[derive(Debug, Parser)]
#[command(name = "abide", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Explain(explain::Explain),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Explain(explain) => explain.run(),
    }
}
