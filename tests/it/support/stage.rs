//! A stream of rows in a store, and the commands that fill and empty it.
#![expect(clippy::unwrap_used, reason = "a test on processes fails by panic")]

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use abide::testing::Server;
use serde_json::Value;
use tokio::process::{Child, Command};

use super::{
    clock,
    job::{self, Folder},
    redis::Redis,
};

/// A stream in a store, and a folder for what its workers write.
pub(crate) struct Stage {
    pub(crate) redis: Redis,
    pub(crate) folder: Folder,
}

impl Stage {
    /// In this store, empty.
    pub(crate) fn on(redis: Redis) -> Self {
        Self { redis, folder: Folder::new() }
    }

    /// Of the stream.
    pub(crate) fn url(&self) -> String {
        format!("{}/jobs", self.redis.url())
    }

    /// Pushes rows; what the command said.
    pub(crate) async fn push(&self, rows: impl AsRef<[u8]>) -> Output {
        let file = self.folder.write("jobs.jsonl", rows);
        push(&[&file.to_string_lossy(), "--to", &self.url()]).output().await.unwrap()
    }

    /// A worker of the group `g` that writes to this file.
    pub(crate) fn worker(&self, out: &str, options: &str) -> Command {
        let from = format!("--from {} --group g {options}", self.url());
        job::command(&from, &[Path::new("-o"), &self.folder.file(out)])
    }

    /// Result lines of these files, by entry.
    pub(crate) fn results(&self, outs: &[String]) -> BTreeMap<String, Vec<Value>> {
        let mut results = BTreeMap::<String, Vec<Value>>::new();
        for result in outs.iter().flat_map(|out| self.folder.results(out).into_values()) {
            results.entry(result["entry"].as_str().unwrap().to_owned()).or_default().push(result);
        }
        results
    }

    /// Rows that are claimed and not acknowledged.
    pub(crate) fn open(&self) -> usize {
        self.redis.cli(&["XPENDING", "jobs", "g"]).lines().next().unwrap().parse().unwrap()
    }

    /// Names in the group.
    pub(crate) fn consumers(&self) -> usize {
        let consumers = self.redis.cli(&["XINFO", "CONSUMERS", "jobs", "g"]);
        consumers.lines().filter(|line| *line == "pending").count()
    }
}

/// `abide push` with these words.
pub(crate) fn push(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abide"));
    command.arg("push").args(words).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Where it is, without the last slash.
pub(crate) fn base(server: &Server) -> String {
    server.url().to_string().trim_end_matches('/').to_owned()
}

/// Rows that charge, a body each.
pub(crate) fn charges(server: &Server, rows: usize) -> String {
    let row = |n| format!("{{\"method\":\"POST\",\"url\":\"{}/charge\",\"body\":{{\"n\":{n}}}}}\n", base(server));
    (0..rows).map(row).collect()
}

/// Waits for something that is to come, on a machine that may be busy.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = clock::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(clock::now() < end, "{what}: not within a minute");
        clock::sleep(clock::ms(5)).await;
    }
}

/// What a process came to, within two minutes.
pub(crate) async fn end_of(child: Child) -> Output {
    let output = tokio::time::timeout(Duration::from_secs(120), child.wait_with_output()).await;
    output.expect("a worker does not end").unwrap()
}
