//! Servers that mean harm, on raw sockets. Each call ends in time, in bounded memory, with the right outcome.
#![cfg(target_os = "linux")]

use std::time::Duration;

use abide::{
    Backoff, Cause, Client, Error, Note, Policy, ResponseExt, SentState, Stop,
    http::{HeaderMap, HeaderName, StatusCode},
    reqwest::{self, Response},
};

use crate::support::{
    clock::{self, ms},
    raw::{Raw, Step, alone, say},
};

/// Long, for a machine that is busy with other tests: only what hangs needs it.
const DEADLINE: Duration = Duration::from_secs(20);
const SLACK: Duration = Duration::from_secs(10);
/// Well below the deadline, and what a call may take that waits for nothing.
const SOON: Duration = Duration::from_secs(8);
const ATTEMPTS: usize = 2;
/// What a socket's buffers of both sides take of a flood before anybody reads it, and some more.
const BUFFERS: u64 = 24 << 20;
/// What any of these may take, in MiB: a few buffers of 400 KiB, and the tests' own.
const LITTLE: u64 = 8;

fn policy(attempt: Duration) -> Policy {
    Policy::default()
        .no_budget()
        .backoff(Backoff::constant(ms(1)))
        .throttle_backoff(Backoff::constant(ms(1)))
        .max_attempts(2)
        .attempt_timeout(attempt)
        .deadline(DEADLINE)
}

fn client() -> Client {
    within(SOON)
}

/// Its attempts are cut off so soon.
fn within(attempt: Duration) -> Client {
    let http = reqwest::Client::builder().no_proxy().tls_certs_only([]);
    Client::builder().http(http).policy(policy(attempt)).build().unwrap()
}

/// Sends it; it ends by its deadline.
async fn sent(request: abide::RequestBuilder) -> Result<Response, Error> {
    let start = clock::now();
    let sent = tokio::time::timeout(DEADLINE + SLACK, request.send()).await.expect("a call ends by its deadline");
    assert!(start.elapsed() < DEADLINE + SLACK, "{:?}", start.elapsed());
    sent
}

/// Each answer fails the call, with this cause, in so many attempts.
async fn fails(steps: Vec<Step>, cause: Cause, attempts: usize) -> Raw {
    let server = Raw::always(steps).await;
    let client = if cause == Cause::Timeout { within(ms(600)) } else { client() };
    let error = sent(client.get(server.url())).await.unwrap_err();
    assert_eq!((error.cause(), error.history().attempts().len()), (Some(cause), attempts), "{error:?}");
    assert_eq!(server.requests(), attempts as u64);
    server
}

const OK: &str = "HTTP/1.1 200 OK\r\n";

fn chunked(status: &str) -> Step {
    say(format!("HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n\r\n"))
}

/// 64 KiB of it, as a chunk.
fn chunk() -> Vec<u8> {
    [b"10000\r\n".as_slice(), &[b'x'; 65_536], b"\r\n"].concat()
}

#[test]
fn ten_thousand_headers() {
    alone(LITTLE, async || {
        let lines: String = (0..10_000).map(|n| format!("x-{n}: v\r\n")).collect();
        fails(vec![say(format!("{OK}{lines}\r\n")), Step::Hold], Cause::Other, 1).await;
    });
}

#[test]
fn megabytes_of_one_header() {
    alone(LITTLE, async || {
        let server = fails(vec![say(format!("{OK}x: ")), Step::Flood(vec![b'a'; 65_536], 1 << 14)], Cause::Other, 1);
        let written = server.await.written();
        assert!(written < BUFFERS, "{written} of a gibibyte");
    });
}

#[test]
fn headers_that_drip() {
    alone(LITTLE, async || {
        let drip = Step::Drip(b"x: y\r\n".to_vec(), ms(15));
        fails(vec![say(OK), drip], Cause::Timeout, ATTEMPTS).await;
    });
}

#[test]
fn interim_answers_without_end() {
    alone(LITTLE, async || {
        for interim in ["100 Continue", "102 Processing", "103 Early Hints"] {
            let text = format!("HTTP/1.1 {interim}\r\nlink: </a>\r\n\r\n");
            let server = fails(vec![Step::Drip(text.repeat(20).into(), ms(1))], Cause::Timeout, ATTEMPTS).await;
            // Soon nobody listens any more.
            let (until, mut before) = (clock::now() + SLACK, 0);
            while server.written() != before {
                assert!(clock::now() < until, "{interim} is still read");
                before = server.written();
                clock::sleep(ms(200)).await;
            }
        }
    });
}

#[test]
fn a_gibibyte_on_a_refusal() {
    alone(LITTLE, async || {
        let flood = Step::Flood(chunk(), 1 << 14);
        let long = say(format!("HTTP/1.1 429 X\r\ncontent-length: {}\r\n\r\n", 1_u64 << 30));
        for steps in [vec![chunked("429 X"), flood.clone()], vec![long, flood.clone()], vec![chunked("302 X"), flood]] {
            let server = Raw::always(steps).await;
            let start = clock::now();
            let response = sent(client().get(server.url())).await.unwrap();
            let (status, took) = (response.status().as_u16(), start.elapsed());
            assert!(status == 302 || response.history().attempts().len() == ATTEMPTS, "{:?}", response.history());
            drop(response);
            let written = server.written();
            assert!(written < 2 * BUFFERS, "{written} of a gibibyte");
            assert!(took < SOON, "{took:?}: it is not read to its end");
        }
    });
}

#[test]
fn a_gibibyte_into_a_buffer() {
    alone(LITTLE, async || {
        let server = Raw::always(vec![chunked("200 OK"), Step::Flood(chunk(), 1 << 14)]).await;
        let mut response = sent(client().get(server.url()).buffered(1 << 20)).await.unwrap();
        assert!(response.history().notes().contains(&Note::BufferLimit), "{:?}", response.history());
        // What was read, then the rest of it, a piece at a time.
        let mut read = 0;
        while read < 8 << 20 {
            read += response.chunk().await.unwrap().unwrap().len();
        }
        drop(response);
        assert!(server.written() < (8 << 20) + BUFFERS);
    });
}

/// Before pieces were joined, each took a hundred bytes: 100 MiB for one.
#[test]
fn a_body_of_single_bytes() {
    alone(LITTLE, async || {
        let bytes = Step::Flood(b"1\r\nx\r\n".repeat(1 << 10), 1 << 7);
        let server = Raw::always(vec![chunked("200 OK"), bytes, say("0\r\n\r\n")]).await;
        let patient = policy(Duration::from_secs(120)).deadline(Duration::from_secs(120));
        let response = client().get(server.url()).policy(patient).buffered(1 << 20).send().await.unwrap();
        assert_eq!(response.bytes().await.unwrap().len(), 1 << 17);
    });
}

#[test]
fn bodies_that_drip() {
    alone(LITTLE, async || {
        let drip = || Step::Drip(b"1\r\nx\r\n".to_vec(), ms(15));
        // In the attempt, where a buffer is asked for.
        let server = Raw::always(vec![chunked("200 OK"), drip()]).await;
        let error = sent(within(ms(600)).get(server.url()).buffered(1 << 20)).await.unwrap_err();
        assert_eq!((error.cause(), error.history().attempts().len()), (Some(Cause::Timeout), ATTEMPTS));
        // Between attempts, for a moment.
        let server = Raw::always(vec![chunked("503 X"), drip()]).await;
        let start = clock::now();
        let response = sent(client().get(server.url())).await.unwrap();
        assert_eq!((response.status().as_u16(), server.requests()), (503, ATTEMPTS as u64));
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        // For a wait that the body may tell.
        let told = "HTTP/1.1 429 X\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        let server = Raw::always(vec![say(told), drip()]).await;
        let start = clock::now();
        let response = sent(client().get(server.url())).await.unwrap();
        assert_eq!((response.status().as_u16(), server.requests()), (429, ATTEMPTS as u64));
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    });
}

/// A gibibyte of zeros, packed into one.
#[cfg(all(feature = "gzip", feature = "bulk"))]
fn bomb(head: &str) -> Vec<Step> {
    use flate2::{Compress, Compression, FlushCompress::Full};
    let (mut packer, zeros) = (Compress::new(Compression::best(), false), vec![0; 1 << 20]);
    // A block that nothing comes before can come again and again.
    let mut block = Vec::with_capacity(1 << 16);
    packer.compress_vec(&zeros, &mut block, Full).unwrap();
    assert!(block.len() < 4096 && packer.total_in() == 1 << 20, "{}", block.len());
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\xff";
    let head = format!("{head}\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n");
    vec![say([head.as_bytes(), gzip].concat()), Step::Flood(block, 1024), Step::Close]
}

#[cfg(all(feature = "gzip", feature = "bulk"))]
#[test]
fn bodies_that_swell() {
    alone(LITTLE, async || {
        let server = Raw::always(bomb("HTTP/1.1 200 OK")).await;
        let mut response = sent(client().get(server.url()).buffered(1 << 20)).await.unwrap();
        assert!(response.history().notes().contains(&Note::BufferLimit), "{:?}", response.history());
        let (mut read, mut longest) = (0, 0);
        while read < 3 << 20 {
            let piece = response.chunk().await.unwrap().unwrap();
            (read, longest) = (read + piece.len(), longest.max(piece.len()));
        }
        assert!(longest <= 1 << 20, "{longest}");
        let server = Raw::always(bomb("HTTP/1.1 429 X\r\ncontent-type: application/json")).await;
        let response = sent(client().get(server.url())).await.unwrap();
        assert_eq!((response.status().as_u16(), server.requests()), (429, ATTEMPTS as u64));
        // A classifier sees whole bodies only.
        let classified =
            policy(SOON).classify_body(1 << 16, |_, _, body| panic!("{} bytes are no whole body", body.len()));
        let server = Raw::always(bomb("HTTP/1.1 200 OK")).await;
        sent(client().get(server.url()).policy(classified)).await.unwrap();
    });
}

#[test]
fn redirects_without_end() {
    alone(LITTLE, async || {
        let big = "a".repeat(50_000);
        let hop = move |n| vec![say(format!("HTTP/1.1 302 X\r\nlocation: /{n}{big}\r\ncontent-length: 0\r\n\r\n"))];
        let server = Raw::start(hop).await;
        let response = sent(client().get(server.url())).await.unwrap();
        assert_eq!((response.history().stop(), server.requests()), (Stop::RedirectRefused, 11));
        // There and back.
        let hop = |n| vec![say(format!("HTTP/1.1 307 X\r\nlocation: /{}\r\ncontent-length: 0\r\n\r\n", n % 2))];
        let server = Raw::start(hop).await;
        let response = sent(client().post(server.url()).body("x").idempotency_key("k")).await.unwrap();
        assert_eq!((response.history().stop(), server.requests()), (Stop::RedirectRefused, 3));
    });
}

#[test]
fn redirects_to_where_nobody_should_go() {
    alone(LITTLE, async || {
        let there = Raw::always(vec![say(format!("{OK}content-length: 0\r\n\r\n"))]).await;
        let host = there.url();
        let host = host.trim_start_matches("http://").trim_end_matches('/');
        for location in [
            "file:///etc/passwd".to_owned(),
            "ftp://h.example/".into(),
            "javascript:alert(1)".into(),
            "data:,x".into(),
            "unix:/var/run/docker.sock".into(),
            format!("http://user:pass@{host}/"),
            format!("http://user@{host}/"),
            format!("//:pass@{host}/"),
            "http://".into(),
            "http://h.example:99999/".into(),
            "http://[::1".into(),
            "http://h\u{9b}.example/".into(),
            String::new(),
        ] {
            let head = format!("HTTP/1.1 302 X\r\nlocation: {location}\r\ncontent-length: 5\r\n\r\nmoved");
            let server = Raw::always(vec![say(head)]).await;
            let response = sent(client().get(server.url())).await.unwrap();
            assert_eq!(response.history().stop(), Stop::RedirectRefused, "{location:?}");
            assert_eq!((response.text().await.unwrap().as_str(), server.requests()), ("moved", 1), "{location:?}");
        }
        assert_eq!(there.requests(), 0);
    });
}

#[test]
fn what_is_no_answer() {
    alone(LITTLE, async || {
        let garbage: [&[u8]; 9] = [
            b"<html>HTTP/0.9 has no head</html>",
            b"\0\x01\x02\xff\xfe\r\n\r\n",
            b"HTTP/9.9 200 OK\r\n\r\n",
            b"HTTP/1.1 99999 OK\r\n\r\n",
            b"HTTP/1.1 -1 OK\r\n\r\n",
            b"ICY 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\0: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
        ];
        for bytes in garbage {
            let server = fails(vec![say(bytes), Step::Close], Cause::Other, 1).await;
            // It may have been executed all the same.
            let error = sent(client().post(server.url())).await.unwrap_err();
            assert_eq!(error.sent(), SentState::Unknown, "{error:?}");
        }
        for nothing in [b"".as_slice(), b"HTT", b"HTTP/1.1 200 OK\r\nx: y"] {
            fails(vec![say(nothing), Step::Close], Cause::Reset, ATTEMPTS).await;
        }
        // Old, and an answer all the same: until the connection ends.
        let server = Raw::always(vec![say("HTTP/1.0 200 OK\r\n\r\nold"), Step::Close]).await;
        let response = sent(client().get(server.url()).buffered(100)).await.unwrap();
        assert_eq!(response.text().await.unwrap(), "old");
    });
}

#[test]
fn lengths_that_lie() {
    alone(LITTLE, async || {
        let head = |fields: &str| say(format!("{OK}{fields}\r\n\r\n12345"));
        // Less than told: broken, and repeated where the attempt has the body.
        let server = Raw::always(vec![head("content-length: 10"), Step::Close]).await;
        let error = sent(client().get(server.url()).buffered(1 << 20)).await.unwrap_err();
        assert_eq!((error.cause(), error.history().attempts().len()), (Some(Cause::Reset), ATTEMPTS));
        assert!(error.is_body(), "{error:?}");
        // Told to be longer than the buffer: the caller reads, and sees it break.
        let server = Raw::always(vec![head("content-length: 4611686018427387904"), Step::Close]).await;
        let response = sent(client().get(server.url()).buffered(1 << 20)).await.unwrap();
        assert!(response.history().notes().contains(&Note::BufferLimit), "{:?}", response.history());
        response.bytes().await.unwrap_err();
        // Two tellings, or none that is a number.
        for wrong in [
            "content-length: 3\r\ncontent-length: 5",
            "content-length: -5",
            "content-length: 5, 6",
            "content-length: 99999999999999999999999",
            "content-length: 18446744073709551614",
            "content-length: 0x5",
        ] {
            fails(vec![head(wrong), Step::Close], Cause::Other, 1).await;
        }
    });
}

/// Bytes after an answer are no answer to the next request.
#[test]
fn answers_that_nobody_asked_for() {
    alone(LITTLE, async || {
        let forged = format!("{OK}content-length: 6\r\n\r\nforged");
        let first = format!("{OK}content-length: 5\r\n\r\nfirst");
        for pause in [ms(0), ms(30)] {
            let (forged, first) = (forged.clone(), first.clone());
            let server = Raw::start(move |n| match n {
                0 => vec![say(first.clone()), Step::Pause(pause), say(forged.clone()), Step::Hold],
                _ => vec![say(format!("{OK}content-length: 4\r\n\r\nreal"))],
            });
            let (server, client) = (server.await, client());
            let response = sent(client.get(server.url())).await.unwrap();
            assert_eq!(response.text().await.unwrap(), "first");
            clock::sleep(ms(60)).await;
            let response = sent(client.get(server.url())).await.unwrap();
            assert_eq!(response.text().await.unwrap(), "real", "after {pause:?}");
        }
    });
}

#[test]
fn chunks_that_make_no_sense() {
    // Most of it is what the server sends.
    alone(LITTLE + 16, async || {
        let chunks: [Vec<u8>; 8] = [
            b"zz\r\nx\r\n".to_vec(),
            b"-1\r\nx\r\n".to_vec(),
            b"ffffffffffffffffff\r\nx\r\n".to_vec(),
            b"3\r\nabcdef\r\n".to_vec(),
            b"3;ext=\x00\r\nab\r\n0\r\n\r\n".to_vec(),
            [b"1;".as_slice(), &vec![b'e'; 1 << 20]].concat(),
            [b"1\r\nx\r\n0\r\n".as_slice(), "t: v\r\n".repeat(100_000).as_bytes()].concat(),
            [b"1\r\nx\r\n0\r\nt: ".as_slice(), &vec![b'v'; 4 << 20]].concat(),
        ];
        for bytes in chunks {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
            let server = Raw::always(vec![chunked("200 OK"), say(bytes), Step::Close]).await;
            let error = sent(client().get(server.url()).buffered(1 << 20)).await.unwrap_err();
            assert!(error.is_body() && error.sent() == SentState::Sent, "{shown:?}: {error:?}");
        }
    });
}

#[test]
fn more_headers_than_are_read() {
    alone(LITTLE, async || {
        let members: String = (0..3_000).map(|n| format!("\"p{n}\";r=0;t=1000000000, ")).collect();
        let policies: String = (0..3_000).map(|n| format!("\"p{n}\";q=1;w=1000000000, ")).collect();
        let fields = format!("ratelimit: {members}\"z\";r=1\r\nratelimit-policy: {policies}\"z\";q=1;w=1");
        let server = Raw::always(vec![say(format!("{OK}{fields}\r\ncontent-length: 0\r\n\r\n"))]).await;
        let client = client();
        for _ in 0..5 {
            let response = sent(client.get(server.url())).await.unwrap();
            assert_eq!(response.status().as_u16(), 200, "a field that is too long is not believed");
        }
    });
}

#[test]
fn a_map_of_headers_without_end() {
    let mut map = HeaderMap::new();
    for n in 0..20_000 {
        map.append("ratelimit", format!("\"p{n}\";r=0;t=9").parse().unwrap());
        map.append(format!("x-ratelimit-limit-{}", n % 5_000).parse::<HeaderName>().unwrap(), 1.into());
    }
    let start = clock::now();
    let hints = abide::headers::read(StatusCode::OK, &map, None, clock::wall());
    assert!(hints.quotas.len() <= 128, "{}", hints.quotas.len());
    assert!(start.elapsed() < ms(3_000), "{:?}", start.elapsed());
}
