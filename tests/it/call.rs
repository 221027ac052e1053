//! Whole calls in memory, under paused time: every wait is exact.

use std::{
    future::Future,
    io,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    time::Duration,
};

use abide::{
    Answer, Backoff, Cause, Client, Error, Event, NonIdempotent, Note, Policy, ResponseExt, RetryBudget, SentState,
    Stop, Verdict,
    http::{HeaderMap, HeaderValue},
};
use reqwest::{Body, Request, Response};
use tokio::time::Instant;

use crate::memory::{Net, Reply, status};

const URL: &str = "https://api.example/v1/things?token=secret";

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn policy() -> Policy {
    Policy::default().backoff(Backoff::full_jitter(ms(50), ms(400))).no_budget()
}

fn client(net: &Net) -> Client {
    net.client().policy(policy()).build().unwrap()
}

fn stream(chunks: &[&'static str]) -> Body {
    let chunks: Vec<Result<_, io::Error>> = chunks.iter().map(|chunk| Ok(*chunk)).collect();
    Body::wrap_stream(futures_util::stream::iter(chunks))
}

fn broken(start: &'static str) -> Body {
    let error = io::Error::from(io::ErrorKind::ConnectionReset);
    Body::wrap_stream(futures_util::stream::iter([Ok(start), Err(error)]))
}

#[tokio::test(start_paused = true)]
async fn a_passing_failure_is_retried_within_its_jitter() {
    for seed in 0..50 {
        let net = Net::new([status(503), Reply::Reset, status(200).body("done")]);
        let client = net.client().policy(policy()).seed(seed).build().unwrap();
        let response = client.get(URL).send().await.unwrap();
        assert_eq!(response.history().stop(), Stop::Answered);
        let attempts = response.history().attempts();
        assert_eq!(attempts.iter().map(|attempt| attempt.number()).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(attempts[0].status().unwrap(), 503);
        assert_eq!((attempts[1].error(), attempts[1].sent()), (Some(Cause::Reset), SentState::Unknown));
        let gaps = net.gaps();
        assert!(gaps[0] <= ms(51) && gaps[1] <= ms(101), "{gaps:?}");
        assert!(attempts[1].waited().backoff <= ms(50) && attempts[2].waited().backoff <= ms(100));
        assert_eq!(response.text().await.unwrap(), "done");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_not_be_repeated_is_sent_once() {
    for method in ["POST", "PATCH"] {
        let net = Net::new([Reply::Reset]);
        let error = client(&net).request(method.parse().unwrap(), URL).body("b").send().await.unwrap_err();
        assert!(error.is_reset() && !error.is_connect());
        assert_eq!((error.history().stop(), net.count()), (Stop::NotIdempotent, 1));

        let net = Net::new([status(503).body("why")]);
        let response = client(&net).request(method.parse().unwrap(), URL).send().await.unwrap();
        assert_eq!((response.history().stop(), net.count()), (Stop::NotIdempotent, 1));
        assert_eq!(response.text().await.unwrap(), "why");
    }
}

#[tokio::test(start_paused = true)]
async fn non_idempotent_modes_repeat_what_they_name() {
    use NonIdempotent::{Always, Never, WhenRefused, WhenUnsent};
    let check = async |mode, reply, expected| {
        let net = Net::new([reply, status(200)]);
        let client = net.client().policy(policy().retry_non_idempotent(mode)).build().unwrap();
        let _ = client.post(URL).send().await;
        assert_eq!(net.count(), expected, "{mode:?}");
    };
    check(Never, Reply::Refuse, 1).await;
    check(WhenUnsent, Reply::Refuse, 2).await;
    check(WhenUnsent, status(503), 1).await;
    check(WhenRefused, status(503), 2).await;
    check(WhenRefused, status(429), 2).await;
    check(WhenRefused, Reply::Reset, 1).await;
    check(WhenRefused, status(500), 1).await;
    check(Always, Reply::Reset, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_is_the_same_on_all_attempts_and_differs_between_calls() {
    let net = Net::new([Reply::Reset, status(503), status(200), Reply::Reset, status(200)]);
    let client = client(&net);
    for _ in 0..2 {
        let response = client.post(URL).body("amount=1").auto_idempotency_key().send().await.unwrap();
        assert_eq!(response.status(), 200);
    }
    let keys: Vec<_> = net.header("idempotency-key").into_iter().map(Option::unwrap).collect();
    assert!(keys[..3].iter().all(|key| *key == keys[0]) && keys[3] == keys[4] && keys[0] != keys[3]);
    assert_eq!(net.bodies(), ["amount=1"; 5]);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_not_used_past_its_lifetime() {
    let net = Net::new([status(503).after(ms(10)), status(200)]);
    let scheme = abide::KeyScheme::default().lifetime(ms(5));
    let client = net.client().policy(policy()).key_scheme(scheme).build().unwrap();
    let response = client.post(URL).idempotency_key("k").send().await.unwrap();
    assert_eq!((response.history().stop(), net.count()), (Stop::NotIdempotent, 1));
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_retried_only_by_its_scheme() {
    for (retry, expected) in [(false, 1), (true, 2)] {
        let net = Net::new([status(409), status(200)]);
        let scheme = abide::KeyScheme::default().retry_conflict(retry);
        let client = net.client().policy(policy()).key_scheme(scheme).build().unwrap();
        client.post(URL).idempotency_key("k").send().await.unwrap();
        assert_eq!(net.count(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_cuts_exactly() {
    let start = Instant::now();
    let net = Net::new([Reply::Stall]);
    let error = client(&net).get(URL).deadline(ms(800)).send().await.unwrap_err();
    assert_eq!(start.elapsed(), ms(800));
    assert!(error.is_deadline() && error.is_timeout());
    assert_eq!(error.history().stop(), Stop::Deadline);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_times_out_and_is_retried() {
    let net = Net::new([Reply::Stall, status(200)]);
    let client = net.client().policy(policy().attempt_timeout(ms(300))).build().unwrap();
    let response = client.get(URL).send().await.unwrap();
    assert_eq!(response.history().attempts()[0].error(), Some(Cause::Timeout));
    assert_eq!(response.history().attempts()[0].elapsed(), ms(300));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_does_not_fit_ends_the_call_at_once() {
    let check = async |policy: Policy, expected| {
        let (start, net) = (Instant::now(), Net::new([status(429).body("later")]));
        let slow = |_: &Answer<'_>| Some(Verdict::ThrottledFor(Duration::from_secs(30)));
        let client = net.client().policy(policy.classify(slow)).build().unwrap();
        let response = client.get(URL).send().await.unwrap();
        assert_eq!((response.history().stop(), start.elapsed()), (expected, Duration::ZERO));
        assert_eq!(response.history().asked_wait(), Some(Duration::from_secs(30)));
        assert_eq!(response.text().await.unwrap(), "later");
    };
    check(policy().deadline(Duration::from_secs(30)), Stop::Deadline).await;
    check(policy().max_server_wait(Duration::from_secs(29)), Stop::ServerWaitTooLong).await;
    check(policy().max_attempts(1), Stop::MaxAttempts).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_wait_is_a_floor_with_jitter_upward() {
    for seed in 0..50 {
        let net = Net::new([status(429).header("retry-after", "2"), status(200)]);
        let client = net.client().policy(policy()).seed(seed).build().unwrap();
        let response = client.get(URL).deadline(ms(2020)).send().await.unwrap();
        let gap = net.gaps()[0];
        assert!(gap >= ms(2000) && gap <= ms(2011), "{gap:?}");
        assert_eq!(response.history().asked_wait(), Some(ms(2000)));
        assert!(response.history().attempts()[1].waited().server >= ms(2000));
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_retry_returns_the_last_response_whole() {
    let net = Net::new([status(503).header("x-why", "load").body(stream(&["a", "b", "c"]))]);
    let headers = |number| async move { if number == 1 { Ok(HeaderMap::new()) } else { Err("no token".into()) } };
    let client = net.client().policy(policy()).headers_with(headers).build().unwrap();
    let response = client.get(URL).send().await.unwrap();
    assert_eq!((response.history().stop(), net.count()), (Stop::NotSent, 1));
    assert_eq!(response.headers()["x-why"], "load");
    assert_eq!(response.text().await.unwrap(), "abc");
}

#[tokio::test(start_paused = true)]
async fn a_long_body_between_attempts_stays_attached() {
    let long = "x".repeat(200 * 1024);
    let halves = [Ok::<_, io::Error>(long.clone()), Ok(long.clone())];
    let net = Net::new([status(503).body(Body::wrap_stream(futures_util::stream::iter(halves)))]);
    let fails = |number| async move { if number == 1 { Ok(HeaderMap::new()) } else { Err("no".into()) } };
    let client = net.client().policy(policy()).headers_with(fails).build().unwrap();
    let response = client.get(URL).send().await.unwrap();
    assert_eq!(response.text().await.unwrap().len(), 2 * long.len());
}

#[tokio::test(start_paused = true)]
async fn headers_that_cannot_be_had_send_nothing() {
    let net = Net::new([]);
    let error = client(&net).get(URL).headers_with(|_| async { Err("no token".into()) }).send().await.unwrap_err();
    assert_eq!((net.count(), error.history().stop()), (0, Stop::NotSent));
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "no token");

    let key = HeaderMap::from_iter([("idempotency-key".parse().unwrap(), HeaderValue::from_static("other"))]);
    let error = client(&net)
        .post(URL)
        .idempotency_key("k")
        .headers_with(move |_| std::future::ready(Ok(key.clone())))
        .send()
        .await
        .unwrap_err();
    assert!(error.is_builder() && net.count() == 0);
}

#[tokio::test(start_paused = true)]
async fn on_attempt_is_the_last_touch_and_must_not_leave_the_origin() {
    let net = Net::new([status(503), status(200)]);
    let number = |request: &mut Request, number| {
        request.headers_mut().insert("x-attempt", HeaderValue::from(number));
    };
    client(&net).get(URL).on_attempt(number).send().await.unwrap();
    assert_eq!(net.header("x-attempt"), [Some("1".into()), Some("2".into())]);

    let leave = |request: &mut Request, _| request.url_mut().set_host(Some("evil.example")).unwrap();
    let error = client(&net).get(URL).on_attempt(leave).send().await.unwrap_err();
    assert!(error.is_builder() && net.count() == 2);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_sent_once_and_a_made_stream_again() {
    let net = Net::new([status(503)]);
    let response = client(&net).put(URL).body(stream(&["a", "b"])).send().await.unwrap();
    assert_eq!((response.history().stop(), net.count()), (Stop::NotReplayable, 1));

    let net = Net::new([status(503), status(200)]);
    client(&net).put(URL).body_with(|| stream(&["a", "b"])).send().await.unwrap();
    assert_eq!(net.bodies(), ["ab", "ab"]);
}

/// The caller's code may take its time: nothing is committed before it is done.
#[tokio::test(start_paused = true)]
async fn a_body_is_made_before_its_request_is_committed() {
    let net = Net::new([status(503), status(200)]);
    let told = Arc::new(Mutex::new(Vec::new()));
    let (log, order) = (told.clone(), told.clone());
    let observer = move |event: &Event| {
        if let Event::Sent { .. } = event {
            log.lock().unwrap().push("sent");
        }
    };
    let client = net.client().policy(policy()).observer(observer).build().unwrap();
    let body = move || {
        order.lock().unwrap().push("made");
        stream(&["a"])
    };
    client.put(URL).body_with(body).send().await.unwrap();
    assert_eq!(*told.lock().unwrap(), ["made", "sent", "made", "sent"]);
}

#[tokio::test(start_paused = true)]
async fn a_small_form_is_collected_and_sent_again() {
    let net = Net::new([status(503), status(200)]);
    let form = reqwest::multipart::Form::new().text("a", "1");
    client(&net).put(URL).multipart(form).send().await.unwrap();
    let bodies = net.bodies();
    assert!(bodies.len() == 2 && bodies[0] == bodies[1] && bodies[0].contains("name=\"a\""));
}

#[tokio::test(start_paused = true)]
async fn a_broken_body_is_retried_only_when_buffered() {
    let net = Net::new([status(200).body(broken("par")), status(200).body("complete")]);
    let response = client(&net).get(URL).buffered(1024).send().await.unwrap();
    assert_eq!(response.history().attempts()[0].error(), Some(Cause::Reset));
    assert_eq!(response.content_length(), Some(8));
    assert_eq!(response.text().await.unwrap(), "complete");

    let net = Net::new([status(200).body(broken("par"))]);
    let response = client(&net).get(URL).send().await.unwrap();
    assert!(response.text().await.is_err() && net.count() == 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_buffer_is_an_answer_with_a_note() {
    let net = Net::new([status(200).body(stream(&["abc", "def"]))]);
    let response = client(&net).get(URL).buffered(4).send().await.unwrap();
    assert_eq!(response.history().notes(), [Note::BufferLimit]);
    assert_eq!(response.text().await.unwrap(), "abcdef");
}

#[tokio::test(start_paused = true)]
async fn a_failure_hidden_in_a_200_is_seen() {
    let net = Net::new([status(200).body("<Code>SlowDown</Code>"), status(200).body("fine")]);
    let slow = |_, _: &HeaderMap, body: &[u8]| body.starts_with(b"<Code>").then_some(Verdict::Retry);
    let client = net.client().policy(policy().classify_body(1024, slow)).build().unwrap();
    assert_eq!(client.get(URL).send().await.unwrap().text().await.unwrap(), "fine");
}

#[tokio::test(start_paused = true)]
async fn a_precondition_that_fails_after_an_unknown_fate_is_noted() {
    let net = Net::new([Reply::Reset, status(412)]);
    let response = client(&net).put(URL).header("if-match", "\"1\"").send().await.unwrap();
    assert_eq!(response.history().notes(), [Note::MaybeApplied]);
}

#[tokio::test(start_paused = true)]
async fn an_error_after_a_response_carries_what_that_said() {
    let net = Net::new([status(429).header("retry-after", "1"), Reply::Reset]);
    let client = net.client().policy(policy().max_attempts(2)).build().unwrap();
    let error = client.get(URL).send().await.unwrap_err();
    assert_eq!((error.status().unwrap().as_u16(), error.retry_after()), (429, Some(ms(1000))));
    assert_eq!(error.history().stop(), Stop::MaxAttempts);
    assert!(!format!("{error} {error:?}").contains("secret"));
    assert_eq!(error.url().unwrap().as_str(), "https://api.example/v1/things");
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_retried_within_the_budget() {
    let net = Net::new([]);
    let policy = Policy::default().backoff(Backoff::none()).retry_statuses([599]).budget(RetryBudget::ratio(0.2));
    let client = net.client().policy(policy).build().unwrap();
    let calls = (0..1000).map(|_| client.get(URL).send());
    let ended = futures_util::future::join_all(calls).await;
    assert!(net.count() <= 1210, "{}", net.count());
    let spent = |response: &Result<Response, Error>| response.as_ref().unwrap().history().stop() == Stop::BudgetSpent;
    assert!(ended.iter().filter(|response| spent(response)).count() >= 900);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_for_what_makes_no_sense() {
    let net = Net::new([]);
    let client = client(&net);
    let check = async |result: Result<_, Error>, words: &str| {
        let error: Error = Result::<Response, _>::unwrap_err(result);
        assert!(error.is_builder() && error.to_string().contains(words), "{error}");
    };
    check(client.get("ftp://h/").send().await, "http or https").await;
    check(client.get("not a url").send().await, "invalid request").await;
    check(client.get(URL).header("x", "a\nb").send().await, "invalid request").await;
    check(client.get(URL).policy(Policy::default().max_attempts(0)).send().await, "max_attempts").await;
    check(client.post(URL).idempotency_key("ä").send().await, "printable ASCII").await;
    assert_eq!(net.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn every_decision_is_an_event_without_secrets() {
    let net = Net::new([status(503), status(200)]);
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = events.clone();
    let observer = move |event: &Event| log.lock().unwrap().push(format!("{event:?}"));
    let client = net.client().policy(policy()).observer(observer).build().unwrap();
    client.get(URL).bearer_auth("hidden").send().await.unwrap();
    let events = events.lock().unwrap();
    let kinds: Vec<_> = events.iter().map(|event| event.split(' ').next().unwrap()).collect();
    assert_eq!(kinds, ["Sent", "Answered", "Waiting", "Sent", "Answered", "Ended"]);
    assert!(events.iter().all(|event| !event.contains("secret") && !event.contains("hidden")), "{events:?}");
}

/// Polls so many times, a millisecond apart, then drops.
async fn poll(future: impl Future, polls: u32) {
    let mut future = pin!(future);
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        tokio::time::advance(ms(1)).await;
    }
}

/// A future dropped at any poll leaves nothing behind: the next call finds the budget as it was.
#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_any_poll_gives_back_its_retry() {
    for polls in 1..40 {
        let net = Net::new([status(503).after(ms(5)), status(503).after(ms(5))]);
        let budget = RetryBudget::ratio(0.0).floor(1);
        let policy = Policy::default().backoff(Backoff::constant(ms(20))).budget(budget);
        let client = net.client().policy(policy).build().unwrap();
        poll(client.get(URL).send(), polls).await;
        let sent = net.count();
        let after = client.get(URL).send().await.unwrap();
        let attempts = after.history().attempts().len();
        let expected = if sent == 2 { Stop::BudgetSpent } else { Stop::Answered };
        assert!(attempts >= 1 && (after.history().stop() == expected || after.status() == 599), "{polls}");
    }
}

#[test]
fn the_future_of_a_call_can_be_spawned() {
    fn check<T: Send>(_: &T) {}
    let client = client(&Net::new([]));
    check(&client.get(URL).send());
}

#[tokio::test(start_paused = true)]
async fn a_held_slot_is_free_when_the_body_is_read_or_dropped() {
    let net = Net::new([status(204), status(200).body("a"), status(200).body("b"), status(200).body("c")]);
    let client = net.client().policy(policy()).max_in_flight(1).build().unwrap();
    // Nothing is left to read of this one, so it holds nothing.
    let _empty = client.get(URL).send().await.unwrap();
    let first = client.get(URL).send().await.unwrap();
    let refused = client.get(URL).deadline(ms(100)).send().await.unwrap_err();
    assert!(refused.is_deadline() && net.count() == 2);
    assert_eq!(first.text().await.unwrap(), "a");
    let second = client.get(URL).deadline(ms(100)).send().await.unwrap();
    drop(second);
    assert_eq!(client.get(URL).deadline(ms(100)).send().await.unwrap().text().await.unwrap(), "c");
}

#[tokio::test(start_paused = true)]
async fn a_client_is_a_service() {
    use tower_service::Service;
    let net = Net::new([status(503), status(200)]);
    let mut client = client(&net);
    std::future::poll_fn(|cx| client.poll_ready(cx)).await.unwrap();
    let response = client.call(Request::new(reqwest::Method::GET, URL.parse().unwrap())).await.unwrap();
    assert_eq!((response.status().as_u16(), net.count()), (200, 2));
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_header_is_absent_and_one_event_says_so() {
    let net = Net::new([
        status(503).header("retry-after", "soon").header("x-ratelimit-reset", "whenever"),
        status(200).header("x-request-id", "7"),
    ]);
    let unread = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&unread);
    let observer = move |event: &Event| {
        if let Event::Unread { headers, .. } = event {
            log.lock().unwrap().push(headers.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
    };
    let client = net.client().policy(policy()).observer(observer).build().unwrap();
    let response = client.get(URL).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(net.gaps()[0] <= ms(51));
    assert_eq!(*unread.lock().unwrap(), [["retry-after", "x-ratelimit-reset"]]);
}

/// Calls that stood in the key's line before an answer told the quota of their route used to go past it.
#[tokio::test(start_paused = true)]
async fn a_route_quota_learned_meanwhile_binds_those_in_line() {
    let reply = |left: u32| {
        let answer = status(200).after(ms(10)).header("x-ratelimit-bucket", "b").header("x-ratelimit-limit", "10");
        answer.header("x-ratelimit-remaining", left.to_string()).header("x-ratelimit-reset-after", "1")
    };
    let net = Net::new((0..10).rev().chain((0..10).rev()).map(reply));
    let client = client(&net);
    let start = Instant::now();
    let sends: Vec<_> = (0..20)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get(URL).send().await.map(|response| response.status()) })
        })
        .collect();
    tokio::time::sleep(ms(900)).await;
    assert!(net.count() <= 10, "{} sent of 10", net.count());
    for sent in sends {
        assert_eq!(sent.await.unwrap().unwrap(), 200);
    }
    assert!(start.elapsed() < ms(4_000), "{:?}", start.elapsed());
}

#[test]
fn a_key_that_all_calls_would_share_is_refused() {
    let headers = HeaderMap::from_iter([("idempotency-key".parse().unwrap(), HeaderValue::from_static("1"))]);
    let error = Client::builder().default_headers(headers).build().unwrap_err();
    assert!(error.is_builder() && error.to_string().contains("default_headers"), "{error}");
}
