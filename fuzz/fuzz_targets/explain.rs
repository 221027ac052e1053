//! See `explain` in tests/it/fuzzed.rs.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/it/fuzzed.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::explain(data));
