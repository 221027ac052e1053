//! How far a run is: a line that is rewritten on a terminal, a line every ten seconds elsewhere.

use std::{
    fs::File,
    io::{IsTerminal, Read, stderr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use abide::bulk::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::out;

/// When progress is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum When {
    /// On a terminal.
    #[default]
    Auto,
    Always,
    Never,
}

/// Shows progress.
pub(crate) struct Meter {
    form: Form,
    total: Arc<AtomicU64>,
}

enum Form {
    None,
    Bar(ProgressBar),
    /// Lines; when the last one came.
    Lines(Duration),
}

/// Between lines.
const EVERY: Duration = Duration::from_secs(10);

impl Meter {
    pub(crate) fn new(when: When, jobs: &str) -> Self {
        let form = match (when, stderr().is_terminal()) {
            (When::Never, _) | (When::Auto, false) => Form::None,
            (When::Always, false) => Form::Lines(Duration::ZERO),
            (_, true) => Form::Bar(bar()),
        };
        let total = Arc::new(AtomicU64::new(0));
        if !matches!(form, Form::None) {
            count(jobs, Arc::clone(&total));
        }
        Self { form, total }
    }

    pub(crate) fn show(&mut self, progress: &Progress) {
        let text = |total: &AtomicU64| text(progress, total.load(Ordering::Relaxed));
        match &mut self.form {
            Form::None => {}
            Form::Bar(bar) => {
                bar.set_length(self.total.load(Ordering::Relaxed).max(progress.done));
                bar.set_position(progress.done);
                bar.set_message(text(&self.total));
            }
            Form::Lines(last) => {
                if progress.elapsed >= *last + EVERY {
                    *last = progress.elapsed;
                    out::say(&text(&self.total));
                }
            }
        }
    }

    /// A message between the lines of progress.
    pub(crate) fn say(&self, message: &str) {
        match &self.form {
            Form::Bar(bar) => bar.suspend(|| out::say(message)),
            _ => out::say(message),
        }
    }

    pub(crate) fn clear(&self) {
        if let Form::Bar(bar) = &self.form {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
    let style = ProgressStyle::with_template("{bar:24} {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// `12 of 100 done, 1 failed, 3 throttled · 9.8/s of 10/s · waited 1 s · about 9 s left`.
fn text(progress: &Progress, total: u64) -> String {
    let Progress { done, failed, throttled, rate, limit, waited, .. } = *progress;
    let of = if total >= done && total > 0 { format!(" of {total}") } else { String::new() };
    let against = limit.map(|limit| format!(" of {limit:.1}/s")).unwrap_or_default();
    let left = left(progress, total).map(|left| format!(" · about {left} left")).unwrap_or_default();
    format!(
        "{done}{of} done, {failed} failed, {throttled} throttled · {rate:.1}/s{against} · waited {} on limits{left}",
        span(waited)
    )
}

/// By the limit, or by the rate so far if that is lower or there is no limit.
fn left(progress: &Progress, total: u64) -> Option<String> {
    let rows = total.checked_sub(progress.done).filter(|rows| *rows > 0)?;
    let early = progress.elapsed < Duration::from_secs(2);
    let rate = match progress.limit {
        Some(limit) if early => limit,
        Some(limit) => limit.min(progress.rate),
        None => progress.rate,
    };
    let seconds = rows as f64 / rate;
    Duration::try_from_secs_f64(seconds).ok().map(span)
}

/// `9 s`, `5 min`, `3.5 h`.
pub(crate) fn span(span: Duration) -> String {
    match span.as_secs() {
        0..60 => format!("{:.0} s", span.as_secs_f64()),
        60..3600 => format!("{:.0} min", span.as_secs_f64() / 60.0),
        _ => format!("{:.1} h", span.as_secs_f64() / 3600.0),
    }
}

/// Counts the lines of a file that is not compressed, besides the run.
fn count(jobs: &str, total: Arc<AtomicU64>) {
    let Ok(mut file) = File::open(jobs) else { return };
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return;
    }
    let counting = move || {
        let (mut buffer, mut lines, mut first) = (vec![0; 1 << 16], 0, true);
        while let Ok(read) = file.read(&mut buffer) {
            let bytes = &buffer[..read];
            if read == 0 || std::mem::take(&mut first) && bytes.starts_with(&[0x1f, 0x8b]) {
                break;
            }
            lines += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        }
        total.store(lines, Ordering::Relaxed);
    };
    // Without it there is no estimate, and nothing else is amiss.
    let _ = std::thread::Builder::new().name("abide-count".into()).spawn(counting);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_rate_limit_and_estimate() {
        let mut progress = Progress::default();
        (progress.done, progress.failed, progress.throttled, progress.rate) = (40, 1, 3, 9.76);
        progress.limit = Some(10.0);
        progress.elapsed = Duration::from_secs(4);
        assert_eq!(
            text(&progress, 100),
            "40 of 100 done, 1 failed, 3 throttled · 9.8/s of 10.0/s · waited 0 s on limits · about 6 s left"
        );
        assert!(text(&progress, 0).starts_with("40 done,"));
    }
}
