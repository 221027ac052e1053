//! `abide explain`, run as users run it.
#![cfg(feature = "cli")]

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

fn explain(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_abide"))
        .arg("explain")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that stops reading early closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn json_of(arguments: &[&str], input: &str) -> Value {
    let output = explain(arguments, input.as_bytes());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn page_of(input: &str) -> String {
    let output = explain(&["--now", "2026-09-21T14:13:20Z"], input.as_bytes());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn json_is_as_documented() {
    let head = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nRateLimit-Policy: \"p\";q=10;w=60\r\nRateLimit: \"p\";r=0;t=7\r\n\r\n";
    let expected = json!({
        "retry_after_ms": 7000,
        "should_retry": null,
        "quotas": [{"name": "p", "limit": 10, "remaining": 0, "reset_ms": 7000, "window_ms": 60000, "unit": "requests", "partition": null}],
    });
    assert_eq!(json_of(&["--json"], head), expected);
    assert_eq!(json_of(&["--json", "-"], head), expected);
}

#[test]
fn now_and_date_are_clocks() {
    let head = "HTTP/2 429\nx-ratelimit-reset: 1790000030\n\n";
    assert_eq!(json_of(&["--json", "--now", "2026-09-21T14:13:20Z"], head)["quotas"][0]["reset_ms"], 30_000);
    let dated = "HTTP/2 429\ndate: Mon, 21 Sep 2026 14:13:40 GMT\nx-ratelimit-reset: 1790000030\n\n";
    assert_eq!(json_of(&["--json"], dated)["quotas"][0]["reset_ms"], 10_000);
}

#[test]
fn the_last_head_counts_and_the_body_is_read() {
    let heads = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 302 Found\r\nRetry-After: 1\r\n\r\nHTTP/2 429 \r\ncontent-type: application/json\r\n\r\n{\"retry_after\": 0.5}";
    assert_eq!(json_of(&["--json"], heads)["retry_after_ms"], 500);
}

#[test]
fn a_file_is_read() {
    let path = std::env::temp_dir().join(format!("abide-explain-{}", std::process::id()));
    std::fs::write(&path, "HTTP/1.1 503\nretry-after: 2\n").unwrap();
    assert_eq!(json_of(&["--json", path.to_str().unwrap()], "")["retry_after_ms"], 2000);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_page_says_what_where_and_what_next() {
    let page = page_of(
        "HTTP/1.1 429 Too Many Requests\nretry-after: 30\nratelimit-limit: 10;w=60\nratelimit-remaining: 0\nx-ratelimit-mood: grim\n\n",
    );
    for expected in [
        "retry-after",
        "wait 30s (seconds from now)",
        "until 2026-09-21T14:13:50Z, 30s from receipt",
        "abide would limit 10 requests in any 1m 0s",
        "not understood: x-ratelimit-mood: grim",
    ] {
        assert!(page.contains(expected), "no {expected:?} in\n{page}");
    }
    assert!(page_of("HTTP/1.1 200 OK\nserver: x\n\n").contains("nothing about limits"));
}

#[test]
fn control_characters_of_the_server_are_not_printed() {
    let page = page_of("HTTP/1.1 429\nx-ratelimit-limit: 5\nx-ratelimit-name: \u{9b}31m\u{202e}evil\n\n");
    assert!(page.contains("evil") && !page.contains(['\u{9b}', '\u{202e}', '\u{1b}']), "{page:?}");
    let output = explain(&[], b"HTTP/1.1 429\nx-ratelimit-limit: \x1b[2J\n\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(!output.stderr.contains(&0x1b));
}

#[test]
fn bad_input_is_told_with_its_line() {
    for (input, expected) in [
        ("", "the input is empty"),
        ("hello\n", "line 1: expected a status line"),
        ("HTTP/1.1 429\nnonsense\n", "line 2: expected a header"),
        ("HTTP/1.1 429\nbad name: 1\n", "line 2: expected a header name"),
        ("HTTP/1.1 9999\n", "line 1: expected a status line"),
    ] {
        let output = explain(&[], input.as_bytes());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{input:?}");
        assert!(message.contains(expected) && output.stdout.is_empty(), "{input:?}: {message}");
    }
    assert_eq!(explain(&["/no/such/file"], b"").status.code(), Some(2));
    assert_eq!(explain(&["--now", "yesterday"], b"").status.code(), Some(2));
}
