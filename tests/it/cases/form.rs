//! The runner itself: forms are strict, and what it measures is what happened.

use serde_json::{Value, json};

use super::{
    case::{CallCase, Case, MultiCase, Window},
    check::{Wait, over_trials, waits},
    limiter::LimiterCase,
    multi::most_in_window,
};
use crate::support::{
    clock,
    record::{Kind, Request, Seen},
    script::{Entry, Fault},
};

fn cases() -> Vec<Case> {
    super::FILES.into_iter().flat_map(super::read).collect()
}

fn form(case: &Case) -> Result<(), String> {
    match case.mode.as_str() {
        "call" => case.body::<CallCase>().map(drop),
        "multi" => case.body::<MultiCase>().map(drop),
        #[cfg(feature = "cli")]
        "bulk" => case.body::<super::bulk::BulkCase>().map(drop),
        "limiter" => case.body::<LimiterCase>().map(drop),
        _ => Ok(()),
    }
}

/// Every object in `value` with one more field, one at a time.
fn with_a_stranger(value: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    match value {
        Value::Object(fields) => {
            let mut more = value.clone();
            more["stranger"] = json!(1);
            all.push(more);
            // These hold names that the case chooses.
            let own = ["outcomes", "granted_ms", "headers_seen", "headers_absent", "limiters", "summary"];
            for (name, field) in fields.iter().filter(|(name, _)| !own.contains(&name.as_str())) {
                for changed in with_a_stranger(field) {
                    let mut copy = value.clone();
                    copy[name] = changed;
                    all.push(copy);
                }
            }
        }
        Value::Array(values) => {
            for (place, element) in values.iter().enumerate() {
                for changed in with_a_stranger(element) {
                    let mut copy = value.clone();
                    copy[place] = changed;
                    all.push(copy);
                }
            }
        }
        _ => {}
    }
    all
}

#[test]
fn a_field_that_is_not_known_fails_its_case() {
    for case in
        cases().into_iter().filter(|case| case.mode != "redis" && (cfg!(feature = "cli") || case.mode != "bulk"))
    {
        form(&case).unwrap();
        for rest in with_a_stranger(&case.rest) {
            let changed = Case { rest, ..case.clone() };
            assert!(form(&changed).is_err(), "{}: {}", case.id, changed.rest);
        }
    }
}

#[tokio::test]
async fn waits_run_from_the_end_of_an_answer_or_from_giving_up() {
    let start = clock::now();
    let seen = |entry: Entry, arrived: u64, ended: Option<u64>| Seen {
        kind: Kind::Request,
        host: "a",
        connection: 1,
        arrived: start + clock::ms(arrived),
        ended: ended.map(|ended| start + clock::ms(ended)),
        request: Request::default(),
        entry,
    };
    let seen = [
        seen(Entry::status(503), 0, Some(40)),
        seen(Entry::fault(Fault::Stall), 100, Some(420)),
        seen(Entry { delay_ms: Some(900), ..Entry::status(200) }, 450, Some(1350)),
        seen(Entry::status(200), 760, None),
    ];
    let told: Vec<(f64, bool)> = waits(&seen, Some(300)).iter().map(|wait| (wait.ms, wait.after_stall)).collect();
    assert_eq!(told, [(60.0, false), (50.0, true), (10.0, true)]);
}

#[test]
fn trials_are_compared_gap_by_gap() {
    let expect = json!({"attempts": 2, "outcome": "status:200", "spread_min_ms": [10], "some_wait_below_ms": [5]});
    let expect = serde_json::from_value(expect).unwrap();
    let trial = |ms: f64| vec![Wait { ms, after_stall: false }];
    assert_eq!(over_trials(&expect, &[trial(4.0), trial(14.0)]), [""; 0]);
    assert_eq!(over_trials(&expect, &[trial(6.0), trial(14.0)]).len(), 2);
}

#[test]
fn windows_slide() {
    let window = |n: Value| Window { window_ms: 100.0, n: serde_json::from_value(n).unwrap() };
    let arrivals = [0.0, 60.0, 99.0, 159.9, 160.0, 198.0];
    assert_eq!(most_in_window(&arrivals, window(json!(4))), None);
    assert!(most_in_window(&arrivals, window(json!(3))).is_some());
    assert!(most_in_window(&arrivals, window(json!([5, 9]))).is_some());
}
