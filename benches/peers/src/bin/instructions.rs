//! One thing, so many times, to be counted by callgrind: see `scripts/instructions`.
//!
//! `instructions WHAT N [URL]`

use std::{
    future::ready,
    hint::black_box,
    num::NonZeroU32,
    time::{Duration, SystemTime},
};

use abide::{
    Key, Limiter, Quota, headers,
    http::{Response, StatusCode},
};
use abide_peers::Peer;
use tokio::runtime::{Builder, Runtime};

use self::heads::{DRAFT_11, TRIO, head};

#[path = "../../../support/heads.rs"]
mod heads;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, more @ ..] = arguments.as_slice() else { return Ok(()) };
    let times: u32 = more.first().and_then(|times| times.parse().ok()).unwrap_or(1);
    match what.as_str() {
        "server" => abide_peers::serve()?,
        "bucket" => acquire(Quota::bucket(1_000_000_000, Duration::from_secs(1)), times),
        "window" => acquire(Quota::per_second(u32::MAX), times),
        "governor" => {
            let governor = governor::RateLimiter::keyed(governor::Quota::per_second(NonZeroU32::MAX));
            measured(|| (0..times).for_each(|_| drop(black_box(governor.check_key(&"key")))));
        }
        "plain" => read(&[], times),
        "trio" => read(&TRIO, times),
        "draft-11" => read(&DRAFT_11, times),
        "memory" => memory(&runtime()?, times),
        name => calls(&runtime()?, name, times, more.get(1).map_or("", String::as_str)),
    }
    Ok(())
}

/// What callgrind counts: not what is made before, such as governor's clock, which is calibrated.
#[inline(never)]
fn measured<T>(run: impl FnOnce() -> T) -> T {
    black_box(run())
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn acquire(quota: Quota, times: u32) {
    let limiter = Limiter::builder().quota(quota).build().expect("a good quota");
    let key = Key::from("key");
    measured(|| (0..times).for_each(|_| limiter.try_acquire(&key, 1).expect("there is room").commit()));
}

fn read(more: &[(&'static str, &'static str)], times: u32) {
    let head = head(more);
    let received = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
    measured(|| {
        for _ in 0..times {
            black_box(headers::read(StatusCode::OK, black_box(&head), None, received));
        }
    });
}

/// Whole calls without a wire.
fn memory(runtime: &Runtime, times: u32) {
    let client = abide::Client::builder().transport(|_| ready(Ok(Response::new("").into()))).build();
    let client = client.expect("the defaults are valid");
    let calls = async {
        for _ in 0..times {
            let _ = client.get("https://api.example.com/v1/things?page=1").send().await;
        }
    };
    measured(|| runtime.block_on(calls));
}

fn calls(runtime: &Runtime, name: &str, times: u32, url: &str) {
    let _inside = runtime.enter();
    let mut peer = Peer::of(name).unwrap_or_else(|| panic!("no client is called {name:?}"));
    let calls = async {
        for _ in 0..times {
            peer.get(url).await;
        }
    };
    measured(|| runtime.block_on(calls));
}
