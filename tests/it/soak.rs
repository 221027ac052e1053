//! Minutes of calls under all faults: memory stays flat, and no task is left.
#![cfg(target_os = "linux")]

use std::{env, fs, time::Duration};

use abide::{
    Backoff, Client, Policy, Quota, ResponseExt,
    testing::{Faults, Server},
};
use tokio::{runtime, task::JoinSet};

use crate::support::{
    alone::rerun,
    clock::{self, ms},
};

const TASKS: u64 = 64;

/// Of this process, in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// `ABIDE_LONG` is the number of seconds; 60 if it is no number above 1.
fn length() -> Duration {
    let seconds = match env::var("ABIDE_LONG") {
        Ok(text) => text.parse().ok().filter(|seconds| *seconds > 1).unwrap_or(60),
        Err(_) => 5,
    };
    Duration::from_secs(seconds)
}

/// Calls of every kind, one after the other, until the time is over; how many.
async fn work(client: Client, url: String, task: u64, until: tokio::time::Instant) -> u64 {
    let mut calls = 0;
    while clock::now() < until {
        calls += 1;
        let number = task << 32 | calls;
        let call = match calls % 6 {
            0 => client.post(format!("{url}/charge")).auto_idempotency_key().body(number.to_string()),
            1 => client.put(format!("{url}/things")).body_with(|| reqwest::Body::from(vec![b'x'; 2000])),
            2 => client.get(format!("{url}/things/{number}")).buffered(1024),
            3 => client.post(format!("{url}/things")).body("bare"),
            4 => client.get(&url).key(format!("{}", number % 500)),
            _ => client.get(&url).deadline(ms(calls % 40)),
        };
        // One in seven is given up, one in two keeps its body unread.
        let call = async {
            let Ok(response) = call.send().await else { return };
            assert!(!response.history().attempts().is_empty());
            if calls % 2 == 0 {
                let _ = response.bytes().await;
            }
        };
        let patience = if calls % 7 == 0 { ms(calls % 30) } else { Duration::from_secs(60) };
        let _ = tokio::time::timeout(patience, call).await;
    }
    calls
}

/// Where the server of the parent process is.
const URL: &str = "ABIDE_SOAK_URL";

/// The calls are made in a process of their own, whose memory no other test and no server touches.
#[test]
fn memory_is_flat_and_no_task_is_left() {
    if let Ok(url) = env::var(URL) {
        return soak(&url);
    }
    let far = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Server::builder().faults(Faults::rate(0.2)).limit(Quota::per_second(800)).latency(ms(0)..ms(4));
    let server = far.block_on(server.start()).unwrap();
    rerun(&|| (), URL, server.url());
    println!("{}", server.stats());
    assert!(server.stats().faults > 20 && server.stats().executions > 20);
    // The client's process has ended, and every fault that waited for its end with it.
    far.block_on(async {
        let until = clock::now() + Duration::from_secs(5);
        while server.stats().in_flight > 0 {
            assert!(clock::now() < until, "{}", server.stats());
            clock::sleep(ms(10)).await;
        }
    });
}

fn soak(url: &str) {
    let near = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    near.block_on(async {
        let http = reqwest::Client::builder().pool_max_idle_per_host(8).no_proxy();
        let policy = Policy::default().backoff(Backoff::full_jitter(ms(2), ms(40))).attempt_timeout(ms(200));
        let client = Client::builder().http(http).policy(policy).max_in_flight(48).build().unwrap();
        let (start, until) = (clock::now(), clock::now() + length());
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            tasks.spawn(work(client.clone(), url.to_owned(), task, until));
        }
        // The first fifth fills pools, maps and the allocator's arenas.
        clock::sleep_until(start + length() / 5).await;
        let settled = resident();
        let mut most = settled;
        while clock::now() + ms(100) < until {
            clock::sleep(ms(100)).await;
            most = most.max(resident());
        }
        let calls: u64 = tasks.join_all().await.into_iter().sum();
        let keys = client.limiter().tracked_keys();
        drop(client);
        let until = clock::now() + Duration::from_secs(5);
        let metrics = runtime::Handle::current().metrics();
        while metrics.num_alive_tasks() > 0 {
            assert!(clock::now() < until, "{} tasks are left", metrics.num_alive_tasks());
            clock::sleep(ms(10)).await;
        }
        println!("{calls} calls, {keys} keys, {settled} KiB after a fifth of the time, then at most {most} KiB");
        assert!(calls > 200 && most < settled + settled / 10 + 2048, "{calls} calls, {settled} KiB, then {most} KiB");
    });
}
