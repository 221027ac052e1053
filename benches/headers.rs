//! Reading a response head: nanoseconds of one `headers::read`, the best of many rounds.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]

use std::{
    hint::black_box,
    time::{Duration, Instant, SystemTime},
};

use abide::{
    headers,
    http::{HeaderMap, StatusCode},
};

use self::heads::{DRAFT_11, TRIO, head};

#[path = "support/heads.rs"]
mod heads;

fn main() {
    println!("| head | ns | goal |\n| --- | --- | --- |");
    row("12 plain headers", &[], 150);
    row("+ the X-RateLimit trio", &TRIO, 600);
    row("+ draft 11", &DRAFT_11, 900);
}

fn row(what: &str, more: &[(&'static str, &'static str)], goal: u32) {
    println!("| {what} | {:.0} | {goal} |", best(&head(more)));
}

/// The best of rounds: what else runs on the machine only ever adds.
#[expect(clippy::disallowed_methods, reason = "a bench measures real time")]
fn best(head: &HeaderMap) -> f64 {
    const READS: u32 = 20_000;
    let received = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
    let rounds = (0..60).map(|_| {
        let start = Instant::now();
        for _ in 0..READS {
            black_box(headers::read(StatusCode::OK, black_box(head), None, received));
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(READS)
    });
    rounds.fold(f64::INFINITY, f64::min)
}
