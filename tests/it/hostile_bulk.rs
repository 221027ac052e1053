//! A bulk run against servers that mean harm.
#![cfg(target_os = "linux")]

use std::time::Duration;

use tokio::process::Child;

use crate::support::{
    clock::ms,
    job::{self, Folder, said},
    raw::{Raw, Step, say},
};

const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunk(letter: u8) -> Vec<u8> {
    [b"10000\r\n".as_slice(), &[letter; 65_536], b"\r\n"].concat()
}

/// Runs rows side by side; the folder of their results, what was said, and how much memory it took at most, in MiB.
async fn rows(rows: usize, steps: Vec<Step>, options: &str) -> (Folder, Option<i32>, u64) {
    let (server, folder) = (Raw::always(steps).await, Folder::new());
    let (jobs, out) = (folder.write("jobs", format!("{}\n", server.url()).repeat(rows)), folder.file("out"));
    let mut child = job::command(&format!("--max-attempts 1 {options} -o"), &[&out, &jobs]).spawn().unwrap();
    let (mut most, mut took) = (0, Duration::ZERO);
    while child.try_wait().unwrap().is_none() {
        most = high(&child).unwrap_or(0).max(most);
        crate::support::clock::sleep(ms(10)).await;
        took += ms(10);
        assert!(took < Duration::from_secs(100), "the run does not end");
    }
    let output = child.wait_with_output().await.unwrap();
    println!("{rows} rows, {options}: {} MiB at most: {}", most / 1024, said(&output));
    (folder, output.status.code(), most / 1024)
}

/// Of a process, in KiB.
fn high(child: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()?)).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Runs one row; its result.
async fn row(steps: Vec<Step>, options: &str) -> serde_json::Value {
    let (folder, code, _) = rows(1, steps, options).await;
    assert_eq!(code, Some(1));
    folder.results("out").remove(&1).unwrap()
}

/// What is beyond the buffer of the attempt is read after it: that too ends by the row's deadline.
#[tokio::test]
async fn a_long_body_that_drips() {
    let drip = Step::Drip(b"1\r\nx\r\n".to_vec(), ms(15));
    let result = row(vec![say(HEAD), Step::Flood(chunk(b'x'), 140), drip], "--deadline 5s").await;
    assert_eq!((result["ok"].as_bool(), result["error"]["kind"].as_str()), (Some(false), Some("deadline")), "{result}");
}

#[tokio::test]
async fn a_body_without_end() {
    let result = row(vec![say(HEAD), Step::Flood(chunk(b'x'), 1 << 20)], "--deadline 50s").await;
    assert_eq!(result["error"]["kind"], "body", "{result}");
    assert!(result["error"]["message"].as_str().unwrap().contains("64 MiB"), "{result}");
}

/// Side by side they have no more room than a few have.
#[tokio::test]
async fn many_bodies_without_end() {
    let endless = vec![say(HEAD), Step::Flood(chunk(b'x'), 1 << 20)];
    let (folder, _, most) = rows(16, endless, "--deadline 90s").await;
    let results = folder.results("out");
    assert!(results.values().all(|result| result["error"]["kind"] == "body"), "{results:?}");
    assert_eq!((results.len(), most < 220), (16, true), "{most} MiB");
}

/// Those that drip do not keep others from the room that they have.
#[tokio::test]
async fn long_bodies_pass_those_that_drip() {
    let drip = Step::Drip(b"1\r\nx\r\n".to_vec(), ms(15));
    let dripping = vec![say(HEAD), Step::Flood(chunk(b'x'), 640), drip];
    let whole = vec![say(HEAD), Step::Flood(chunk(b'x'), 160), say("0\r\n\r\n")];
    let server = Raw::start(move |n| if n < 2 { dripping.clone() } else { whole.clone() }).await;
    let folder = Folder::new();
    let (jobs, out) = (folder.write("jobs", format!("{}\n", server.url()).repeat(6)), folder.file("out"));
    let output = job::run("--max-attempts 1 --deadline 30s -o", &[&out, &jobs]).await;
    let results = folder.results("out");
    let ok = results.values().filter(|result| result["ok"] == true).count();
    assert_eq!((results.len(), ok), (6, 4), "{}", said(&output));
    let slow = results.values().filter(|result| result["error"]["kind"] == "body").count();
    assert!(slow > 0, "{}", said(&output));
}

/// A body is written as text of which each byte takes six, or as base64: that is never there as a whole.
#[tokio::test]
async fn bodies_that_swell_when_they_are_written() {
    for letter in [1, 0xff] {
        let swelling = vec![say(HEAD), Step::Flood(chunk(letter), 320), say("0\r\n\r\n")];
        let (folder, code, most) = rows(1, swelling, "").await;
        assert_eq!(code, Some(0));
        let result = folder.results("out").remove(&1).unwrap();
        let length = match letter {
            1 => result["body"].as_str().unwrap().len(),
            _ => result["body_base64"].as_str().unwrap().len() / 4 * 3,
        };
        assert!(length.abs_diff(20 << 20) < 4, "{length}");
        assert!(most < 90, "{most} MiB");
    }
}
