//! The test network does what its scripts say, seen by a bare reqwest client.

use std::error::Error;

use crate::support::{
    clock,
    net::Network,
    record::Kind,
    script::{Entry, Fault, Values},
};

fn client(network: &Network) -> reqwest::Client {
    network.http().retry(reqwest::retry::never()).redirect(reqwest::redirect::Policy::none()).build().unwrap()
}

/// Everything that an error says, down to its root.
fn story(error: &dyn Error) -> String {
    let mut story = format!("{error:?}");
    let mut source = error.source();
    while let Some(error) = source {
        story.push_str(&format!(" < {error} {error:?}"));
        source = error.source();
    }
    story
}

async fn failure(fault: Fault) -> (String, Network) {
    let network = Network::with(&[Entry::fault(fault)]).await;
    let sent = client(&network).put(network.url()).body("12345").send().await;
    let error = match sent {
        Err(error) => error,
        Ok(response) => response.bytes().await.unwrap_err(),
    };
    assert_eq!(network.problems(), [""; 0], "{}", story(&error));
    (story(&error), network)
}

#[tokio::test]
async fn answers_come_in_order_and_are_recorded() {
    let mut slow = Entry::with_body(503, "later");
    slow.delay_ms = Some(60);
    slow.headers.push(("Retry-After".into(), "1".into()));
    let network = Network::with(&[slow, Entry { body_bytes: Some(50_000), ..Entry::status(200) }]).await;
    let client = client(&network);
    let first = client.post(network.url()).header("X-A", "b").body("one").send().await.unwrap();
    assert_eq!((first.status().as_u16(), &first.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    assert_eq!(first.text().await.unwrap(), "later");
    clock::sleep(clock::ms(30)).await;
    let second = client.get(network.url()).send().await.unwrap();
    assert_eq!(second.bytes().await.unwrap().len(), 50_000);
    let seen = network.seen();
    assert_eq!((seen.len(), seen[0].connection), (2, seen[1].connection));
    assert_eq!((seen[0].request.method.as_str(), seen[0].request.body.as_slice()), ("POST", b"one".as_slice()));
    assert_eq!((seen[0].request.header("x-a"), seen[0].host), (Some("b"), "a"));
    assert!(seen[0].ended.unwrap() - seen[0].arrived >= clock::ms(60));
    assert!(seen[1].arrived - seen[0].ended.unwrap() >= clock::ms(30));
    client.get(network.url()).send().await.unwrap();
    assert_eq!(network.problems().len(), 1, "a request beyond the script is a problem");
}

#[tokio::test]
async fn a_streamed_body_is_read_whole() {
    let network = Network::with(&[Entry::status(200)]).await;
    let parts = futures_util::stream::iter(["ab", "", "cde"].map(Ok::<_, std::io::Error>));
    client(&network).put(network.url()).body(reqwest::Body::wrap_stream(parts)).send().await.unwrap();
    assert_eq!(network.seen()[0].request.body, b"abcde");
}

#[tokio::test]
async fn resets_and_closes_look_like_what_they_are() {
    let (reset, network) = failure(Fault::ResetBeforeResponse).await;
    assert!(reset.contains("ConnectionReset"), "{reset}");
    assert_eq!(network.seen()[0].request.body, b"12345");
    let (closed, _) = failure(Fault::CloseBeforeResponse).await;
    assert!(closed.contains("IncompleteMessage"), "{closed}");
    let (broken, _) = failure(Fault::ResetMidBody).await;
    assert!(broken.contains("ConnectionReset"), "{broken}");
}

#[tokio::test]
async fn a_pooled_connection_closes_as_the_request_arrives() {
    let network = Network::with(&[Entry::fault(Fault::CloseKeepalive), Entry::status(200)]).await;
    let client = client(&network);
    client.get(network.warm_up_url()).send().await.unwrap();
    let error = client.get(network.url()).send().await.unwrap_err();
    assert!(story(&error).contains("IncompleteMessage"), "{}", story(&error));
    client.get(network.url()).send().await.unwrap();
    let seen = network.seen();
    assert_eq!((seen[0].connection, seen[1].connection), (1, 2));
}

#[tokio::test]
async fn a_stall_lasts_until_the_client_gives_up() {
    for entry in [Entry::fault(Fault::Stall), Entry { stall_body_after: Some(3), ..Entry::status(200) }] {
        let network = Network::with(&[entry]).await;
        let client = client(&network);
        let whole = async { client.get(network.url()).send().await?.bytes().await };
        tokio::time::timeout(clock::ms(100), whole).await.unwrap_err();
        clock::sleep(clock::ms(50)).await;
        let seen = network.seen();
        assert!(seen[0].ended.unwrap() - seen[0].arrived >= clock::ms(50));
    }
}

#[tokio::test]
async fn http2_faults_are_the_frames_they_are_named_for() {
    let (refused, _) = failure(Fault::H2RefusedStream).await;
    assert!(refused.contains("REFUSED_STREAM"), "{refused}");
    let (away, network) = failure(Fault::H2GoawayUnprocessed).await;
    assert!(away.contains("GoAway") && away.contains("NO_ERROR"), "{away}");
    assert_eq!(network.seen()[0].request.body, b"12345");
    let (calm, _) = failure(Fault::H2GoawayCalm).await;
    assert!(calm.contains("BrokenPipe"), "the frame covers the stream, so that its end is the connection's: {calm}");
}

#[tokio::test]
async fn http2_answers_and_goes_on() {
    let refused = Entry { after_body: true, ..Entry::fault(Fault::H2RefusedStream) };
    let network = Network::with(&[refused, Entry::with_body(200, "fine")]).await;
    let client = client(&network);
    client.put(network.url()).body("12345").send().await.unwrap_err();
    assert_eq!(network.seen()[0].request.body, b"12345");
    assert_eq!(client.get(network.url()).send().await.unwrap().text().await.unwrap(), "fine");
}

#[tokio::test]
async fn tls_faults_end_in_the_handshake() {
    for (fault, word) in [
        (Fault::TlsUnknownCa, "UnknownIssuer"),
        (Fault::TlsExpiredCert, "Expired"),
        (Fault::TlsWrongHost, "NotValidForName"),
        (Fault::ResetInTlsHandshake, "ConnectionReset"),
    ] {
        let (error, network) = failure(fault).await;
        assert!(error.contains(word), "{fault:?}: {error}");
        assert_eq!(network.seen().iter().map(|seen| seen.kind).collect::<Vec<_>>(), [Kind::Handshake]);
    }
}

#[tokio::test]
async fn after_a_failed_handshake_the_connection_is_good() {
    let network = Network::with(&[Entry::fault(Fault::ResetInTlsHandshake), Entry::with_body(200, "safe")]).await;
    let client = client(&network);
    client.get(network.url()).send().await.unwrap_err();
    assert_eq!(client.get(network.url()).send().await.unwrap().text().await.unwrap(), "safe");
}

#[tokio::test]
async fn names_and_schemes_fail_before_a_connection() {
    let (error, network) = failure(Fault::DnsNxdomain).await;
    assert!(error.contains("Name or service not known"), "{error}");
    assert_eq!(network.seen()[0].kind, Kind::LookUp);
    let (error, network) = failure(Fault::BadScheme).await;
    assert!(error.contains("scheme"), "{error}");
    assert_eq!(network.seen().len(), 0);
}

#[test]
fn templates_follow_the_server_clock() {
    let values = Values { skew_ms: -5000, origin_a: "http://a".into(), origin_b: "http://b:1".into() };
    assert_eq!(values.fill("{{origin:b}}/x").unwrap(), "http://b:1/x");
    let now = clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let at = values.fill("{{epoch:+3s}}").unwrap().parse::<u64>().unwrap();
    assert!((now - 3..=now - 1).contains(&at), "{at} at {now}");
    assert!(values.fill("{{epoch_ms:-1s}}").unwrap().ends_with("000"));
    assert!(values.fill("{{http_date:+0s}}").unwrap().ends_with(" GMT"));
    values.fill("{{moon:+3s}}").unwrap_err();
}

/// A retry or a hop that follows at once finds the connection of the answer before it: it is back in the pool by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_read_to_its_end_leaves_its_connection_to_the_next_attempt() {
    const CALLS: usize = 50;
    let again = Entry { body_bytes: Some(48 * 1024), ..Entry::status(503) };
    let mut moved = Entry { body_bytes: Some(1024), ..Entry::status(302) };
    moved.headers.push(("Location".into(), "/moved".into()));
    let call = [again.clone(), again, moved, Entry::status(200)];
    let network = Network::with(&vec![call; CALLS].concat()).await;
    let policy = abide::Policy::default().backoff(abide::Backoff::none()).no_budget();
    let client =
        abide::Client::builder().http(network.http()).policy(policy.max_attempts(5)).redirects(5).build().unwrap();
    for _ in 0..CALLS {
        assert_eq!(client.get(network.url()).send().await.unwrap().bytes().await.unwrap().len(), 0);
    }
    let seen = network.seen();
    let changed = seen.chunks(4).filter(|call| call.iter().any(|seen| seen.connection != call[0].connection)).count();
    assert_eq!((seen.len(), network.problems()), (4 * CALLS, Vec::new()));
    // Without a moment for the pool it is a seventh of them, or more.
    assert!(changed <= CALLS / 10, "{changed} of {CALLS} calls changed their connection");
}
