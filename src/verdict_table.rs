//! The table of verdicts in `guide/verdicts.md`, made from the code: every status, method, key and hint.
//!
//! After a change that is meant: `ABIDE_BLESS=1 cargo test verdict_table`, and review the difference.

use std::{fmt::Write, fs, path::Path, sync::Arc, time::Duration};

use http::{HeaderMap, Method, StatusCode};
use rand::{SeedableRng, rngs::StdRng};

use crate::{
    Backoff, NonIdempotent, Policy, Verdict,
    call::{Call, Onward, Outcome, Step},
    clock,
    headers::Hints,
    history::Stop,
    outgoing::is_idempotent,
    repeat::Repeat,
    sent::{Cause, SentState},
    verdict::Answer,
};

const METHODS: [&str; 10] = ["GET", "HEAD", "OPTIONS", "TRACE", "QUERY", "PUT", "DELETE", "POST", "PATCH", "CONNECT"];

/// Columns: a kind of call by one of its methods, its key, and whether its scheme retries a 409.
const CALLS: [(&str, &str, bool, bool); 5] = [
    ("idempotent", "GET", false, false),
    ("keyed", "POST", true, false),
    ("keyed, `retry_conflict`", "POST", true, true),
    ("idempotent and keyed, `retry_conflict`", "PUT", true, true),
    ("bare", "POST", false, false),
];

fn hints() -> [(&'static str, Hints); 4] {
    let wait = Some(Duration::from_secs(1));
    [
        ("No hint", Hints::default()),
        ("A named wait (`Retry-After: 1`)", Hints { retry_after: wait, ..Hints::default() }),
        ("`x-should-retry: true`", Hints { should_retry: Some(true), ..Hints::default() }),
        (
            "`x-should-retry: false`, with a wait",
            Hints { should_retry: Some(false), retry_after: wait, ..Hints::default() },
        ),
    ]
}

/// What comes of one attempt with this result.
fn cell(
    result: (Option<u16>, Option<Cause>, SentState),
    (method, keyed, retry_conflict): (&str, bool, bool),
    hints: &Hints,
    mode: NonIdempotent,
) -> &'static str {
    let (status, error, sent) = result;
    let (now, method) = (clock::now(), Method::from_bytes(method.as_bytes()).unwrap());
    let policy = Policy::default().backoff(Backoff::none()).no_budget().retry_non_idempotent(mode);
    let mut call = Call::new(Arc::new(policy), None, now);
    assert_eq!(call.next(now), Step::Acquire);
    call.on_permit(now);
    call.on_sent(now);
    let status = status.map(|status| StatusCode::from_u16(status).unwrap());
    let answer = Answer { method: &method, status, headers: &HeaderMap::new(), error, sent, attempt: 1, word: None };
    let repeat = Repeat {
        idempotent: is_idempotent(&method),
        key_lifetime: keyed.then_some(Duration::from_secs(3600)),
        retry_conflict,
        replayable: true,
    };
    let outcome = Outcome { answer, hints, body: None, onward: Onward::No, repeat };
    let verdict = call.on_result(&outcome, now, &mut StdRng::seed_from_u64(1));
    match (call.is_over().then(|| call.history().stop()), verdict) {
        (None, Verdict::Throttled) => "retry, throttled",
        (None, _) => "retry",
        (Some(Stop::NotIdempotent), Verdict::Throttled) => "once, throttled",
        (Some(Stop::NotIdempotent), _) => "once",
        (Some(Stop::Answered), _) => "answer",
        (Some(Stop::NotRetryable), _) => "final",
        (Some(_), _) => "?",
    }
}

fn of_status(status: u16, call: (&str, bool, bool), hints: &Hints) -> &'static str {
    cell((Some(status), None, SentState::Sent), call, hints, NonIdempotent::Never)
}

/// Rows of statuses that are treated alike.
fn statuses(page: &mut String, hints: &Hints) {
    let row = |status| CALLS.map(|(_, method, keyed, conflict)| of_status(status, (method, keyed, conflict), hints));
    let mut rows: Vec<(u16, u16, [&str; 5])> = Vec::new();
    for status in 100..=599 {
        match rows.last_mut() {
            Some((_, last, cells)) if *cells == row(status) => *last = status,
            _ => rows.push((status, status, row(status))),
        }
    }
    head(page, "status", &CALLS.map(|(name, ..)| name));
    for (first, last, cells) in rows {
        let range = if first == last { first.to_string() } else { format!("{first} – {last}") };
        let _ = writeln!(page, "| {range} | {} |", cells.join(" | "));
    }
}

fn head(page: &mut String, first: &str, names: &[&str]) {
    let _ = writeln!(page, "| {first} | {} |\n| --- |{}", names.join(" | "), " --- |".repeat(names.len()));
}

fn failures(page: &mut String) {
    use NonIdempotent::{Always, Never, WhenRefused, WhenUnsent};
    head(page, "failure", &["idempotent", "keyed", "bare", "`WhenUnsent`", "`WhenRefused`", "`Always`"]);
    for (name, cause, sent) in [
        ("no connection", Cause::Connect, SentState::NotSent),
        ("host name: try again", Cause::Dns { temporary: true }, SentState::NotSent),
        ("host name not found", Cause::Dns { temporary: false }, SentState::NotSent),
        ("certificate not trusted", Cause::Tls, SentState::NotSent),
        ("stream refused unread, GOAWAY", Cause::RefusedStream, SentState::NotSent),
        ("closed or reset", Cause::Reset, SentState::Unknown),
        ("body broke (buffered)", Cause::Reset, SentState::Sent),
        ("attempt timed out", Cause::Timeout, SentState::Unknown),
        ("request makes no sense", Cause::Invalid, SentState::NotSent),
        ("request body failed", Cause::RequestBody, SentState::Unknown),
        ("response cannot be decoded", Cause::Decode, SentState::Unknown),
        ("anything else", Cause::Other, SentState::Unknown),
    ] {
        let cells = [("GET", false, Never), ("POST", true, Never), ("POST", false, Never)]
            .into_iter()
            .chain([WhenUnsent, WhenRefused, Always].map(|mode| ("POST", false, mode)))
            .map(|(method, keyed, mode)| {
                cell((None, Some(cause), sent), (method, keyed, false), &Hints::default(), mode)
            });
        let _ = writeln!(page, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
}

const INTRODUCTION: &str = "\
# Verdicts

What comes of one attempt by the defaults, made from the code by a test and reviewed as a whole.

- *idempotent*: GET, HEAD, OPTIONS, TRACE, QUERY, PUT, DELETE, any method with `idempotent()`, `If-Match` or
  `If-Unmodified-Since`. *keyed*: any method with an idempotency key. *bare*: POST, PATCH, CONNECT and unknown methods.
- *retry*: another attempt, if attempts, deadline and budget allow. *throttled*: the key is paused too, and the retry
  pays no budget. *once*: another attempt might mend it, and is not safe. *final*: it would not. *answer*: it is the
  answer.
- A body that is used up (a stream) is never sent again, whatever the table says.
";

fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    for (name, hints) in hints() {
        let _ = writeln!(page, "\n## {name}\n");
        statuses(&mut page, &hints);
    }
    page.push_str("\n## Failures\n\nThe last three columns: bare calls under a mode of `retry_non_idempotent`.\n\n");
    failures(&mut page);
    page
}

#[test]
fn the_page_of_verdicts_says_what_the_code_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/verdicts.md");
    let page = page();
    assert!(!page.contains('?'), "every ending has a word");
    if std::env::var_os("ABIDE_BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap();
    for (made, written) in page.lines().zip(written.lines()) {
        assert_eq!(made, written);
    }
    assert_eq!(page.len(), written.len());
}

/// The columns stand for all methods: each behaves as its class, for every status and hint, keyed or not.
#[test]
fn methods_behave_as_their_class() {
    for (_, hints) in hints() {
        for status in 100..=599 {
            for (place, method) in METHODS.iter().enumerate() {
                let class = if place < 7 { "GET" } else { "POST" };
                for (keyed, conflict) in [(false, false), (false, true), (true, false), (true, true)] {
                    let found = of_status(status, (method, keyed, conflict), &hints);
                    assert_eq!(found, of_status(status, (class, keyed, conflict), &hints), "{status} {method}");
                    // A key only ever adds a retry.
                    let unkeyed = of_status(status, (method, false, conflict), &hints);
                    assert!(found == unkeyed || found.starts_with("retry"), "{status} {method}");
                }
            }
        }
    }
}
