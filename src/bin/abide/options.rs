//! Options of `abide run`, and what the library makes of them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use abide::{
    Backoff, Client, KeyScheme, Policy, Quota,
    fleet::Fleet,
    http::{HeaderMap, HeaderName, HeaderValue},
};

use crate::{fleet::FleetArgs, progress::When, serve::duration};

/// Options of `abide run`. Durations are written 50ms, 1.5s, 2m.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file of rows, one JSON object or bare URL a line, compressed or not; -: stdin
    #[arg(required_unless_present = "from", conflicts_with = "from")]
    pub(crate) jobs: Option<String>,
    /// Rows from a stream instead, as `abide push` fills it: URLs as there, or env:NAME
    #[arg(long, value_name = "URL", requires = "group", conflicts_with_all = ["retry_failed", "dry_run", "sample"])]
    pub(crate) from: Option<String>,
    /// The consumer group of the workers that share the stream; made if it is not there, at the start of the stream
    #[arg(long, value_name = "NAME", requires = "from")]
    pub(crate) group: Option<String>,
    /// Takes over the rows of a worker that gave no sign of life for so long, at least 1s; the same for all workers
    #[arg(long, value_name = "DUR", default_value = "60s", value_parser = duration, requires = "from")]
    pub(crate) claim_after: Duration,
    /// Waits for more rows at the end of the stream, and for one that is not there yet; without it the run ends when the
    /// group has acknowledged all rows, and a stream that is not there is an error
    #[arg(long, requires = "from")]
    pub(crate) follow: bool,
    /// Where results go, one JSON object a line; - or absent: stdout
    #[arg(short, long = "output", value_name = "OUT")]
    pub(crate) out: Option<String>,
    /// A limit of the server's, as in 100/s, 600/m, 100/5s: never exceeded in any window of that length; repeatable
    #[arg(long, value_name = "N/PERIOD", value_parser = window)]
    pub(crate) limit: Vec<Quota>,
    /// A limit that refills continuously, as in 10/s:20: 10 a second, 20 at once; repeatable
    #[arg(long, value_name = "N/PERIOD:BURST", value_parser = bucket)]
    pub(crate) bucket: Vec<Quota>,
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
    /// Most requests on the wire at once, in the whole run; below it concurrency follows the limits
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) concurrency: usize,
    /// Attempts of each row and round, the first included
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) max_attempts: u32,
    /// The first wait between attempts is a random part of this; it doubles each time
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) base: Option<Duration>,
    /// The longest wait between attempts that the server did not ask for
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) cap: Option<Duration>,
    /// How long each row may take, each round, waits included
    #[arg(long, value_name = "DUR", default_value = "120s", value_parser = duration)]
    pub(crate) deadline: Duration,
    /// How long an attempt may take
    #[arg(long, value_name = "DUR", default_value = "60s", value_parser = duration)]
    pub(crate) attempt_timeout: Duration,
    /// The longest wait that a server may ask for
    #[arg(long, value_name = "DUR", default_value = "120s", value_parser = duration)]
    pub(crate) max_server_wait: Duration,
    /// A header of all requests, as in 'Authorization: Bearer env:TOKEN'; env:NAME reads the environment; repeatable
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub(crate) headers: Vec<String>,
    /// Sends a key with each row, so that it can be repeated: auto in Idempotency-Key, or the name of the header
    #[arg(long, value_name = "auto|NAME-OF-HEADER")]
    pub(crate) idempotency_key: Option<String>,
    /// Goes on with the run that wrote OUT; with --from a worker does so anyway
    #[arg(long)]
    pub(crate) resume: bool,
    /// As --resume, and sends the rows again that failed, also those that may have been executed: it says first how many
    /// of these have no key (`maybe_executed` in their results); --dry-run says it and sends nothing
    #[arg(long)]
    pub(crate) retry_failed: bool,
    /// Stops when so many rows have failed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) stop_after: Option<u64>,
    /// Stops when more than this share of the rows has failed, as in 5%; judged from 20 rows on
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) stop_rate: Option<f64>,
    /// Sends nothing: shows the first 10 requests (all with -v) and how long the run will take
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Sends a part of the rows, always the same ones, as in 1%
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) sample: Option<f64>,
    /// Safe against loss of power, not only against the end of the process
    #[arg(long)]
    pub(crate) fsync: bool,
    /// Progress on stderr: auto: on a terminal
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub(crate) progress: When,
    /// Writes a page about the run
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Writes the totals as JSON
    #[arg(long, value_name = "FILE.json")]
    pub(crate) summary: Option<PathBuf>,
    /// Names each row that fails
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

impl Args {
    /// The client that they describe.
    pub(crate) fn client(&self, fleet: Option<Fleet>) -> Result<Client, String> {
        if self.deadline.is_zero() {
            return Err("--deadline 0s leaves no time to send anything".into());
        }
        let (mut base, mut cap) = (Duration::from_millis(200), Duration::from_secs(20));
        let mut policy = Policy::default();
        if self.base.is_some() || self.cap.is_some() {
            (base, cap) = (self.base.unwrap_or(base), self.cap.unwrap_or(cap));
            policy = policy.backoff(Backoff::full_jitter(base, cap));
        }
        // The run itself is the bound: it never has more on the wire than its concurrency, retries included.
        let policy = policy
            .no_budget()
            .max_attempts(self.max_attempts)
            .deadline(self.deadline)
            .attempt_timeout(self.attempt_timeout)
            .max_server_wait(self.max_server_wait);
        // After a crash the first request with a key may still be under way.
        let scheme = KeyScheme::new(self.key_header()?).retry_conflict(true);
        let mut builder = Client::builder().policy(policy).key_scheme(scheme).default_headers(self.header_map()?);
        // Whoever states the limit means to use it, also where the server advertises the same.
        if !self.limit.is_empty() || !self.bucket.is_empty() {
            builder = builder.headroom(0.0);
        }
        for quota in self.limit.iter().chain(&self.bucket) {
            builder = builder.quota(quota.clone());
        }
        if let Some(fleet) = fleet {
            builder = builder.fleet(fleet);
        }
        builder.build().map_err(|error| error.to_string())
    }

    /// The file of results.
    pub(crate) fn results(&self) -> Option<&str> {
        self.out.as_deref().filter(|out| *out != "-")
    }

    /// OUT behind a link is the file itself: its journal lies beside that, and the link is not written over.
    pub(crate) fn follow_link(&mut self) {
        let Some(out) = self.out.as_deref().map(Path::new) else { return };
        if out == Path::new("/dev/stdout") {
            self.out = Some("-".into());
        } else if out.is_symlink() && out.is_file() {
            let file = out.canonicalize().ok().and_then(|file| file.to_str().map(str::to_owned));
            self.out = file.or_else(|| self.out.take());
        }
    }

    /// What is read and what is written are files of their own.
    pub(crate) fn check_files(&self) -> Result<(), String> {
        let jobs = self.jobs.as_deref().filter(|jobs| *jobs != "-").map(PathBuf::from);
        let out = self.results().map(PathBuf::from);
        let journal = self.results().map(|out| PathBuf::from(format!("{out}.journal")));
        let all = [jobs, out, journal, self.report.clone(), self.summary.clone()];
        let mut seen: Vec<(PathBuf, PathBuf)> = Vec::new();
        for path in all.into_iter().flatten().filter(|path| !path.exists() || path.is_file()) {
            let place = place(&path);
            if let Some((other, _)) = seen.iter().find(|(_, there)| *there == place) {
                return Err(format!("{} and {} are the same file", other.display(), path.display()));
            }
            seen.push((path, place));
        }
        Ok(())
    }

    /// What is read, as it may be shown.
    pub(crate) fn input(&self) -> &str {
        self.jobs.as_deref().unwrap_or("a stream")
    }

    fn key_header(&self) -> Result<HeaderName, String> {
        match self.idempotency_key.as_deref() {
            None | Some("auto") => Ok(HeaderName::from_static("idempotency-key")),
            Some(name) => {
                name.parse().map_err(|_no_name| format!("--idempotency-key: {name:?} is no name of a header"))
            }
        }
    }

    fn header_map(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for text in &self.headers {
            let (name, value) = split(text)?;
            let is_secret = value.contains("env:");
            let value = from_env(value).map_err(|why| format!("-H: {why}"))?;
            // The value may be a secret: only the name is told.
            let mut value =
                HeaderValue::from_str(&value).map_err(|_no_value| format!("-H {name}: no value of a header"))?;
            value.set_sensitive(is_secret);
            headers.append(name, value);
        }
        Ok(headers)
    }

    /// What was asked for, without secrets.
    pub(crate) fn told(&self) -> BTreeMap<String, String> {
        let mut told = BTreeMap::new();
        let mut tell = |name: &str, value: String| drop(told.insert(name.to_owned(), value));
        tell("jobs", self.input().to_owned());
        if let Some(group) = &self.group {
            tell("group", group.clone());
            tell("claim-after", format!("{:?}", self.claim_after));
        }
        tell("output", self.out.clone().unwrap_or_else(|| "-".into()));
        let list = |quotas: &[Quota]| quotas.iter().map(Quota::to_string).collect::<Vec<_>>().join(", ");
        for (name, quotas) in [("limit", &self.limit), ("bucket", &self.bucket)] {
            if !quotas.is_empty() {
                tell(name, list(quotas));
            }
        }
        if self.fleet.store.is_some() {
            // The URL may hold a password.
            tell("fleet-name", self.fleet.fleet_name.clone());
        }
        tell("concurrency", self.concurrency.to_string());
        tell("max-attempts", self.max_attempts.to_string());
        for (name, value) in [("base", self.base), ("cap", self.cap)] {
            if let Some(value) = value {
                tell(name, format!("{value:?}"));
            }
        }
        tell("deadline", format!("{:?}", self.deadline));
        tell("attempt-timeout", format!("{:?}", self.attempt_timeout));
        tell("max-server-wait", format!("{:?}", self.max_server_wait));
        let headers: Vec<String> = self.headers.iter().filter_map(|text| masked(text)).collect();
        if !headers.is_empty() {
            tell("headers", headers.join(", "));
        }
        for (name, share) in [("stop-rate", self.stop_rate), ("sample", self.sample)] {
            if let Some(share) = share {
                tell(name, format!("{} %", share * 100.0));
            }
        }
        if let Some(failed) = self.stop_after {
            tell("stop-after", failed.to_string());
        }
        if let Some(key) = &self.idempotency_key {
            tell("idempotency-key", key.clone());
        }
        told
    }
}

/// Where a file is, or will be.
fn place(path: &Path) -> PathBuf {
    let folder = |path: &Path| Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    whole.canonicalize().ok().or_else(|| folder(&whole)).unwrap_or(whole)
}

/// Name and value of `Name: value`.
fn split(text: &str) -> Result<(HeaderName, &str), String> {
    let (name, value) = text.split_once(':').ok_or("-H: expected 'Name: value'")?;
    // Of what is no name only the first word: a colon may be missing, and one of the secret's be taken for it.
    let first = name.split_whitespace().next().unwrap_or_default();
    let parsed = name.trim().parse().map_err(|_no_name| format!("-H: no header begins with {first:?}"))?;
    Ok((parsed, value.trim()))
}

/// Values that are no secrets are shown, and so is where a secret comes from.
fn masked(text: &str) -> Option<String> {
    let (name, value) = split(text).ok()?;
    let plain = ["accept", "accept-language", "content-type", "user-agent"].contains(&name.as_str());
    // A template may mix text and names; text beside a name may be a secret too.
    let names = value.split("env:").skip(1).map(|part| format!("env:{}", variable(part).0));
    let names: Vec<String> = names.collect();
    Some(match (plain, names.is_empty()) {
        (true, _) => format!("{name}: {value}"),
        (false, false) => format!("{name}: … {}", names.join(" ")),
        (false, true) => format!("{name}: ***"),
    })
}

/// A URL as it is, or from the environment: there it stays out of the list of processes.
pub(crate) fn url(text: &str) -> Result<String, String> {
    match text.strip_prefix("env:") {
        Some(name) => std::env::var(name).map_err(|_none| missing(name)),
        None => Ok(text.to_owned()),
    }
}

/// The name of a variable at the start of a text, and what follows it.
fn variable(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len()))
}

/// Each `env:NAME` replaced by what the environment has.
pub(crate) fn from_env(template: &str) -> Result<String, String> {
    filled(template, |name| std::env::var(name).ok()).map_err(|name| missing(&name))
}

fn missing(name: &str) -> String {
    format!("there is no variable {name:?} in the environment")
}

/// Each `env:NAME` replaced; the error is a name that is not there.
fn filled(template: &str, read: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut parts = template.split("env:");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = variable(part);
        let value = read(name).ok_or(name)?;
        filled.push_str(value.trim_end_matches(['\r', '\n']));
        filled.push_str(rest);
    }
    Ok(filled)
}

fn window(text: &str) -> Result<Quota, String> {
    if text.contains(':') {
        return Err("a burst belongs to --bucket".into());
    }
    text.parse().map_err(|error: abide::ParseQuotaError| error.to_string())
}

fn bucket(text: &str) -> Result<Quota, String> {
    let whole = match text.split_once('/') {
        Some((units, rest)) if !rest.contains(':') => format!("{text}:{units}"),
        _ => text.to_owned(),
    };
    whole.parse().map_err(|error: abide::ParseQuotaError| error.to_string())
}

/// `5%` or `0.05`.
fn share(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is no share, expected one such as 5%");
    let (number, scale) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let share: f64 = number.trim().parse().map_err(|_no_number| wrong())?;
    let share = share / scale;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_read_the_environment() {
        let read = |name: &str| (name == "TOKEN").then(|| "s3cret\n".to_owned());
        assert_eq!(filled("Bearer env:TOKEN", read), Ok("Bearer s3cret".into()));
        assert_eq!(filled("a env:TOKEN;env:TOKEN", read), Ok("a s3cret;s3cret".into()));
        assert!(filled("env:OTHER", read).unwrap_err().contains("OTHER"));
    }

    #[test]
    fn shares_and_limits() {
        for (text, value) in [("5%", Some(0.05)), ("0.5", Some(0.5)), ("1.5", None), ("-1%", None), ("x", None)] {
            match (share(text), value) {
                (Ok(share), Some(value)) => assert!((share - value).abs() < 1e-9),
                (got, wanted) => assert!(got.is_err() && wanted.is_none(), "{text}"),
            }
        }
        assert_eq!(bucket("10/s"), Ok(Quota::bucket(10, Duration::from_secs(1)).burst(10)));
        assert!(window("10/s:20").is_err());
    }

    #[test]
    fn secrets_are_not_told() {
        assert_eq!(masked("Authorization: Bearer abc").unwrap(), "authorization: ***");
        assert_eq!(masked("Authorization: Bearer env:T").unwrap(), "authorization: … env:T");
        assert_eq!(masked("Accept: text/plain").unwrap(), "accept: text/plain");
        assert_eq!(masked("Cookie: a=env:T;b=abc env:U/abc").unwrap(), "cookie: … env:T env:U");
        assert!(!split("Authorization Bearer abc:def").unwrap_err().contains("abc"));
    }
}
