//! `abide run` as a process, and the files around it.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test on processes fails by panic")]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use serde_json::Value;
use tokio::process::{Child, Command};

/// A folder that is gone when this is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// A new one.
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("abide-{:016x}", rand::random::<u64>()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// A file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.file(name), text).unwrap();
        self.file(name)
    }

    /// A file as text; empty if it is not there.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// Lines of a file that are there so far.
    pub(crate) fn lines(&self, name: &str) -> usize {
        std::fs::read(self.file(name)).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count()
    }

    /// The results in a file, by line of the input; panics if one is no JSON or comes twice.
    pub(crate) fn results(&self, name: &str) -> BTreeMap<u64, Value> {
        let mut results = BTreeMap::new();
        for line in self.read(name).lines() {
            let result: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            let row = result["line"].as_u64().unwrap();
            assert!(results.insert(row, result).is_none(), "line {row} has two results");
        }
        results
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `abide run` with the words of `options`, and paths after them.
pub(crate) fn command(options: &str, paths: &[&Path]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abide"));
    command.arg("run").args(options.split_whitespace()).args(paths);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Runs to the end.
pub(crate) async fn run(options: &str, paths: &[&Path]) -> Output {
    command(options, paths).output().await.unwrap()
}

/// Sends a signal: `INT`, say.
pub(crate) async fn signal(child: &Child, name: &str) {
    let Some(id) = child.id() else { return };
    let name = name.trim_start_matches("SIG");
    let _ = Command::new("kill").args([&format!("-{name}"), &id.to_string()]).status().await;
}

/// What the process said on stderr.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
