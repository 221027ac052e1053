//! `abide serve`: the practice server on the command line.

use std::{io, io::Write, ops::Range, process::ExitCode, time::Duration};

use abide::{
    Quota,
    testing::{Algorithm, Dialect, Server, ServerBuilder},
};

use crate::signals::Stop;

/// Options of `abide serve`. Durations are written 50ms, 1.5s, 2m.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Port on 127.0.0.1; 0: a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Requests in each window; absent: no limit
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Length of the window
    #[arg(long, value_name = "DUR", default_value = "1s", value_parser = duration, requires = "limit")]
    window: Duration,
    /// Most requests at once, of token-bucket, leaky-bucket and gcra; absent: N
    #[arg(long, value_name = "B", requires = "limit")]
    burst: Option<u32>,
    /// How the limit counts: fixed-window, sliding-log, sliding-counter, token-bucket, leaky-bucket, gcra, concurrency
    #[arg(long, default_value_t = Algorithm::FixedWindow, requires = "limit")]
    algorithm: Algorithm,
    /// How the limit is told: draft-03, draft-06, draft-07, draft-11, x-ratelimit, x-ratelimit-epoch, retry-after,
    /// github, stripe, openai, shopify, discord, none
    #[arg(long, default_value_t = Dialect::Draft11)]
    dialect: Dialect,
    /// The limit it tells, in place of the real one
    #[arg(long, value_name = "N", requires = "limit")]
    advertise: Option<u32>,
    /// Most requests being served at one time
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// Time before an answer, drawn from the range; a single duration: always that
    #[arg(long, value_name = "A..B", value_parser = range)]
    latency: Option<Range<Duration>>,
    /// Share of the accepted requests that meet a fault, 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    fault_rate: f64,
    /// Server clock minus this machine's clock, as in 90s or -2m
    #[arg(long, value_name = "DUR", value_parser = skew, allow_hyphen_values = true)]
    skew: Option<(bool, Duration)>,
    /// Seed of latency and faults; absent: a random one, told on stderr
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Serves until Ctrl-C or SIGTERM: 0; options that make no sense: 2; a port that is taken: 1.
pub(crate) fn run(args: Args) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(serve(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell if stderr is closed.
            let _ = writeln!(io::stderr(), "abide serve: {error}");
            ExitCode::from(if error.kind() == io::ErrorKind::InvalidInput { 2 } else { 1 })
        }
    }
}

async fn serve(args: Args) -> io::Result<()> {
    let mut stop = Stop::new()?;
    let server = builder(args).start().await?;
    {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", server.url())?;
        out.flush()?;
    }
    writeln!(io::stderr(), "seed {}", server.seed())?;
    stop.asked().await;
    let stats = server.stats();
    server.shutdown().await;
    writeln!(io::stderr(), "{stats}")
}

fn builder(args: Args) -> ServerBuilder {
    let mut builder = Server::builder().port(args.port).dialect(args.dialect).fault_rate(args.fault_rate);
    if let Some(limit) = args.limit {
        let quota = |n| match args.burst {
            Some(burst) => Quota::bucket(n, args.window).burst(burst),
            None => Quota::window(n, args.window),
        };
        builder = builder.limit(quota(limit)).algorithm(args.algorithm);
        if let Some(told) = args.advertise {
            builder = builder.advertise(quota(told));
        }
    }
    if let Some(most) = args.concurrency {
        builder = builder.concurrency(most);
    }
    if let Some(latency) = args.latency {
        builder = builder.latency(latency);
    }
    if let Some(seed) = args.seed {
        builder = builder.seed(seed);
    }
    match args.skew {
        Some((true, by)) => builder.clock_behind(by),
        Some((false, by)) => builder.clock_ahead(by),
        None => builder,
    }
}

/// `50ms`, `1.5s`, `2m`, `1h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration, expected one such as 50ms, 1.5s or 2m");
    let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(at);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(wrong());
    }
    let number: f64 = number.parse().map_err(|_no_number| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_too_long| wrong())
}

/// `5ms..20ms`, or `5ms`.
fn range(text: &str) -> Result<Range<Duration>, String> {
    let (a, b) = text.split_once("..").unwrap_or((text, text));
    let range = duration(a)?..duration(b)?;
    if range.start > range.end { Err("the range runs backward".to_owned()) } else { Ok(range) }
}

/// A duration with an optional sign; whether it is negative.
fn skew(text: &str) -> Result<(bool, Duration), String> {
    match text.strip_prefix('-') {
        Some(rest) => Ok((true, duration(rest)?)),
        None => Ok((false, duration(text.strip_prefix('+').unwrap_or(text))?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "5", "s", "-1s", "1e3s", "1d", "nans", "1..2s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_and_skews() {
        assert_eq!(range("5ms..1s"), Ok(Duration::from_millis(5)..Duration::from_secs(1)));
        assert_eq!(range("5ms"), Ok(Duration::from_millis(5)..Duration::from_millis(5)));
        assert!(range("2s..1s").is_err());
        assert_eq!(skew("-2m"), Ok((true, Duration::from_secs(120))));
        assert_eq!(skew("90s"), Ok((false, Duration::from_secs(90))));
    }
}
