//! The report: one page of HTML, complete in itself, whose size does not depend on the number of rows.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use super::{
    End, Summary,
    charts::{Chart, Series, number},
    stats::{Bin, Seen, Stats, float},
};

/// What the page is about.
pub(super) struct Facts<'a> {
    pub(super) stats: &'a Stats,
    pub(super) summary: Summary,
    pub(super) end: Option<End>,
    pub(super) elapsed: Duration,
    /// Requests a second.
    pub(super) limit: Option<f64>,
    pub(super) settings: &'a BTreeMap<String, String>,
    pub(super) run: uuid::Uuid,
}

/// The page.
pub(super) fn page(facts: &Facts<'_>) -> String {
    let mut html = String::with_capacity(64 * 1024);
    html.push_str("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    html.push_str(
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>abide run</title><style>",
    );
    html.push_str(include_str!("report.css"));
    html.push_str("</style></head><body>");
    head(&mut html, facts);
    html.push_str("<h2>Over time</h2>");
    for chart in [rates(facts), latencies(facts), answers(facts)] {
        html.push_str(&chart.draw());
    }
    statuses(&mut html, facts.stats);
    waits(&mut html, facts.stats);
    rows(&mut html, "Slowest rows", &facts.stats.slowest);
    let failed = match facts.stats.failed.len() {
        shown if float(shown as u64) < float(facts.summary.failed) => {
            format!("Failed rows (the first {shown} of this run)")
        }
        _ => "Failed rows".to_owned(),
    };
    rows(&mut html, &failed, &facts.stats.failed);
    settings(&mut html, facts);
    html.push_str("</body></html>\n");
    html
}

fn head(html: &mut String, facts: &Facts<'_>) {
    let Summary { ok, failed, unknown, attempts, throttled, waited_s, elapsed_s } = facts.summary;
    let end = match facts.end {
        None => "under way",
        Some(End::Complete) => "complete",
        Some(End::Interrupted) => "interrupted, can be resumed",
        Some(End::Rule) => "stopped: too many rows failed",
        Some(End::RefusedCredentials) => "stopped: credentials refused",
        Some(End::Failed) => "could not go on",
    };
    let _ =
        write!(html, "<h1>Run of {} rows</h1><p class=\"soft\">{end} · run {}</p>", ok + failed + unknown, facts.run);
    html.push_str("<div class=\"tiles\">");
    let mut tile = |class: &str, value: String, name: &str| {
        let _ = write!(html, "<div class=\"{class}\"><b>{value}</b>{name}</div>");
    };
    tile("fine", ok.to_string(), "ok");
    tile(if failed > 0 { "bad" } else { "" }, failed.to_string(), "failed");
    if unknown > 0 {
        tile("bad", unknown.to_string(), "unknown");
    }
    tile("", attempts.to_string(), "attempts");
    tile("", throttled.to_string(), "throttled");
    tile("", format!("{elapsed_s:.1} s"), "elapsed");
    tile("", format!("{waited_s:.1} s"), "waiting on limits");
    let rate = float(facts.stats.sent) / facts.elapsed.as_secs_f64().max(0.001);
    tile("", format!("{}/s", number(rate)), "average rate");
    html.push_str("</div>");
}

fn chart<'a>(facts: &Facts<'_>, title: &'a str, unit: &'a str) -> Chart<'a> {
    let seconds = facts.stats.width.as_secs_f64() * float(facts.stats.bins.len().max(1) as u64);
    Chart { title, seconds, unit, series: Vec::new(), stacked: false, mark: None }
}

fn series<'a>(facts: &Facts<'_>, name: &'a str, class: &'a str, of: impl Fn(&Bin) -> Option<f64>) -> Series<'a> {
    Series { name, class, values: facts.stats.bins.iter().map(of).collect() }
}

fn rates<'a>(facts: &Facts<'_>) -> Chart<'a> {
    let width = facts.stats.width.as_secs_f64();
    // The last bin is not over.
    let last = facts.elapsed.as_secs_f64() % width;
    let mut sent = series(facts, "sent", "c1", |bin| Some(float(bin.sent) / width));
    if let Some(Some(rate)) = sent.values.last_mut()
        && last > width * 0.2
    {
        *rate *= width / last;
    }
    let mark = facts.limit.map(|limit| (limit, format!("limit {}/s", number(limit))));
    Chart { series: vec![sent], mark, ..chart(facts, "Requests a second", "requests/s") }
}

fn latencies<'a>(facts: &Facts<'_>) -> Chart<'a> {
    let of = |name, class, share| series(facts, name, class, move |bin: &Bin| bin.latency.percentile(share));
    let series = vec![of("half are faster", "c1", 0.5), of("95 %", "c2", 0.95), of("99 %", "c3", 0.99)];
    Chart { series, ..chart(facts, "Latency of attempts", "ms") }
}

/// Classes of answers, as `stats.rs` counts them: place, name, colour.
const ANSWERS: [(usize, &str, &str); 6] = [
    (2, "2xx", "good"),
    (3, "3xx", "c1"),
    (1, "429", "c2"),
    (4, "other 4xx", "c4"),
    (5, "5xx", "c3"),
    (0, "no answer", "c5"),
];

fn answers<'a>(facts: &Facts<'_>) -> Chart<'a> {
    let width = facts.stats.width.as_secs_f64();
    let of = |(place, name, class): (usize, &'a str, &'a str)| {
        series(facts, name, class, move |bin: &Bin| Some(float(bin.answers[place]) / width))
    };
    let series = ANSWERS.into_iter().map(of).collect();
    Chart { series, stacked: true, ..chart(facts, "Answers a second", "answers/s") }
}

fn statuses(html: &mut String, stats: &Stats) {
    html.push_str("<h2>Results by status</h2><div class=\"scroll\"><table><tr><th>status</th><th class=\"n\">rows</th><th></th></tr>");
    let most = stats.statuses.values().copied().max().unwrap_or(1);
    for (status, rows) in &stats.statuses {
        let name = if *status == 0 { "no answer".to_owned() } else { status.to_string() };
        bar(html, &name, &rows.to_string(), float(*rows) / float(most));
    }
    for (kind, rows) in &stats.failures {
        bar(html, &format!("error: {kind}"), &rows.to_string(), float(*rows) / float(most));
    }
    html.push_str("</table></div>");
}

fn waits(html: &mut String, stats: &Stats) {
    let waits = &stats.waits;
    let all =
        [("for the limiter", waits.limiter), ("because the server asked", waits.server), ("backoff", waits.backoff)];
    let most = all.iter().map(|(_, wait)| wait.as_secs_f64()).fold(0.001, f64::max);
    html.push_str("<h2>Waits by cause</h2><p class=\"soft\">Summed over all rows, which wait side by side.</p>");
    html.push_str("<div class=\"scroll\"><table><tr><th>cause</th><th class=\"n\">seconds</th><th></th></tr>");
    for (name, wait) in all {
        bar(html, name, &format!("{:.1}", wait.as_secs_f64()), wait.as_secs_f64() / most);
    }
    html.push_str("</table></div>");
}

fn bar(html: &mut String, name: &str, value: &str, share: f64) {
    let width = (share * 320.0).max(1.0);
    let _ = write!(
        html,
        "<tr><td>{name}</td><td class=\"n\">{value}</td><td><span class=\"bar\" style=\"width:{width:.0}px\"></span></td></tr>"
    );
}

fn rows(html: &mut String, title: &str, rows: &[Seen]) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(html, "<h2>{title}</h2><div class=\"scroll\"><table><tr><th class=\"n\">line</th><th>id</th>");
    html.push_str("<th>status</th><th class=\"n\">attempts</th><th class=\"n\">slowest attempt</th>");
    html.push_str("<th class=\"n\">whole row</th><th class=\"n\">waited</th><th>error</th></tr>");
    for row in rows {
        let status = row.status.map_or_else(|| "–".to_owned(), |status| status.to_string());
        let _ = write!(
            html,
            "<tr><td class=\"n\">{}</td><td class=\"id\">{}</td><td>{status}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"id\">{}</td></tr>",
            row.line,
            text(&row.id),
            row.attempts,
            millis(row.took),
            millis(row.elapsed),
            millis(row.waited),
            text(row.error.as_deref().unwrap_or_default()),
        );
    }
    html.push_str("</table></div>");
}

fn settings(html: &mut String, facts: &Facts<'_>) {
    if facts.settings.is_empty() {
        return;
    }
    html.push_str("<h2>Settings</h2><dl>");
    for (name, value) in facts.settings {
        let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", text(name), text(value));
    }
    html.push_str("</dl>");
}

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}

/// Text that came from elsewhere; long ones are cut.
fn text(raw: &str) -> String {
    let mut safe = String::with_capacity(raw.len());
    for letter in raw.chars().take(300) {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            letter if letter.is_control() => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_no_markup() {
        assert_eq!(text("<script>\"&\u{1b}[2J"), "&lt;script&gt;&quot;&amp;\u{fffd}[2J");
    }
}
