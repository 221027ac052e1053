//! The command line: parses arguments, calls the library, prints.

mod explain;
mod fleet;
mod head;
mod options;
mod out;
mod progress;
mod push;
mod run;
mod serve;
mod signals;

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
    /// With --from the rows come from a stream that other workers read too: rows of a worker that dies are taken over,
    /// and sent again with the same key. See --claim-after.
    ///
    /// Exit code: 0 all rows are ok, 1 some failed, 2 usage, unreadable input or a full disk, 3 stopped by a rule,
    /// 4 credentials refused, 130 interrupted.
    Run(Box<options::Args>),
    /// Fills a stream of Redis or Valkey with the rows of a file, for workers on many machines: `abide run --from`.
    ///
    /// Each row is added once, also when the store is away for a while. A line that is no row is named and left out.
    /// Exit code: 0 all lines are in the stream, 1 some are no rows, 2 usage, unreadable input or no store,
    /// 130 interrupted.
    Push(push::Args),
    Explain(explain::Explain),
    /// Runs the practice server until Ctrl-C; its URL is the first line on stdout.
    Serve(serve::Args),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(args) => run::run(*args),
        Command::Push(args) => push::run(&args),
        Command::Explain(explain) => explain.run(),
        Command::Serve(args) => serve::run(args),
    }
}
