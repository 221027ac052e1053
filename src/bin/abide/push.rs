//! `abide push`: a file of rows into a stream.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use abide::bulk::Push;

use crate::{
    options, out,
    run::{open, to_end},
    signals::{INTERRUPTED, Signals},
};

/// Options of `abide push`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file of rows as for `abide run`; -: stdin
    file: String,
    /// The stream: redis[s]://[USER:PASSWORD@]HOST[:PORT][/DB]/STREAM, redis[s]+cluster://HOST:PORT,HOST:PORT/STREAM or
    /// redis[s]+sentinel://HOST:PORT,HOST:PORT/MASTER[/DB]/STREAM, or env:NAME: from the environment
    #[arg(long, value_name = "URL")]
    to: String,
    /// Begins with this line of the file: where an earlier push stopped
    #[arg(long, value_name = "N", default_value_t = 1)]
    from_line: u64,
}

/// Pushes the rows; exit codes as in `--help`.
pub(crate) fn run(args: &Args) -> ExitCode {
    to_end(push(args))
}

async fn push(args: &Args) -> Result<u8, String> {
    let signals = Signals::obey()?;
    let input = open(&args.file)?;
    let push = Push::connect(&options::url(&args.to)?).await.map_err(|error| error.to_string())?;
    let mut push = push.from_line(args.from_line);
    let stopper = push.stopper();
    // Behind a batch.
    let interrupted = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&interrupted);
    signals.drain(move || {
        told.store(true, Relaxed);
        stopper.drain();
    });
    let pushed = push.rows(input, out::say).await;
    out::say(&pushed.to_string());
    Ok(match &pushed.error {
        Some(error) if interrupted.load(Relaxed) => {
            out::say(&format!("interrupted: {error}"));
            INTERRUPTED
        }
        Some(error) => return Err(format!("stopped: {error}")),
        None if pushed.go_on.is_some() => INTERRUPTED,
        None => u8::from(pushed.bad > 0),
    })
}
