//! A call that is dropped, at whatever point, leaves nothing behind.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use std::{
    convert::Infallible,
    future::Future,
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use abide::{
    Backoff, Client, Key, Limiter, Policy, Quota, RequestBuilder, ResponseExt, RetryBudget, Stop, Unit,
    http::HeaderMap,
    testing::{Faults, Server},
};
use futures_util::{StreamExt, stream};
use reqwest::Body;

use crate::{
    memory::{Net, Reply, status},
    support::clock::{self, ms},
};

const URL: &str = "https://api.example/v1/things";

/// Polls so many times, a millisecond apart, then drops; whether it had ended by then.
async fn poll(future: impl Future, polls: u32) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return true;
        }
        tokio::time::advance(ms(1)).await;
    }
    false
}

/// Chunks, three milliseconds apart.
fn slow(chunks: usize, length: usize) -> Body {
    Body::wrap_stream(stream::iter(0..chunks).then(move |_| async move {
        clock::sleep(ms(3)).await;
        Ok::<_, Infallible>("x".repeat(length))
    }))
}

fn limiter() -> Limiter {
    // So slow that nothing comes back within the test.
    let day = Quota::bucket(20, Duration::from_secs(86_400)).burst(20);
    Limiter::builder().quota(day).max_in_flight(1).learn(false).build().unwrap()
}

/// Drops the call after each number of polls until it ends by itself, and looks at what it left.
async fn check(replies: fn() -> Vec<Reply>, call: impl Fn(&Client) -> RequestBuilder) {
    for polls in 1.. {
        let net = Net::new(replies());
        let budget = RetryBudget::ratio(0.0).floor(2);
        let policy = Policy::default().backoff(Backoff::constant(ms(4))).budget(budget).max_attempts(3);
        let client = net.client().policy(policy).limiter(limiter()).build().unwrap();
        let ended = poll(call(&client).key("k").send(), polls).await;
        let key = Key::from("k");
        let sent = net.count();
        if sent > 0 || polls > 1 {
            let snapshot = client.limiter().snapshot(&key).unwrap();
            assert_eq!((snapshot.waiting, snapshot.in_flight), (0, 0), "after {polls} polls");
            assert_eq!(snapshot.left, [(Unit::Requests, 20 - sent as u64)], "after {polls} polls");
        }
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
        if ended {
            assert!(polls > 5, "the call took its time");
            return;
        }
        // The slot is free, and the budget has every retry that was not sent.
        net.replace((0..4).map(|_| status(500)));
        let after = client.get(URL).key("k").deadline(Duration::from_secs(9)).send().await.unwrap();
        let retries = net.count() - sent - 1;
        assert!(after.history().stop() == Stop::BudgetSpent || retries == 2, "{:?}", after.history());
        assert_eq!(retries, 2 - paid(&net.lines()[..sent]), "after {polls} polls");
    }
}

/// Requests that were neither the first nor a redirect's.
fn paid(lines: &[String]) -> usize {
    lines.windows(2).filter(|pair| pair[0] == pair[1]).count()
}

#[tokio::test(start_paused = true)]
async fn between_attempts_it_gives_back_permit_slot_and_budget() {
    check(|| vec![status(503).after(ms(5)), status(500).after(ms(5)), status(200)], |client| client.get(URL)).await;
    check(|| vec![Reply::Reset, Reply::Refuse, status(200)], |client| client.get(URL)).await;
}

#[tokio::test(start_paused = true)]
async fn within_a_body_it_gives_back_permit_slot_and_budget() {
    check(|| vec![status(200).body(slow(5, 10))], |client| client.get(URL).buffered(1000)).await;
    // Read between attempts, and too long to be read.
    check(|| vec![status(503).body(slow(3, 10)), status(200)], |client| client.get(URL)).await;
    check(|| vec![status(503).body(slow(9, 32 * 1024)), status(200)], |client| client.get(URL)).await;
}

#[tokio::test(start_paused = true)]
async fn before_the_send_it_gives_back_permit_slot_and_budget() {
    let late = |_| async {
        clock::sleep(ms(4)).await;
        Ok(HeaderMap::new())
    };
    check(|| vec![status(503), status(200)], move |client| client.get(URL).headers_with(late)).await;
    check(
        || vec![status(307).header("location", "/there").after(ms(2)), status(503), status(200)],
        move |client| client.get(URL).headers_with(late),
    )
    .await;
}

/// In the line for a slot that another call holds.
#[tokio::test(start_paused = true)]
async fn in_the_line_it_gives_up_its_place() {
    for polls in 1..6 {
        let net = Net::new([status(200).body("a"), status(200).body("b")]);
        let client = net.client().policy(Policy::default().no_budget()).limiter(limiter()).build().unwrap();
        let key = Key::from("k");
        let holder = client.get(URL).key("k").send().await.unwrap();
        assert!(!poll(client.get(URL).key("k").send(), polls).await);
        let snapshot = client.limiter().snapshot(&key).unwrap();
        assert_eq!((snapshot.waiting, snapshot.in_flight, net.count()), (0, 1, 1));
        drop(holder);
        assert_eq!(client.get(URL).key("k").send().await.unwrap().text().await.unwrap(), "b");
        assert_eq!(client.limiter().snapshot(&key).unwrap().in_flight, 0);
    }
}

/// On sockets: calls are dropped at random instants, amid faults of all kinds.
#[test]
fn on_sockets_it_leaves_no_connection_and_no_task() {
    // The server's tasks are not the client's.
    let far = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let near = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = Server::builder().latency(ms(0)..ms(8)).faults(Faults::rate(0.4)).seed(3);
    let server = far.block_on(server.start()).unwrap();
    let url = format!("{}/things", server.url());
    near.block_on(async {
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).no_proxy();
        let policy = Policy::default().backoff(Backoff::full_jitter(ms(1), ms(8))).attempt_timeout(ms(30));
        let client = Client::builder().http(http).policy(policy).max_in_flight(8).build().unwrap();
        let dropped = stream::iter(0..600u64).map(|number| {
            let call = client.get(&url).key("k").buffered(1000).send();
            tokio::time::timeout(Duration::from_micros(number * 7919 % 100_000), call)
        });
        let cut = dropped.buffer_unordered(24).filter(|ended| std::future::ready(ended.is_err())).count().await;
        assert!(cut >= 30, "{cut} were dropped");
        let snapshot = client.limiter().snapshot(&Key::from("k")).unwrap();
        assert_eq!((snapshot.waiting, snapshot.in_flight), (0, 0));
        let metrics = tokio::runtime::Handle::current().metrics();
        let until = clock::now() + Duration::from_secs(5);
        while metrics.num_alive_tasks() + server.stats().in_flight as usize > 0 {
            assert!(clock::now() < until, "{} tasks, {}", metrics.num_alive_tasks(), server.stats());
            clock::sleep(ms(5)).await;
        }
    });
}
