//! A bulk run against servers that mean harm.
#![cfg(target_os = "linux")]

use std::time::Duration;

use crate::support::{
    clock::ms,
    job::{self, Folder, said},
    raw::{Raw, Step, say},
};

const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunk() -> Vec<u8> {
    [b"10000\r\n".as_slice(), &[b'x'; 65_536], b"\r\n"].concat()
}

/// Runs one row; its result.
async fn row(steps: Vec<Step>, options: &str) -> serde_json::Value {
    let (server, folder) = (Raw::always(steps).await, Folder::new());
    let (jobs, out) = (folder.write("jobs", server.url()), folder.file("out"));
    let mut command = job::command(&format!("--max-attempts 1 {options} -o"), &[&out, &jobs]);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.expect("the run ends").unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    folder.results("out").remove(&1).unwrap()
}

/// What is beyond the buffer of the attempt is read after it: that too ends by the row's deadline.
#[tokio::test]
async fn a_long_body_that_drips() {
    let drip = Step::Drip(b"1\r\nx\r\n".to_vec(), ms(15));
    let result = row(vec![say(HEAD), Step::Flood(chunk(), 140), drip], "--deadline 5s").await;
    assert_eq!((result["ok"].as_bool(), result["error"]["kind"].as_str()), (Some(false), Some("deadline")), "{result}");
}

#[tokio::test]
async fn a_body_without_end() {
    let result = row(vec![say(HEAD), Step::Flood(chunk(), 1 << 20)], "--deadline 50s").await;
    assert_eq!(result["error"]["kind"], "body", "{result}");
    assert!(result["error"]["message"].as_str().unwrap().contains("64 MiB"), "{result}");
}
