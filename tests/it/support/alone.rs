//! A test in a process of its own, whose memory, tasks and panics are its own.

use std::{any::type_name, env, process::Command};

/// Whether this is the process of this test alone; if not, it was just run in one, and it passed. `here` is any closure
/// of the test's own: its type bears the test's name, which a thread bears only where several are used.
pub(crate) fn is_alone<F>(here: &F) -> bool {
    const CHILD: &str = "ABIDE_ALONE";
    if env::var_os(CHILD).is_some() {
        return true;
    }
    rerun(here, CHILD, "1");
    false
}

/// Runs the test of `here` again, in a process that finds `value` as `name` in its environment; fails if it does.
pub(crate) fn rerun<F>(here: &F, name: &str, value: &str) {
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", &test_of(here), "--nocapture"])
        .env(name, value)
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    println!("{said}");
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

/// `it::module::test::{{closure}}` without its ends.
pub(crate) fn test_of<F>(_: &F) -> String {
    let path = type_name::<F>().replace("::{{closure}}", "");
    path.split_once("::").map(|(_, test)| test.to_owned()).unwrap_or(path)
}
