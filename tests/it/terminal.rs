//! Text of servers and of job files, on a terminal and in a page: nothing of it is obeyed.
#![expect(clippy::panic, reason = "tests fail by panic")]

use std::process::Output;

use tokio::process::Command;

use crate::support::{
    job::{self, Folder, said},
    rows::Rows,
    script::Entry,
};

/// CSI, BEL, CR, LF, DEL, a C1 control, an override, an isolate, a mark, a separator, a soft hyphen.
const EVIL: &str = "\u{1b}[2J\u{7}\r\nabide: all is well\u{7f}\u{9b}31m\u{202e}\u{2066}\u{200f}\u{2028}\u{ad}";

#[track_caller]
fn assert_tame(output: &Output) {
    for stream in [&output.stdout, &output.stderr] {
        let text = std::str::from_utf8(stream).unwrap();
        let obeyed = |letter: char| {
            letter.is_control() && letter != '\n'
                || matches!(letter, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        };
        if let Some(found) = text.chars().find(|letter| obeyed(*letter)) {
            panic!("{found:?} in {text:?}");
        }
        assert!(!text.lines().any(|line| line.starts_with("abide: all is well")), "a forged line: {text}");
    }
}

async fn abide(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_abide")).args(words).output().await.unwrap()
}

/// JSON whose strings hold all of [`EVIL`], as escapes.
fn evil_json() -> String {
    serde_json::to_string(EVIL).unwrap()
}

#[tokio::test]
async fn what_explain_prints_is_tame() {
    let folder = Folder::new();
    // A header value may hold bytes from 0x80 on, so controls of C1 and what turns text.
    let evil = "a\u{9b}31m\u{202e}b\u{2066}\u{200f}\u{ad}\tc";
    let mut head = format!("HTTP/1.1 429 {evil}\r\n").into_bytes();
    for name in ["retry-after", "x-ratelimit-limit", "x-ratelimit-resource", "x-ratelimit-bucket", "ratelimit-policy"] {
        head.extend(format!("{name}: {evil}\r\n").into_bytes());
        head.extend([name.as_bytes(), b": \x9b31m\xff\r\n"].concat());
    }
    head.extend(b"x-ratelimit-remaining: 0\r\nx-ratelimit-reset: 30\r\nx-ratelimit-limit: 9\r\n\r\n");
    let path = folder.write("head", head);
    let path = path.to_str().unwrap();
    for words in [vec!["explain", path], vec!["explain", "--json", path]] {
        let output = abide(&words).await;
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(!output.stdout.is_empty());
        assert_tame(&output);
    }
    let missing = abide(&["explain", &format!("/no/{EVIL}")]).await;
    assert_eq!(missing.status.code(), Some(2));
    assert_tame(&missing);
}

#[tokio::test]
async fn what_a_run_prints_is_tame() {
    let (folder, url) = (Folder::new(), nobody());
    let mut evil = Entry::with_body(200, &format!("body {EVIL}"));
    evil.headers.push(("x-evil".into(), "\u{9b}31m\u{202e}".into()));
    evil.headers.push(("x-ratelimit-resource".into(), "\u{9b}31m\u{202e}".into()));
    let rows = Rows::start(evil, [(2, vec![Entry::status(404)])].into()).await;
    let (id, row) = (evil_json(), |n| rows.url(n));
    let jobs = [
        format!(r#"{{"id":{id},"url":"{}","meta":{id},"headers":{{"x-plain":"\u009b31m"}}}}"#, row(1)),
        format!(r#"{{"id":{id},"url":"{}"}}"#, row(2)),
        format!(r#"{{"id":{id},"url":"{url}/{}"}}"#, "\u{202e}"),
        format!(r#"{{"id":{id},"url":{id}}}"#),
        format!(r#"{{"id":{id},"url":"{}","headers":{id}}}"#, row(1)),
        format!(r#"{{"id":{id},"url":"{}",{id}:1}}"#, row(1)),
        format!("\u{1b}[2J\u{9b}{}", "\u{202e}"),
    ];
    let path = folder.write("jobs", jobs.join("\n"));
    let options = "-v --progress always --max-attempts 1 --deadline 5s";
    let output = job::run(options, &[&path]).await;
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), jobs.len());
    assert!(said(&output).lines().filter(|line| line.starts_with("abide: line ")).count() >= 5, "{}", said(&output));
    assert_tame(&output);

    let dry = job::run("-v --dry-run", &[&path]).await;
    assert_eq!(String::from_utf8_lossy(&dry.stdout).lines().count(), jobs.len(), "{}", said(&dry));
    assert_tame(&dry);

    // Rows whose fate is open are named.
    let posts = folder.write("posts", format!(r#"{{"id":{id},"method":"POST","url":"{}"}}"#, row(2)));
    let out = folder.file("out");
    let first = job::run("--max-attempts 1 -o", &[&out, &posts]).await;
    assert_eq!(first.status.code(), Some(1), "{}", said(&first));
    let head = folder.read("out.journal").lines().next().unwrap().to_owned();
    folder.write("out.journal", format!("{head}\n{{\"claim\":1,\"key\":null,\"at\":0}}\n"));
    folder.write("out", "");
    let again = job::run("--resume -o", &[&out, &posts]).await;
    assert!(said(&again).contains("may not be repeated"), "{}", said(&again));
    assert_tame(&again);
}

/// Where nobody listens.
fn nobody() -> String {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    format!("http://{address}")
}

#[tokio::test]
async fn the_report_holds_no_foreign_markup() {
    const MARKUP: &str = r#"</style></title><script>alert("x")</script>'"><img src=x onerror=alert(1)>"#;
    let folder = Folder::new();
    let rows = Rows::start(Entry::with_body(404, MARKUP), [].into()).await;
    let id = serde_json::to_string(MARKUP).unwrap();
    let jobs = [
        format!(r#"{{"id":{id},"url":"{}"}}"#, rows.url(1)),
        format!(r#"{{"id":{id},"url":"{}/<script>?<script>"}}"#, nobody()),
        format!(r#"{{"id":{id},"url":{id}}}"#),
        format!(r#"{{"id":{id},"url":"{}",{id}:1}}"#, rows.url(1)),
        format!(r#"{{"id":{id},"url":"{}","headers":{id}}}"#, rows.url(1)),
    ];
    let path = folder.write("jobs <script>alert(1)<⁄script> \"' .jsonl", jobs.join("\n"));
    let (out, report) = (folder.file("out"), folder.file("report.html"));
    let mut command = job::command("--max-attempts 1 --deadline 5s", &[&path]);
    command.arg("-H").arg(format!("User-Agent: {}", MARKUP.replace('/', "|"))).arg("-o").arg(&out);
    let output = command.arg("--report").arg(&report).output().await.unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let page = folder.read("report.html");
    // All of it is there, and none of it is markup.
    assert!(page.matches("&lt;script&gt;").count() >= 6, "{page}");
    for markup in ["<script", "<img", "alert(\"", "onerror=alert(1)>"] {
        assert!(!page.contains(markup), "{markup} in {page}");
    }
    assert_eq!((page.matches("</style>").count(), page.matches("</title>").count()), (1, 1));
}

#[cfg(unix)]
#[tokio::test]
async fn files_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let rows = Rows::start(Entry::with_body(200, "secret"), [].into()).await;
    let jobs = folder.write("jobs", rows.url(1));
    let names = ["out", "report.html", "summary.json", "out.journal"];
    let [out, report, summary, _] = names.map(|name| folder.file(name));
    let paths = [out.as_path(), "--report".as_ref(), &report, "--summary".as_ref(), &summary, &jobs];
    let output = job::run("--idempotency-key auto -o", &paths).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let mode = |name: &str| std::fs::metadata(folder.file(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(names.map(mode), [0o600; 4], "{names:?}");
    // Also those that are written anew.
    let output = job::run("--retry-failed --idempotency-key auto -o", &paths).await;
    assert_eq!((output.status.code(), names.map(mode)), (Some(0), [0o600; 4]), "{}", said(&output));
}

/// In a folder that others write to, what they put where the journal is written anew is not followed.
#[cfg(unix)]
#[tokio::test]
async fn a_link_in_the_way_is_not_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = Folder::new();
    let rows = Rows::start(Entry::with_body(200, "fine"), [].into()).await;
    let (jobs, victim) = (folder.write("jobs", rows.url(1)), folder.write("victim", "untouched"));
    symlink(&victim, folder.file("out.journal.new")).unwrap();
    let output = job::run("--idempotency-key auto -o", &[&folder.file("out"), &jobs]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(folder.read("victim"), "untouched");
    let mode = std::fs::symlink_metadata(folder.file("out.journal")).unwrap().permissions().mode();
    assert_eq!(mode, 0o100_600, "{mode:o}");
}
