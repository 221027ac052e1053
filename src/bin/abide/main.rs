//! The command line: parses arguments, calls the library, prints.

mod explain;
mod head;
mod serve;

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
    /// Runs the practice server until Ctrl-C; its URL is the first line on stdout.
    Serve(serve::Args),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Explain(explain) => explain.run(),
        Command::Serve(args) => serve::run(args),
    }
}
