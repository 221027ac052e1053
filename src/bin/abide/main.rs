//! The command line.

mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The calling side of HTTP rate limits.
#[derive(Debug, Parser)]
#[command(name = "abide")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the practice server until Ctrl-C; its URL is the first line on stdout.
    Serve(serve::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
    }
}
