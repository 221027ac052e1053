//! The command line: parses arguments, calls the library, prints.

mod explain;
mod fleet;
mod head;
mod options;
mod out;
mod progress;
mod run;
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
    /// Sends the requests of a file, at the pace that limits allow, and can be resumed.
    ///
    /// Exit code: 0 all rows are ok, 1 some failed, 2 usage, unreadable input or a full disk, 3 stopped by a rule,
    /// 4 credentials refused, 130 interrupted.
    Run(Box<options::Args>),
    Explain(explain::Explain),
    /// Runs the practice server until Ctrl-C; its URL is the first line on stdout.
    Serve(serve::Args),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Explain(explain) => explain.run(),
        Command::Serve(args) => serve::run(args),
    }
}
