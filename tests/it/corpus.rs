//! Every response of the corpus is read as its line says, and all other spellings of it give the same.

use std::{fs, path::Path, time::SystemTime};

use abide::headers::{self, Hints, QuotaHint};
use abide::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::Value;

const FAMILIES: [&str; 8] = ["ietf", "retry-after", "x-ratelimit", "llm", "saas", "cloud", "frameworks", "exchanges"];

#[test]
fn every_case_is_read_as_it_says() {
    let (mut count, mut wrong) = (0, Vec::new());
    for case in cases() {
        count += 1;
        if let Err(difference) = check(&case) {
            wrong.push(format!("{}: {difference}", case["id"]));
        }
    }
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(count, 173);
}

fn cases() -> impl Iterator<Item = Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/headers");
    FAMILIES.iter().flat_map(move |family| {
        let text = fs::read_to_string(folder.join(format!("{family}.jsonl"))).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    })
}

fn check(case: &Value) -> Result<(), String> {
    let expect = &case["expect"];
    let hints = read(case);
    let wait = hints.retry_after.map(millis);
    if wait != expect["retry_after_ms"].as_f64() {
        return Err(format!("wait {wait:?}, expected {}", expect["retry_after_ms"]));
    }
    if hints.should_retry != expect["should_retry"].as_bool() {
        return Err(format!("should_retry {:?}", hints.should_retry));
    }
    let mut found: Vec<String> = hints.quotas.iter().map(row).collect();
    let mut expected: Vec<String> = expect["quotas"].as_array().unwrap().iter().map(expected_row).collect();
    found.sort();
    expected.sort();
    if found != expected {
        return Err(format!(
            "\n  found    {}\n  expected {}",
            found.join("\n           "),
            expected.join("\n           ")
        ));
    }
    Ok(())
}

fn read(case: &Value) -> Hints {
    let status = StatusCode::from_u16(case["status"].as_u64().unwrap().try_into().unwrap()).unwrap();
    let now: jiff::Timestamp = case["now"].as_str().unwrap().parse().unwrap();
    let mut map = HeaderMap::new();
    for pair in case["headers"].as_array().unwrap() {
        let name: HeaderName = pair[0].as_str().unwrap().parse().unwrap();
        map.append(name, HeaderValue::from_bytes(pair[1].as_str().unwrap().as_bytes()).unwrap());
    }
    let body = case["body"].as_str().map(str::as_bytes);
    headers::read(status, &map, body, SystemTime::from(now))
}

fn row(quota: &QuotaHint) -> String {
    let QuotaHint { name, limit, remaining, reset_after, window, unit, partition, .. } = quota;
    let (reset, window) = (reset_after.map(millis), window.map(millis));
    format!("{name:?} {limit:?} {remaining:?} reset {reset:?} window {window:?} {unit} {partition:?}")
}

fn expected_row(quota: &Value) -> String {
    let text = |key: &str| quota[key].as_str();
    let number = |key: &str| quota[key].as_f64();
    format!(
        "{:?} {:?} {:?} reset {:?} window {:?} {} {:?}",
        text("name"),
        number("limit"),
        number("remaining"),
        number("reset_ms"),
        number("window_ms"),
        text("unit").unwrap(),
        text("partition"),
    )
}

fn millis(duration: std::time::Duration) -> f64 {
    f64::from(u32::try_from(duration.as_nanos() % 1_000_000).unwrap()) / 1e6 + duration.as_millis() as f64
}
