//! A test in a process of its own, whose memory, tasks and panics are its own.

use std::{env, process::Command};

/// Whether this is the process of this thread's test alone; if not, it was just run in one, and it passed.
pub(crate) fn is_alone() -> bool {
    const CHILD: &str = "ABIDE_ALONE";
    if env::var_os(CHILD).is_some() {
        return true;
    }
    rerun(CHILD, "1");
    false
}

/// Runs this thread's test again, in a process that finds `value` as `name` in its environment; fails if it does.
pub(crate) fn rerun(name: &str, value: &str) {
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", std::thread::current().name().unwrap(), "--nocapture"])
        .env(name, value)
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    println!("{said}");
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}
