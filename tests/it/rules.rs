//! The rules of retries, sentence by sentence: what each names is tried here, if not in `call` or `redirects`.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use std::{convert::Infallible, time::Duration};

use abide::{
    Backoff, Cause, Client, ClientBuilder, KeyBy, KeyFormat, KeyScheme, Limiter, NonIdempotent, Note, Policy, Quota,
    RequestBuilder, ResponseExt, SentState, Stop,
    http::{HeaderMap, HeaderName, HeaderValue},
    reqwest::{Body, Method, Response},
};
use futures_util::{StreamExt, stream};

use crate::{
    memory::{Net, Reply, status},
    support::clock::{self, ms},
};

const URL: &str = "https://api.example/v1/things";

fn policy() -> Policy {
    Policy::default().backoff(Backoff::full_jitter(ms(50), ms(400))).no_budget()
}

fn builder(net: &Net) -> ClientBuilder {
    net.client().policy(policy())
}

fn client(net: &Net) -> Client {
    builder(net).build().unwrap()
}

fn keyed(client: &Client) -> RequestBuilder {
    client.post(URL).idempotency_key("k")
}

/// Sends until the call ends; why it did, and how many requests there were.
async fn ended(net: &Net, request: RequestBuilder) -> (Stop, usize) {
    let stop = match request.send().await {
        Ok(response) => response.history().stop(),
        Err(error) => error.history().stop(),
    };
    (stop, net.count())
}

#[tokio::test(start_paused = true)]
async fn a_413_is_temporary_only_if_it_says_when() {
    let net = Net::new([status(413), status(200)]);
    assert_eq!(ended(&net, client(&net).put(URL).body("b")).await, (Stop::NotRetryable, 1));
    let net = Net::new([status(413).header("retry-after", "1"), status(200)]);
    assert_eq!(ended(&net, client(&net).put(URL).body("b")).await, (Stop::Answered, 2));
    assert!(net.gaps()[0] >= ms(1000) && net.gaps()[0] <= ms(1051));
    let net = Net::new([status(413).header("retry-after", "1"), status(200)]);
    assert_eq!(ended(&net, client(&net).post(URL).body("b")).await, (Stop::NotIdempotent, 1));
}

#[tokio::test(start_paused = true)]
async fn a_425_was_not_processed_and_421_and_422_are_final() {
    let net = Net::new([status(425), status(200)]);
    assert_eq!(ended(&net, client(&net).get(URL)).await, (Stop::Answered, 2));
    for (mode, expected) in [(NonIdempotent::WhenUnsent, 1), (NonIdempotent::WhenRefused, 2)] {
        let net = Net::new([status(425), status(200)]);
        let client = builder(&net).policy(policy().retry_non_idempotent(mode)).build().unwrap();
        assert_eq!(ended(&net, client.post(URL)).await.1, expected);
    }
    for code in [421, 422] {
        let net = Net::new([status(code), status(200)]);
        assert_eq!(ended(&net, keyed(&client(&net))).await, (Stop::NotRetryable, 1));
        let net = Net::new([status(code), status(200)]);
        assert_eq!(ended(&net, client(&net).get(URL)).await, (Stop::NotRetryable, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_needs_a_key_as_well_as_a_scheme() {
    let scheme = KeyScheme::default().retry_conflict(true);
    let net = Net::new([status(409), status(200)]);
    let client = builder(&net).key_scheme(scheme).build().unwrap();
    assert_eq!(ended(&net, client.put(URL)).await, (Stop::NotRetryable, 1));
}

#[tokio::test(start_paused = true)]
async fn the_word_of_the_server_never_lifts_the_safety_rule() {
    for name in ["stripe-should-retry", "x-should-retry"] {
        let said = |code, word: &str| Net::new([status(code).header(name, word), status(200)]);
        let net = said(503, "false");
        assert_eq!(ended(&net, keyed(&client(&net))).await, (Stop::NotRetryable, 1));
        let net = said(429, "false");
        assert_eq!(ended(&net, client(&net).get(URL)).await, (Stop::NotRetryable, 1));
        let net = said(400, "true");
        assert_eq!(ended(&net, keyed(&client(&net))).await, (Stop::Answered, 2));
        let net = said(503, "true");
        assert_eq!(ended(&net, client(&net).post(URL)).await, (Stop::NotIdempotent, 1));
        let net = said(200, "false");
        assert_eq!(ended(&net, client(&net).get(URL)).await, (Stop::Answered, 1));
        // Nor the number of attempts.
        let net = Net::new((0..9).map(|_| status(400).header(name, "true")));
        assert_eq!(ended(&net, client(&net).get(URL)).await, (Stop::MaxAttempts, 4));
    }
}

#[tokio::test(start_paused = true)]
async fn a_verdict_of_ones_own_never_lifts_the_safety_rule() {
    for verdict in [abide::Verdict::Retry, abide::Verdict::Throttled, abide::Verdict::ThrottledFor(ms(1))] {
        let net = Net::new([status(200), status(200)]);
        let own = policy().classify(move |_: &abide::Answer<'_>| Some(verdict));
        let client = builder(&net).policy(own).build().unwrap();
        assert_eq!(ended(&net, client.post(URL)).await, (Stop::NotIdempotent, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_written_by_their_scheme_and_recognised_by_it() {
    let scheme = KeyScheme::new(HeaderName::from_static("x-request-token")).format(KeyFormat::Quoted);
    let net = Net::new([status(503), status(200), status(503), status(200), status(503)]);
    let client = builder(&net).key_scheme(scheme).build().unwrap();
    keyed(&client).send().await.unwrap();
    assert_eq!(net.header("x-request-token"), vec![Some("\"k\"".to_owned()); 2]);
    assert_eq!(net.header("idempotency-key"), [None, None]);
    // A request that already carries the scheme's header is keyed with it, as it is.
    let mut request = reqwest::Request::new(Method::POST, URL.parse().unwrap());
    request.headers_mut().insert("x-request-token", HeaderValue::from_static("mine"));
    assert_eq!(client.execute(request).await.unwrap().history().attempts().len(), 2);
    assert_eq!(net.header("x-request-token")[2..], vec![Some("mine".to_owned()); 2]);
    // Another header is no key.
    let response = client.post(URL).header("idempotency-key", "k").send().await.unwrap();
    assert_eq!(response.history().stop(), Stop::NotIdempotent);
}

/// A key that is no key would let a server execute each attempt.
#[tokio::test(start_paused = true)]
async fn an_unreadable_key_sends_nothing() {
    let net = Net::new([]);
    let client = client(&net);
    for (request, words) in [
        (client.post(URL).header("idempotency-key", ""), "empty"),
        (client.post(URL).header("idempotency-key", "  "), "empty"),
        (client.post(URL).idempotency_key(" "), "empty"),
        (client.post(URL).header("idempotency-key", "a").header("idempotency-key", "b"), "one header"),
    ] {
        let error = request.send().await.unwrap_err();
        assert!(error.is_builder() && error.to_string().contains(words), "{error}");
    }
    assert_eq!(net.count(), 0);
}

/// The wait fits the key, but the limiter lets the retry through too late: it would be executed afresh.
#[tokio::test(start_paused = true)]
async fn no_retry_goes_out_past_the_life_of_its_key() {
    let run = async |net: &Net, policy: Policy| {
        let scheme = KeyScheme::default().lifetime(Duration::from_secs(5));
        let slow = Quota::bucket(1, Duration::from_secs(10)).burst(1);
        let client = net.client().policy(policy).key_scheme(scheme).quota(slow).build().unwrap();
        keyed(&client).send().await.unwrap()
    };
    let net = Net::new([status(503).body("why"), status(200)]);
    let response = run(&net, policy()).await;
    assert_eq!((response.history().stop(), net.count()), (Stop::NotIdempotent, 1));
    assert_eq!(response.text().await.unwrap(), "why");
    // Where the key is not what makes it safe, its end means nothing.
    let net = Net::new([status(503), status(200)]);
    let response = run(&net, policy().retry_non_idempotent(NonIdempotent::Always)).await;
    assert_eq!((response.history().stop(), net.count()), (Stop::Answered, 2));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_broke_may_have_been_applied() {
    let broken = || {
        let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        Body::wrap_stream(stream::iter([Ok("half"), Err(error)]))
    };
    let net = Net::new([status(200).body(broken()), status(412)]);
    let request = client(&net).put(URL).header("if-match", "\"1\"").buffered(100);
    assert_eq!(request.send().await.unwrap().history().notes(), [Note::MaybeApplied]);
    // A plain refusal, or a connection that never was, changed nothing.
    for reply in [status(503), Reply::Refuse] {
        let net = Net::new([reply, status(412)]);
        let request = client(&net).put(URL).header("if-match", "\"1\"");
        assert_eq!(request.send().await.unwrap().history().notes(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_form_is_sent_again_up_to_a_mebibyte() {
    let send = async |length: usize| {
        let net = Net::new([status(503), status(200)]);
        let form = reqwest::multipart::Form::new().text("a", "x".repeat(length));
        let stop = ended(&net, client(&net).put(URL).multipart(form)).await;
        let bodies = net.bodies();
        assert!(bodies.iter().all(|body| *body == bodies[0] && body.len() > length));
        stop
    };
    assert_eq!(send(1024 * 1024 - 1000).await, (Stop::Answered, 2));
    assert_eq!(send(1024 * 1024).await, (Stop::NotReplayable, 1));
    // No length, no collection.
    let net = Net::new([status(503), status(200)]);
    let part = reqwest::multipart::Part::stream(Body::wrap_stream(stream::iter([Ok::<_, Infallible>("a")])));
    let form = reqwest::multipart::Form::new().part("a", part);
    assert_eq!(ended(&net, client(&net).put(URL).multipart(form)).await, (Stop::NotReplayable, 1));
}

/// A body in chunks, three milliseconds apart.
fn slow(chunks: usize, length: usize) -> Body {
    Body::wrap_stream(stream::iter(0..chunks).then(move |_| async move {
        clock::sleep(ms(3)).await;
        Ok::<_, Infallible>("x".repeat(length))
    }))
}

#[tokio::test(start_paused = true)]
async fn the_body_of_an_error_is_read_for_a_wait_and_given_intact() {
    let text = r#"{"error":{"message":"slow down"},"retry_after":2}"#;
    let reply = || status(429).header("content-type", "application/json").body(text);
    let net = Net::new([reply(), status(200)]);
    let response = client(&net).get(URL).send().await.unwrap();
    assert_eq!(response.history().asked_wait(), Some(ms(2000)));
    assert!(net.gaps()[0] >= ms(2000));
    let net = Net::new([reply()]);
    let response = client(&net).get(URL).deadline(ms(1500)).send().await.unwrap();
    assert_eq!((response.history().stop(), response.history().asked_wait()), (Stop::Deadline, Some(ms(2000))));
    assert_eq!(response.text().await.unwrap(), text);
    // A header that names a wait is enough, and neither a long nor a slow body is waited for.
    let start = clock::now();
    for (reply, length) in [
        (reply().header("retry-after", "1"), text.len()),
        (status(429).header("content-type", "application/json").body(slow(9, 4096)), 9 * 4096),
        (status(429).header("content-type", "application/json").body(slow(300, 10)), 3000),
    ] {
        let net = Net::new([reply]);
        let response = client(&net).post(URL).send().await.unwrap();
        assert_eq!(response.history().stop(), Stop::NotIdempotent);
        assert_eq!(response.bytes().await.unwrap().len(), length);
    }
    assert!(clock::now() - start < ms(2000));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_between_attempts_gives_the_last_response_whole() {
    let check = async |body: fn() -> Body, length: usize| {
        let net = Net::new([status(503).header("x-why", "load").body(body())]);
        let day = Quota::bucket(1, Duration::from_secs(86_400)).burst(1);
        let client = builder(&net).quota(day).build().unwrap();
        let response = client.get(URL).send().await.unwrap();
        assert_eq!((response.history().stop(), net.count()), (Stop::Deadline, 1));
        assert_eq!((response.status().as_u16(), &response.headers()["x-why"]), (503, &"load".parse().unwrap()));
        assert_eq!(response.bytes().await.unwrap().len(), length);
    };
    check(|| Body::from("short"), 5).await;
    check(|| slow(4, 10), 40).await;
    check(|| slow(9, 32 * 1024), 9 * 32 * 1024).await;
    check(|| slow(40, 10), 400).await;
}

/// Neither the slot nor more than 50 ms is spent on the body of a failure.
#[tokio::test(start_paused = true)]
async fn an_old_body_is_closed_at_the_next_commit() {
    let dropped = std::sync::Arc::new(());
    let held = dropped.clone();
    let endless = stream::repeat(()).then(move |()| {
        let held = held.clone();
        async move {
            clock::sleep(ms(20)).await;
            drop(held);
            Ok::<_, Infallible>("x")
        }
    });
    let net = Net::new([status(503).body(Body::wrap_stream(endless)), status(200)]);
    let limiter = Limiter::builder().max_in_flight(1).learn(false).build().unwrap();
    let client = net.client().policy(policy()).limiter(limiter).build().unwrap();
    let response = client.get(URL).deadline(ms(500)).send().await.unwrap();
    assert_eq!((response.status().as_u16(), net.count()), (200, 2));
    assert!(net.gaps()[0] <= ms(51 + 50));
    assert_eq!(std::sync::Arc::strong_count(&dropped), 1, "the old body is gone");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_cuts_what_comes_before_and_after_the_send() {
    let cut = async |net: &Net, client: Client, request: fn(&Client) -> RequestBuilder| {
        let start = clock::now();
        let error = request(&client).deadline(ms(300)).send().await.unwrap_err();
        assert!(error.is_deadline() && error.history().stop() == Stop::Deadline, "{error:?}");
        (clock::now() - start, net.count(), error.sent())
    };
    // For a slot.
    let net = Net::new([status(200).body("held")]);
    let client = builder(&net).max_in_flight(1).build().unwrap();
    let held = client.get(URL).send().await.unwrap();
    assert_eq!(cut(&net, client, |client| client.get(URL)).await, (ms(300), 1, SentState::NotSent));
    drop(held);
    // For fresh headers, which come late, or at the very instant of the deadline.
    for wait in [300, 500] {
        let net = Net::new([]);
        let late = move |_| async move {
            clock::sleep(ms(wait)).await;
            Ok(HeaderMap::new())
        };
        let client = builder(&net).headers_with(late).build().unwrap();
        assert_eq!(cut(&net, client, |client| client.get(URL)).await, (ms(300), 0, SentState::NotSent));
    }
    // For a body that is part of the attempt.
    let net = Net::new([status(200).body(slow(1000, 1))]);
    let client = client_of(&net);
    assert_eq!(cut(&net, client, |client| client.get(URL).buffered(5000)).await, (ms(300), 1, SentState::Sent));
    // A quota that cannot let it through in time refuses at once.
    let net = Net::new([status(200)]);
    let hour = Quota::bucket(1, Duration::from_secs(3600)).burst(1);
    let client = builder(&net).quota(hour).build().unwrap();
    client.get(URL).send().await.unwrap();
    assert_eq!(cut(&net, client, |client| client.get(URL)).await, (ms(0), 1, SentState::NotSent));
}

fn client_of(net: &Net) -> Client {
    client(net)
}

#[tokio::test(start_paused = true)]
async fn a_403_is_githubs_limit_by_each_of_its_three_signs() {
    let soon = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() + 5;
    let replies: [fn(String) -> Reply; 3] = [
        |_| status(403).header("retry-after", "5"),
        |soon| status(403).header("x-ratelimit-remaining", "0").header("x-ratelimit-reset", soon),
        |_| status(403).body("You have exceeded a secondary rate limit. Please wait."),
    ];
    for (reply, least) in replies.into_iter().zip([5000, 3000, 60_000]) {
        let run = async |limits: bool| {
            let net = Net::new([reply(soon.to_string()), status(200)]);
            let client = builder(&net).policy(policy().rate_limit_403(limits)).build().unwrap();
            let (stop, count) = ended(&net, client.get(URL)).await;
            (stop, count, net.gaps().first().copied())
        };
        assert_eq!(run(false).await, (Stop::NotRetryable, 1, None));
        let (stop, count, gap) = run(true).await;
        assert_eq!((stop, count), (Stop::Answered, 2));
        assert!(gap.unwrap() >= ms(least) && gap.unwrap() <= ms(least + 3000), "{gap:?}");
    }
    let net = Net::new([status(403).body("no access"), status(200)]);
    let client = builder(&net).policy(policy().rate_limit_403(true)).build().unwrap();
    assert_eq!(ended(&net, client.get(URL)).await, (Stop::NotRetryable, 1));
}

#[tokio::test(start_paused = true)]
async fn a_202_is_asked_after_where_it_says() {
    let run = async |replies: Vec<Reply>, method: &str| -> (Vec<String>, Response) {
        let net = Net::new(replies);
        let client = builder(&net).policy(policy().poll_202(true)).build().unwrap();
        let response = client.request(method.parse().unwrap(), URL).body("b").send().await.unwrap();
        (net.lines(), response)
    };
    let wait = || status(202).header("retry-after", "1");
    let done = || status(200).body("done");
    for name in ["operation-location", "azure-asyncoperation", "location"] {
        let (lines, response) = run(vec![wait().header(name, "/op/1"), wait(), done()], "POST").await;
        assert_eq!(lines[1..], ["GET https://api.example/op/1", "GET https://api.example/op/1"], "{name}");
        assert_eq!((response.history().attempts().len(), response.history().stop()), (1, Stop::Answered));
        // Never another origin.
        let (lines, response) = run(vec![wait().header(name, "https://evil.example/op"), done()], "PUT").await;
        assert_eq!((lines.len(), response.status().as_u16()), (1, 202), "{name}");
    }
    // A GET asks itself; another method is never sent again.
    let (lines, _) = run(vec![wait(), wait(), done()], "GET").await;
    assert_eq!(lines.len(), 3);
    let (lines, response) = run(vec![wait(), done()], "PUT").await;
    assert_eq!((lines.len(), response.status().as_u16()), (1, 202));
    // Without a wait it is an answer like any other.
    let (lines, _) = run(vec![status(202).header("location", "/op/1"), done()], "POST").await;
    assert_eq!(lines.len(), 1);
    // The deadline ends it with the last answer.
    let net = Net::new((0..99).map(|_| wait()));
    let client = builder(&net).policy(policy().poll_202(true)).build().unwrap();
    let response = client.get(URL).deadline(ms(3500)).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.history().stop(), net.count()), (202, Stop::Deadline, 4));
}

/// The first origin may have executed the POST; the other, without the key, would do so again.
#[tokio::test(start_paused = true)]
async fn a_call_that_may_have_run_does_not_go_elsewhere_without_its_key() {
    let away = |code| status(code).header("location", "https://b.example/y");
    for first in [Reply::Reset, status(500), status(503)] {
        let net = Net::new([first, away(307), status(200)]);
        assert_eq!(ended(&net, keyed(&client(&net))).await, (Stop::RedirectRefused, 2));
    }
    // It did not run, or may run twice, or asks for something else, or stays at home with its key.
    for first in [Reply::Refuse, status(429)] {
        let net = Net::new([first, away(307), status(200)]);
        assert_eq!(ended(&net, keyed(&client(&net))).await, (Stop::Answered, 3));
    }
    let net = Net::new([Reply::Reset, away(307), status(200)]);
    assert_eq!(ended(&net, keyed(&client(&net)).idempotent()).await, (Stop::Answered, 3));
    let net = Net::new([Reply::Reset, away(303), status(200)]);
    assert_eq!(ended(&net, keyed(&client(&net))).await, (Stop::Answered, 3));
    let net = Net::new([Reply::Reset, status(307).header("location", "/y"), status(200)]);
    assert_eq!(ended(&net, keyed(&client(&net))).await, (Stop::Answered, 3));
}

/// The POST was answered, whatever became of the hop after it.
#[tokio::test(start_paused = true)]
async fn a_hop_that_finds_nobody_was_sent_all_the_same() {
    let net = Net::new([status(303).header("location", "/result"), Reply::Refuse]);
    let client = builder(&net).policy(policy().max_attempts(1)).build().unwrap();
    let error = client.post(URL).send().await.unwrap_err();
    assert_eq!((error.cause(), error.sent()), (Some(Cause::Connect), SentState::Unknown));
    assert_eq!(error.history().attempts()[0].sent(), SentState::Unknown);
    // What is repeated is the GET.
    let net = Net::new([status(303).header("location", "/result"), Reply::Refuse, status(200)]);
    assert_eq!(ended(&net, client_of(&net).post(URL)).await, (Stop::Answered, 3));
    assert_eq!(net.lines()[2], "GET https://api.example/result");
}

#[tokio::test(start_paused = true)]
async fn a_failed_refresh_does_not_hide_what_was_sent() {
    let net = Net::new([Reply::Reset]);
    let once = |number| async move { if number == 1 { Ok(HeaderMap::new()) } else { Err("no token".into()) } };
    let client = builder(&net).headers_with(once).build().unwrap();
    let error = keyed(&client).send().await.unwrap_err();
    assert_eq!((error.history().stop(), error.sent()), (Stop::NotSent, SentState::Unknown));
}

#[tokio::test(start_paused = true)]
async fn methods_follow_redirects_as_they_should() {
    for (code, method, expected) in [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "POST", "GET"),
        (303, "PUT", "GET"),
        (301, "PUT", "PUT"),
        (302, "DELETE", "DELETE"),
        (307, "POST", "POST"),
        (308, "PATCH", "PATCH"),
        (301, "QUERY", "QUERY"),
        (302, "QUERY", "QUERY"),
        (303, "QUERY", "GET"),
        (303, "HEAD", "HEAD"),
    ] {
        let net = Net::new([status(code).header("location", "/y"), status(200)]);
        let request = client(&net).request(method.parse().unwrap(), URL).header("content-type", "text/plain").body("b");
        request.send().await.unwrap();
        assert_eq!(net.lines()[1], format!("{expected} https://api.example/y"), "{code} {method}");
        let kept = if method == expected { "b" } else { "" };
        assert_eq!(net.bodies(), ["b", kept], "{code} {method}");
        assert_eq!(net.header("content-type")[1].is_some(), method == expected, "{code} {method}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_user_name_of_ones_own_is_no_reason_to_refuse() {
    let net = Net::new([status(302).header("location", "/y"), status(200)]);
    let request = reqwest::Request::new(Method::GET, "https://me:pass@api.example/x".parse().unwrap());
    assert_eq!(client(&net).execute(request).await.unwrap().status(), 200);
}

/// A hop to another origin has the key of its own request, never the one that the call was given.
#[tokio::test(start_paused = true)]
async fn a_hop_is_paced_by_its_own_origin() {
    let net = Net::new([status(302).header("location", "https://b.example/y"), status(200)]);
    let limiter = Limiter::builder().quota(Quota::bucket(10, Duration::from_secs(86_400)).burst(10)).build().unwrap();
    let client = builder(&net).limiter(limiter).key_by(KeyBy::Origin).build().unwrap();
    client.get(URL).key("call").send().await.unwrap();
    let left = |key: &str| client.limiter().snapshot(&key.into()).map(|snapshot| snapshot.left[0].1);
    assert_eq!((left("call"), left("https://b.example"), left("https://api.example")), (Some(9), Some(9), None));
}
