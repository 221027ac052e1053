//! Servers of HTTP/2 that mean harm, frame by frame.
#![cfg(target_os = "linux")]

use std::time::Duration;

use abide::{Backoff, Cause, Client, Error, NonIdempotent, Policy, SentState, reqwest};

use crate::support::{
    clock::{self, ms},
    raw::{Raw, Step, alone, say},
};

/// Long, for a machine that is busy with other tests: only what hangs needs it.
const DEADLINE: Duration = Duration::from_secs(20);
const SLACK: Duration = Duration::from_secs(10);
/// An attempt that is to be cut off, and one that ends by itself.
const HASTY: Duration = Duration::from_millis(900);
const PATIENT: Duration = Duration::from_secs(8);
/// By then the request is on its way.
const BY_THEN: Duration = Duration::from_millis(300);
/// MiB.
const LITTLE: u64 = 12;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// RFC 9113 §4.1.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A literal field without indexing: RFC 7541 §6.2.2.
fn field(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    [&[0, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat()
}

fn hello() -> Step {
    say(frame(SETTINGS, 0, 0, &[]))
}

fn client(attempt: Duration) -> Client {
    let http = reqwest::Client::builder().no_proxy().tls_certs_only([]).http2_prior_knowledge();
    let policy = Policy::default()
        .no_budget()
        .backoff(Backoff::constant(ms(1)))
        .max_attempts(2)
        .attempt_timeout(attempt)
        .deadline(DEADLINE)
        .retry_non_idempotent(NonIdempotent::WhenUnsent);
    Client::builder().http(http).policy(policy).build().unwrap()
}

/// After the settings, these steps; the call fails by its deadline.
async fn fails(attempt: Duration, steps: impl IntoIterator<Item = Step>) -> (Error, Raw) {
    let steps: Vec<Step> = std::iter::once(hello()).chain(steps).collect();
    let server = Raw::always(steps).await;
    let start = clock::now();
    let sent = tokio::time::timeout(DEADLINE + SLACK, client(attempt).get(server.url()).buffered(1 << 20).send()).await;
    let error = sent.expect("a call ends by its deadline").unwrap_err();
    assert!(start.elapsed() < DEADLINE + SLACK && !error.history().attempts().is_empty(), "{error:?}");
    (error, server)
}

#[test]
fn floods_of_frames() {
    alone(LITTLE, async || {
        for flood in [
            frame(SETTINGS, 0, 0, &[]),
            frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
            frame(PING, 0, 0, &[0; 8]),
            frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
            // Kinds that nobody knows are skipped.
            frame(0x77, 0xff, 0, &[7; 1000]),
        ] {
            let (error, _) = fails(HASTY, [Step::Drip(flood.repeat(100), ms(1))]).await;
            assert_eq!(error.cause(), Some(Cause::Timeout), "{error:?}");
        }
    });
}

#[test]
fn frames_that_make_no_sense() {
    alone(LITTLE, async || {
        let long = frame(DATA, 0, 1, &vec![0; 1 << 20]);
        for wrong in [
            frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]).repeat(1000),
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]).repeat(2),
            frame(SETTINGS, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff]),
            frame(SETTINGS, 1, 0, &[]).repeat(1000),
            frame(RST_STREAM, 0, 0, &[0; 4]),
            frame(DATA, 0, 4, b"no such stream"),
            frame(HEADERS, END_HEADERS, 1, &[0xff; 100]),
            frame(CONTINUATION, END_HEADERS, 1, &[]),
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_vec(),
            long,
        ] {
            let shown = wrong[..wrong.len().min(30)].to_vec();
            let (error, _) = fails(PATIENT, [Step::Pause(BY_THEN), say(wrong), Step::Hold]).await;
            assert!(error.history().attempts().len() <= 2, "{shown:?}: {error:?}");
            assert_ne!(error.cause(), Some(Cause::Timeout), "{shown:?}: {error:?}");
        }
    });
}

#[test]
fn streams_that_are_reset_and_connections_that_go_away() {
    alone(LITTLE, async || {
        // Refused each time: never begun, and not sent again for ever.
        let reset = |stream| say(frame(RST_STREAM, 0, stream, &7_u32.to_be_bytes()));
        let (error, _) =
            fails(PATIENT, [Step::Pause(BY_THEN), reset(1), Step::Pause(BY_THEN), reset(3), Step::Hold]).await;
        assert_eq!((error.cause(), error.history().attempts().len()), (Some(Cause::RefusedStream), 2), "{error:?}");
        assert_eq!(error.sent(), SentState::NotSent);
        // Each connection goes away as it comes.
        for reason in [0_u32, 11] {
            let away = frame(GOAWAY, 0, 0, &[&0_u32.to_be_bytes(), &reason.to_be_bytes(), b"go".as_slice()].concat());
            let (error, server) = fails(PATIENT, [say(away.repeat(50)), Step::Close]).await;
            assert!(error.history().attempts().len() == 2 && server.requests() <= 4, "{error:?}");
        }
    });
}

#[test]
fn headers_without_end() {
    alone(LITTLE, async || {
        let piece: Vec<u8> = (0..100).flat_map(|n| field(&format!("x-{n}"), "value")).collect();
        let head = frame(HEADERS, 0, 1, &[field(":status", "200"), piece.clone()].concat());
        let more = Step::Flood(frame(CONTINUATION, 0, 1, &piece), 1 << 18);
        let (error, server) = fails(PATIENT, [Step::Pause(BY_THEN), say(head.clone()), more]).await;
        assert_ne!(error.cause(), Some(Cause::Timeout), "{error:?}");
        assert!(server.written() < 24 << 20, "{} of 300 MB", server.written());
        // Ten thousand, and then an end.
        let rest = [frame(CONTINUATION, 0, 1, &piece).repeat(99), frame(CONTINUATION, END_HEADERS, 1, &piece)];
        let (error, _) =
            fails(PATIENT, [Step::Pause(BY_THEN), say([vec![head], rest.to_vec()].concat().concat()), Step::Hold])
                .await;
        assert!(error.history().attempts().len() <= 2, "{error:?}");
    });
}

#[test]
fn interim_answers_without_end() {
    // What one turn of the connection takes in, some 30 MiB; it grows no further however long it lasts.
    alone(64, async || {
        let early = frame(HEADERS, END_HEADERS, 1, &[field(":status", "103"), field("link", "</a>")].concat());
        for flood in [Step::Drip(early.repeat(20), ms(1)), Step::Flood(early.repeat(100), 1 << 14)] {
            let (error, server) = fails(HASTY, [Step::Pause(BY_THEN), flood]).await;
            assert_eq!(error.cause(), Some(Cause::Timeout), "{error:?}");
            assert!(server.written() > 50_000, "{}", server.written());
        }
    });
}

#[test]
fn pieces_of_nothing() {
    alone(LITTLE, async || {
        let head = frame(HEADERS, END_HEADERS, 1, &field(":status", "200"));
        let empty = Step::Drip(frame(DATA, 0, 1, &[]).repeat(200), ms(1));
        let (error, _) = fails(PATIENT, [Step::Pause(BY_THEN), say(head), empty]).await;
        // h2 ends such a connection; without that, the attempt's time does.
        assert!(matches!(error.cause(), Some(Cause::Reset | Cause::Timeout)), "{error:?}");
        assert_eq!((error.sent(), error.history().attempts().len()), (SentState::Sent, 2));
    });
}
