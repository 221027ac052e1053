//! Replays the seeds and every past finding of the fuzz targets on stable. A packaged crate has none of them.

use std::{fs, path::Path};

use crate::fuzzed;

fn replay(target: &str, check: impl Fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    for folder in ["seeds", "findings"] {
        let Ok(files) = fs::read_dir(fuzz.join(folder).join(target)) else { continue };
        for file in files {
            let path = file.expect("a listed file").path();
            check(&fs::read(path).expect("a readable file"));
        }
    }
}

#[test]
fn headers() {
    replay("headers", fuzzed::headers);
}

#[test]
fn http_date() {
    replay("http_date", fuzzed::http_date);
}

#[test]
fn reset_value() {
    replay("reset_value", fuzzed::reset_value);
}

#[test]
fn body_hint() {
    replay("body_hint", fuzzed::body_hint);
}

#[test]
fn explain() {
    replay("explain", fuzzed::explain);
}
