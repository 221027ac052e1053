//! `abide serve` as a process.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

fn serve(options: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abide"));
    command.arg("serve").args(options).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[cfg(unix)]
#[tokio::test]
async fn serves_until_a_signal() {
    for signal in ["-INT", "-TERM"] {
        let mut child = serve(&["--limit", "1", "--window", "24h", "--algorithm", "sliding-log", "--dialect", "none"]);
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let statuses = [reqwest::get(url.trim()).await, reqwest::get(url.trim()).await];
        assert_eq!(statuses.map(|r| r.unwrap().status().as_u16()), [200, 429]);
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(stderr.contains("\"accepted\":1,\"refused\":1"), "{stderr}");
    }
}

#[track_caller]
fn refused(options: &[&str], said: &str) {
    let output = serve(options).wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{options:?}: {stderr}");
    assert!(stderr.contains(said), "{options:?}: {stderr}");
}

#[test]
fn bad_options_end_with_2() {
    refused(&["--limit", "0"], "units must be at least 1");
    refused(&["--limit", "5", "--window", "5"], "expected one such as 50ms, 1.5s or 2m");
    refused(&["--algorithm", "leaky", "--limit", "5"], "expected one of fixed-window, sliding-log");
    refused(&["--dialect", "draft-99"], "expected one of draft-03");
    refused(&["--fault-rate", "2"], "the rate must be in 0..=1");
    refused(&["--latency", "2s..1s"], "runs backward");
    refused(&["--burst", "5"], "--limit");
}
