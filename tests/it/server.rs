//! The practice server over real sockets, seen by a plain reqwest.

use std::{
    error::Error as _,
    io,
    time::{Duration, Instant, SystemTime},
};

use abide::{
    Quota,
    testing::{Algorithm, Dialect, Fault, Faults, KeyBy, RetryAfter, Scripted, Server, ServerBuilder},
};
use reqwest::{Client, Response, StatusCode};

fn http() -> Client {
    Client::builder().retry(reqwest::retry::never()).no_proxy().build().unwrap()
}

async fn get(server: &Server) -> Response {
    http().get(server.url()).send().await.unwrap()
}

fn field<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// A limit that cannot come back within a test.
fn two_a_day() -> ServerBuilder {
    Server::builder().limit(Quota::window(2, Duration::from_secs(86_400))).algorithm(Algorithm::SlidingLog)
}

fn io_kind(error: &reqwest::Error) -> Option<io::ErrorKind> {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(cause) = cause.downcast_ref::<io::Error>() {
            return Some(cause.kind());
        }
        source = cause.source();
    }
    None
}

#[tokio::test]
async fn refuses_above_the_limit_and_counts() {
    let server = two_a_day().start().await.unwrap();
    for (status, remaining) in [(200, 1), (200, 0), (429, 0)] {
        let response = get(&server).await;
        assert_eq!(response.status(), status);
        assert_eq!(field(&response, "ratelimit"), format!("\"default\";r={remaining};t=86400"));
        assert_eq!(field(&response, "ratelimit-policy"), "\"default\";q=2;w=86400");
        assert_eq!(field(&response, "retry-after"), if status == 429 { "86400" } else { "" });
    }
    let stats = server.stats();
    assert_eq!((stats.accepted, stats.refused, stats.most_in_window, stats.requests), (2, 1, 2, 3));
    assert_eq!(server.arrivals().len(), 3);
    let text = http().get(format!("{}/stats", server.url())).send().await.unwrap().text().await.unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&json["accepted"], &json["refused"]), (&2.into(), &1.into()));
}

#[tokio::test]
async fn an_obedient_client_is_never_early() {
    let quota = Quota::window(3, Duration::from_millis(100));
    let client = http();
    let all = [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingCounter, Algorithm::Gcra];
    for algorithm in all {
        let server = Server::builder()
            .limit(quota.clone())
            .algorithm(algorithm)
            .retry_after(RetryAfter::SecondsAndMillis)
            .start()
            .await
            .unwrap();
        let mut refusals_in_a_row = 0;
        for _ in 0..12 {
            let response = client.get(server.url()).send().await.unwrap();
            if response.status() == 200 {
                refusals_in_a_row = 0;
                continue;
            }
            refusals_in_a_row += 1;
            assert!(refusals_in_a_row < 2, "{algorithm}: refused after the wait it named");
            let wait = field(&response, "retry-after-ms").parse().unwrap();
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }
}

#[tokio::test]
async fn leaky_bucket_delays_what_it_accepts() {
    let quota = Quota::bucket(20, Duration::from_secs(1)).burst(3);
    let server = Server::builder().limit(quota).algorithm(Algorithm::LeakyBucket).start().await.unwrap();
    let client = http();
    let start = Instant::now();
    let calls = (0..4).map(|_| client.get(server.url()).send());
    let statuses = futures_util::future::join_all(calls).await;
    let refused = statuses.iter().filter(|r| r.as_ref().unwrap().status() == 429).count();
    assert_eq!(refused, 1);
    assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
}

#[tokio::test]
async fn concurrency_frees_its_place() {
    let builder = Server::builder().concurrency(2).latency(Duration::from_millis(60)..Duration::from_millis(60));
    let server = builder.start().await.unwrap();
    let client = http();
    for _ in 0..2 {
        let calls = (0..3).map(|_| client.get(server.url()).send());
        let answers = futures_util::future::join_all(calls).await;
        let accepted = answers.iter().filter(|r| r.as_ref().unwrap().status() == 200).count();
        assert_eq!(accepted, 2);
        drop(answers);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((server.stats().most_in_flight, server.stats().in_flight), (3, 0));
}

#[tokio::test]
async fn the_limit_changes_in_mid_run() {
    let server = two_a_day().start().await.unwrap();
    get(&server).await;
    server.set_limit(Quota::window(1, Duration::from_secs(86_400))).unwrap();
    assert_eq!(get(&server).await.status(), 429);
    server.set_limit(Quota::window(3, Duration::from_secs(86_400))).unwrap();
    let response = get(&server).await;
    assert_eq!((response.status(), field(&response, "ratelimit-policy")), (StatusCode::OK, "\"default\";q=3;w=86400"));
    assert_eq!(server.set_limit(Quota::per_second(0)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[tokio::test]
async fn advertises_another_limit_than_it_keeps() {
    let server = two_a_day().advertise(Quota::per_day(50)).start().await.unwrap();
    let response = get(&server).await;
    assert_eq!(field(&response, "ratelimit-policy"), "\"default\";q=50;w=86400");
    assert!(field(&response, "ratelimit").starts_with("\"default\";r=49;"));
}

#[tokio::test]
async fn keys_have_limits_of_their_own() {
    let server = two_a_day().key_by(KeyBy::ApiKey).start().await.unwrap();
    for (key, status) in [("a", 200), ("a", 200), ("a", 429), ("b", 200)] {
        let response = http().get(server.url()).header("x-api-key", key).send().await.unwrap();
        assert_eq!(response.status(), status, "{key}");
    }
    assert_eq!(server.stats().most_in_window, 2);
}

#[tokio::test]
async fn tokens_are_told_apart() {
    let requests = Quota::per_day(10);
    let tokens = Quota::per_day(100).unit(abide::Unit::Tokens);
    let server = Server::builder()
        .limit(requests)
        .limit(tokens)
        .algorithm(Algorithm::TokenBucket)
        .dialect(Dialect::OpenAi)
        .start()
        .await
        .unwrap();
    let response = http().post(server.url()).body(r#"{"tokens":60}"#).send().await.unwrap();
    assert_eq!(field(&response, "x-ratelimit-remaining-tokens"), "40");
    assert_eq!(field(&response, "x-ratelimit-remaining-requests"), "9");
    let response = http().get(server.url()).header("x-tokens", "60").send().await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(field(&response, "x-ratelimit-remaining-requests"), "9");
    assert!(!field(&response, "retry-after-ms").is_empty());
}

#[tokio::test]
async fn the_clock_is_skewed() {
    let server = Server::builder().clock_ahead(Duration::from_secs(3600)).start().await.unwrap();
    let date = httpdate::parse_http_date(field(&get(&server).await, "date")).unwrap();
    let ahead = date.duration_since(SystemTime::now()).unwrap();
    assert!(ahead > Duration::from_secs(3590) && ahead <= Duration::from_secs(3600), "{ahead:?}");
}

#[tokio::test]
async fn faults_are_real() {
    let faults = [Fault::Reset, Fault::Close, Fault::ResetBody, Fault::Truncate, Fault::Stall];
    let script = faults.map(Scripted::fault).into();
    let server = Server::builder().script(script).start().await.unwrap();
    let reset = http().get(server.url()).send().await.unwrap_err();
    assert_eq!(io_kind(&reset), Some(io::ErrorKind::ConnectionReset), "{reset:?}");
    let closed = http().get(server.url()).send().await.unwrap_err();
    assert_ne!(io_kind(&closed), Some(io::ErrorKind::ConnectionReset), "{closed:?}");
    let response = get(&server).await;
    assert_eq!(response.content_length(), Some(64));
    let reset = response.bytes().await.unwrap_err();
    assert_eq!(io_kind(&reset), Some(io::ErrorKind::ConnectionReset), "{reset:?}");
    let mut response = get(&server).await;
    assert_eq!(response.chunk().await.unwrap().unwrap().len(), 32);
    let short = response.chunk().await.unwrap_err();
    assert_ne!(io_kind(&short), Some(io::ErrorKind::ConnectionReset), "{short:?}");
    let stalled = http().get(server.url()).timeout(Duration::from_millis(50)).send().await.unwrap_err();
    assert!(stalled.is_timeout());
    let beyond = get(&server).await;
    assert_eq!((beyond.status(), field(&beyond, "x-beyond-script")), (StatusCode::INTERNAL_SERVER_ERROR, "true"));
    assert_eq!((server.stats().faults, server.stats().beyond_script), (5, 1));
}

#[tokio::test]
async fn a_script_is_answered_in_order() {
    let script = vec![
        Scripted::status(429).header("retry-after", "1").repeat(2),
        Scripted::status(204).undated(),
        Scripted::status(503).header_with("x-at", httpdate::fmt_http_date),
        Scripted::status(200).body("0123456789").delay(Duration::from_millis(30)).body_rate(100),
    ];
    let server = Server::builder().script(script).start().await.unwrap();
    assert_eq!(field(&get(&server).await, "retry-after"), "1");
    assert_eq!(get(&server).await.status(), 429);
    assert_eq!(field(&get(&server).await, "date"), "");
    let response = get(&server).await;
    assert_eq!(field(&response, "x-at"), field(&response, "date"));
    let start = Instant::now();
    let last = http().post(server.url()).body("hello").send().await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert_eq!(last.text().await.unwrap(), "0123456789");
    assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
    let recorded = server.recorded();
    assert_eq!(
        (recorded.len(), &recorded[4].method, &recorded[4].body[..]),
        (5, &reqwest::Method::POST, &b"hello"[..])
    );
}

#[tokio::test]
async fn charges_execute_once_a_key() {
    let server = Server::builder().start().await.unwrap();
    let url = format!("{}/charge", server.url());
    let post =
        |key: &'static str, body: &'static str| http().post(&url).header("idempotency-key", key).body(body).send();
    let first = post("k1", "7").await.unwrap();
    let again = post("\"k1\"", "7").await.unwrap();
    assert_eq!((field(&first, "idempotent-replayed"), field(&again, "idempotent-replayed")), ("", "true"));
    assert_eq!(first.text().await.unwrap(), again.text().await.unwrap());
    assert_eq!(post("k1", "8").await.unwrap().status(), 422);
    for _ in 0..2 {
        http().post(&url).body("bare").send().await.unwrap();
    }
    let charges = server.charges();
    assert_eq!((charges.of("k1"), charges.bare, charges.most_bare, charges.total()), (1, 2, 2, 3));
}

#[tokio::test]
async fn a_charge_that_sent_a_200_was_executed() {
    let kinds = Fault::ALL.iter().copied().filter(|&fault| fault != Fault::Stall);
    let server = Server::builder().faults(Faults::rate(0.8).kinds(kinds)).seed(3).start().await.unwrap();
    let (client, url) = (http(), format!("{}/charge", server.url()));
    let mut good = 0;
    for n in 0..80 {
        let key = n.to_string();
        let answer = client.post(&url).header("idempotency-key", &key).send().await;
        if answer.is_ok_and(|answer| answer.status() == 200) {
            assert_eq!(server.charges().of(&key), 1);
            good += 1;
        }
    }
    let charges = server.charges();
    assert!(good > 10 && charges.total() > good && charges.total() < 80, "{good} {charges:?}");
}

#[tokio::test]
async fn an_empty_body_can_be_cut() {
    let script = vec![Scripted::status(200).truncate_body_after(0), Scripted::status(200).reset_body_after(5)];
    let server = Server::builder().script(script).start().await.unwrap();
    assert!(get(&server).await.bytes().await.is_err());
    assert!(get(&server).await.bytes().await.is_err());
}

#[tokio::test]
async fn a_busy_key_conflicts() {
    let server = Server::builder().start().await.unwrap();
    server.set_latency(Duration::from_millis(100)..Duration::from_millis(100));
    let url = format!("{}/charge", server.url());
    let post = || http().post(&url).header("idempotency-key", "k").send();
    let both = futures_util::future::join_all([post(), post()]).await;
    let mut statuses: Vec<_> = both.into_iter().map(|r| r.unwrap().status().as_u16()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
    assert_eq!(post().await.unwrap().status(), 200);
    assert_eq!(server.charges().of("k"), 1);
}

#[tokio::test]
async fn a_charge_whose_answer_is_lost_was_executed_or_not() {
    let builder = Server::builder().faults(Faults::rate(1.0).kinds([Fault::Reset])).seed(1);
    let server = builder.start().await.unwrap();
    let url = format!("{}/charge", server.url());
    for n in 0..20 {
        assert!(http().post(&url).header("idempotency-key", n.to_string()).send().await.is_err());
    }
    let executed = server.charges().keyed.len();
    assert!((1..20).contains(&executed), "{executed}");
    assert_eq!((server.stats().faults, server.stats().executions), (20, executed as u64));
}

#[cfg(feature = "http2")]
#[tokio::test]
async fn speaks_http_2_and_ends_its_tasks() {
    let server = Server::builder().start().await.unwrap();
    let client = Client::builder().http2_prior_knowledge().build().unwrap();
    let calls = (0..20).map(|_| client.get(server.url()).send());
    for answer in futures_util::future::join_all(calls).await {
        let answer = answer.unwrap();
        assert_eq!((answer.version(), answer.text().await.unwrap().as_str()), (reqwest::Version::HTTP_2, "ok\n"));
    }
    assert_eq!(server.stats().connections, 1);
    server.set_faults(Faults::rate(1.0).kinds([Fault::Stall])).unwrap();
    let stalled = client.get(server.url()).timeout(Duration::from_millis(30)).send().await;
    assert!(stalled.unwrap_err().is_timeout());
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    server.shutdown().await;
    drop(client);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let after = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(after < before && after == 0, "{before} -> {after}");
}

#[cfg(feature = "http2")]
#[tokio::test]
async fn faults_leave_nothing_in_flight() {
    let faults = Faults::rate(0.5);
    let server = Server::builder().faults(faults).seed(7).start().await.unwrap();
    let wait = Duration::from_millis(40);
    let h2 = Client::builder().http2_prior_knowledge().timeout(wait).build().unwrap();
    let h1 = Client::builder().retry(reqwest::retry::never()).timeout(wait).build().unwrap();
    for client in [h1, h2] {
        let mut good = 0;
        for _ in 0..60 {
            let Ok(response) = client.get(server.url()).send().await else { continue };
            let status = response.status();
            good += u32::from(response.bytes().await.is_ok() && status == 200);
        }
        assert!((10..50).contains(&good), "{good}");
    }
    tokio::time::sleep(wait).await;
    assert_eq!(server.stats().in_flight, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_is_held_to_the_limit() {
    let quota = Quota::window(50, Duration::from_millis(300));
    let server = Server::builder().limit(quota).algorithm(Algorithm::SlidingLog).start().await.unwrap();
    let client = http();
    let until = Instant::now() + Duration::from_millis(700);
    let workers = (0..16).map(|_| {
        let (client, url) = (client.clone(), server.url().to_owned());
        tokio::spawn(async move {
            let mut accepted = 0;
            while Instant::now() < until {
                accepted += u64::from(client.get(&url).send().await.unwrap().status() == 200);
            }
            accepted
        })
    });
    let seen: u64 = futures_util::future::join_all(workers).await.into_iter().map(Result::unwrap).sum();
    let stats = server.stats();
    assert_eq!((stats.accepted, stats.most_in_window), (seen, 50));
    assert!((100..=150).contains(&seen), "{seen}");
}

#[tokio::test]
async fn dropping_it_closes_everything() {
    let server = Server::builder().fault_kinds([Fault::Stall]).fault_rate(1.0).start().await.unwrap();
    let url = server.url().to_owned();
    let stalled = tokio::spawn(http().get(&url).send());
    tokio::time::sleep(Duration::from_millis(30)).await;
    drop(server);
    assert!(stalled.await.unwrap().is_err());
    assert!(http().get(&url).send().await.unwrap_err().is_connect());
}

#[tokio::test]
async fn nonsense_is_refused_at_start() {
    let second = Duration::from_secs(1);
    let nonsense = [
        Server::builder().limit(Quota::per_second(0)),
        Server::builder().advertise(Quota::window(1, Duration::ZERO)),
        Server::builder().concurrency(0),
        Server::builder().fault_rate(1.5),
        Server::builder().fault_rate(f64::NAN),
        Server::builder().latency(second..Duration::ZERO),
        Server::builder().script(vec![Scripted::status(42)]),
        Server::builder().script(vec![Scripted::status(200).header("bad name", "")]),
        Server::builder().script(vec![Scripted::status(200).body_rate(0)]),
    ];
    for builder in nonsense {
        let text = format!("{builder:?}");
        let error = builder.start().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{text}");
    }
}
