//! Deadlines: each call ends by its own, no wait is begun that cannot fit, and nothing that fits is cut.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use abide::{
    Backoff, BoxError, Cause, Client, ClientBuilder, Error, History, Limiter, Policy, Quota, ResponseExt, Stop,
    http::HeaderMap,
    testing::{Faults, Server},
};
use futures_util::{StreamExt, future::join_all, stream};
use reqwest::{Body, Request, Response};
use tokio::time::Instant;

use crate::support::{
    clock::{self, ms},
    is_long,
};

const CALLS: u64 = 10_000;
const ATTEMPT: u64 = 700;
const BASE: u64 = 50;
const CAP: u64 = 400;

/// What a request meets, and how long that takes if nobody cuts it.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Reset(u64),
    Stall,
    Status(u16, u64),
    Asked(u64, u64),
    /// Head and body.
    Slow(u64, u64),
}

impl Plan {
    fn of(number: u64, attempt: u64) -> Self {
        let draw = |salt: u64, below: u64| draw(number, attempt * 64 + salt, below);
        match draw(1, 6) {
            0 => Self::Reset(draw(2, 30)),
            1 => Self::Stall,
            2 => Self::Status(503, draw(2, 400)),
            3 => Self::Asked(draw(2, 50), draw(3, 3)),
            4 => Self::Slow(draw(2, 200), draw(3, 700)),
            _ => Self::Status(if draw(2, 3) == 0 { 200 } else { 500 }, draw(3, 100)),
        }
    }

    /// Until its result, cut by the time-out of the attempt.
    fn lasts(self) -> Duration {
        ms(match self {
            Self::Reset(after) | Self::Status(_, after) | Self::Asked(after, _) => after,
            Self::Stall => ATTEMPT,
            Self::Slow(head, body) => ATTEMPT.min(head + body),
        })
    }

    async fn play(self) -> Result<Response, BoxError> {
        let answer = |status: u16| http::Response::builder().status(status);
        let response = match self {
            Self::Reset(after) => {
                clock::sleep(ms(after)).await;
                return Err(io::Error::from(io::ErrorKind::ConnectionReset).into());
            }
            Self::Stall => std::future::pending().await,
            Self::Status(status, after) => {
                clock::sleep(ms(after)).await;
                answer(status).body(Body::from("b"))
            }
            Self::Asked(after, seconds) => {
                clock::sleep(ms(after)).await;
                answer(429).header("retry-after", seconds.to_string()).body(Body::from("b"))
            }
            Self::Slow(head, body) => {
                clock::sleep(ms(head)).await;
                let late = stream::once(async move {
                    clock::sleep(ms(body)).await;
                    Ok::<_, Infallible>("body")
                });
                answer(200).body(Body::wrap_stream(late))
            }
        };
        Ok(response?.into())
    }
}

fn draw(number: u64, salt: u64, below: u64) -> u64 {
    let mixed = (number << 16 | salt).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ mixed >> 29) % below
}

/// When each call's requests were sent.
type Log = Arc<Mutex<HashMap<u64, Vec<Instant>>>>;

fn client(log: &Log) -> ClientBuilder {
    let log = Arc::clone(log);
    let http = reqwest::Client::builder().no_proxy().tls_certs_only([]);
    let policy = Policy::default()
        .backoff(Backoff::full_jitter(ms(BASE), ms(CAP)))
        .attempt_timeout(ms(ATTEMPT))
        .max_attempts(6)
        .no_budget();
    Client::builder().http(http).policy(policy).seed(5).transport(move |request: Request| {
        let number = request.url().path()[1..].parse().unwrap();
        let mut log = log.lock().unwrap();
        let sends = log.entry(number).or_default();
        sends.push(clock::now());
        Plan::of(number, sends.len() as u64).play()
    })
}

fn parts(result: &Result<Response, Error>) -> (&History, bool) {
    match result {
        Ok(response) => (response.history(), false),
        Err(error) => (error.history(), error.cause() == Some(Cause::Deadline)),
    }
}

#[derive(Default)]
struct Counts {
    cut: u64,
    unfit: u64,
    grain: u64,
    unfit_asked: u64,
}

/// Neither limiter nor headers make it wait.
fn check_plain(number: u64, (history, cut): (&History, bool), times: &[Instant], ended: Instant, counts: &mut Counts) {
    let (start, deadline) = (times[0], times[0] + length(number));
    let last = Plan::of(number, times.len() as u64);
    let result = times[times.len() - 1] + last.lasts();
    assert!(ended <= deadline && times.iter().all(|sent| *sent < deadline), "{number}");
    if cut {
        counts.cut += 1;
        assert_eq!(ended, deadline, "{number}: cut to the millisecond");
        assert!(result >= deadline, "{number}: cut, and would have fitted");
        return;
    }
    let spent = ended - start;
    if ended == deadline && ended > result {
        // The wait fits by less than a millisecond, and the timer has no finer grain.
        assert_eq!(history.stop(), Stop::Deadline, "{number}: {spent:?}, {history:?}");
        counts.grain += 1;
        return;
    }
    assert_eq!(ended, result, "{number}: waited for nothing after {last:?}: {spent:?}, {history:?}");
    if history.stop() == Stop::Deadline {
        counts.unfit += 1;
        let ceiling = ms(CAP.min(BASE << (times.len() - 1)));
        let asked = match last {
            Plan::Asked(_, seconds @ 1..) => Some(Duration::from_secs(seconds)),
            _ => None,
        };
        counts.unfit_asked += u64::from(asked.is_some());
        assert!(
            result + asked.unwrap_or(ceiling) >= deadline,
            "{number}: the wait would have fitted: {spent:?}, {history:?}"
        );
    }
}

fn length(number: u64) -> Duration {
    ms(1 + draw(number, 7, 3000))
}

/// Each call with its history, and the instant of its end.
async fn all(client: &Client) -> Vec<(Result<Response, Error>, Instant)> {
    let calls = (0..CALLS).map(async |number| {
        let call = client.get(format!("https://api.example/{number}")).key(number.to_string()).buffered(100);
        (call.deadline(length(number)).send().await, clock::now())
    });
    join_all(calls).await
}

#[tokio::test(start_paused = true)]
async fn every_call_ends_by_its_deadline_and_uses_what_fits() {
    let log = Log::default();
    let limiter = Limiter::builder().learn(false).build().unwrap();
    let ended = all(&client(&log).limiter(limiter).build().unwrap()).await;
    let (log, mut counts) = (log.lock().unwrap(), Counts::default());
    for (number, (result, end)) in (0..).zip(&ended) {
        check_plain(number, parts(result), &log[&number], *end, &mut counts);
    }
    assert!(counts.cut > 1000 && counts.unfit > 300 && counts.unfit_asked > 200 && counts.grain < 20);
}

/// The same with waits for the limiter and for fresh headers before each send.
#[tokio::test(start_paused = true)]
async fn waits_before_the_send_end_by_the_deadline_too() {
    let (log, start) = (Log::default(), clock::now());
    let slow = |attempt: u32| async move {
        clock::sleep(ms(draw(attempt.into(), 3, 200))).await;
        Ok(HeaderMap::new())
    };
    let slot = Quota::bucket(1, ms(300)).burst(1);
    let ended = all(&client(&log).quota(slot).headers_with(slow).build().unwrap()).await;
    let (mut refused, mut at_deadline) = (0, 0);
    for (number, (result, end)) in (0..).zip(&ended) {
        let (deadline, (history, cut)) = (start + length(number), parts(result));
        let sends = log.lock().unwrap().get(&number).cloned().unwrap_or_default();
        assert!(*end <= deadline && sends.iter().all(|sent| *sent < deadline), "{number}");
        assert!(!cut || *end == deadline, "{number}: cut to the millisecond");
        assert!(sends.windows(2).all(|pair| pair[1] - pair[0] >= ms(290)), "{number} keeps the quota: {sends:?}");
        if history.stop() == Stop::Deadline {
            refused += u64::from(*end < deadline);
            at_deadline += u64::from(*end == deadline);
        }
    }
    assert!(refused > 500 && at_deadline > 500, "{refused} {at_deadline}");
}

/// On sockets, amid faults of all kinds: 250 ms for a busy machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sockets_calls_end_by_their_deadlines() {
    let server = Server::builder().faults(Faults::rate(0.6)).latency(ms(0)..ms(40)).start().await.unwrap();
    let policy = Policy::default().backoff(Backoff::full_jitter(ms(20), ms(200))).no_budget().max_attempts(8);
    let client = Client::builder().policy(policy).build().unwrap();
    let calls = stream::iter(0..if is_long() { 2000 } else { 300 }).map(async |number| {
        let deadline = ms(1 + draw(number, 7, 500));
        let start = clock::now();
        let result = client.get(server.url()).buffered(1000).deadline(deadline).send().await;
        let (took, (history, cut)) = (clock::now() - start, parts(&result));
        assert!(took <= deadline + ms(250), "{took:?} of {deadline:?}: {history:?}");
        assert!(!cut || took >= deadline, "cut after {took:?} of {deadline:?}");
        cut
    });
    let cut = calls.buffer_unordered(16).filter(|cut| std::future::ready(*cut)).count().await;
    assert!(cut > 10, "{cut}");
}
