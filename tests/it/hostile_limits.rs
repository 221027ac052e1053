//! Servers that lie about limits and waits, in memory and on the paused clock.

use std::time::{Duration, UNIX_EPOCH};

use abide::{
    Backoff, Client, Error, Key, KeyBy, Limiter, Policy, ResponseExt, Stop,
    headers::{self, Hints, QuotaHint},
    http::{HeaderMap, HeaderValue, StatusCode},
    reqwest::{Request, Response},
};
use tokio::time::Instant;

use crate::{
    memory::{Net, Reply, status},
    support::clock::{self, ms},
};

const URL: &str = "http://h.example/";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What a wait is cut to: more than a human's life.
const LONGEST: Duration = Duration::from_secs(1 << 31);

/// A 429 with these lines of `Retry-After`, again and again; how often it was asked, its last answer, how long it took.
async fn refused(lines: &[&[u8]]) -> (usize, Response, Duration) {
    let lines: Vec<_> = lines.iter().map(|line| HeaderValue::from_bytes(line).unwrap()).collect();
    let net = Net::new((0..10).map(|_| status(429)));
    let (http, answers) = (reqwest::Client::builder().no_proxy().tls_certs_only([]), net.clone());
    let client = Client::builder().http(http).transport(move |request: Request| {
        let (answer, lines) = (answers.clone().answer(request), lines.clone());
        async move {
            let mut answer = answer.await?;
            for line in lines {
                answer.headers_mut().append("retry-after", line);
            }
            Ok(answer)
        }
    });
    let policy = Policy::default().no_budget().throttle_backoff(Backoff::constant(ms(100)));
    let (client, start) = (client.policy(policy).build().unwrap(), Instant::now());
    let response = client.get(URL).send().await.unwrap();
    (net.count(), response, start.elapsed())
}

/// Names no wait: our own backoff holds.
#[tokio::test(start_paused = true)]
async fn waits_that_are_none() {
    let none: [&[&[u8]]; 34] = [
        &[b""],
        &[b" "],
        &[b"0"],
        &[b"-0"],
        &[b"-1"],
        &[b"+1"],
        &[b"1e3"],
        &[b"1e308"],
        &[b"1e-9"],
        &[b"NaN"],
        &[b"inf"],
        &[b"-inf"],
        &[b"Infinity"],
        &[b"0x10"],
        &[b"1;2"],
        &[b"1 2"],
        &[b"true"],
        &[b"null"],
        &[b"\"5\""],
        &[b"10 seconds"],
        &["\u{663}".as_bytes()],
        &["\u{ff15}".as_bytes()],
        &["\u{9b}5".as_bytes()],
        &[b"\xff\xfe"],
        &[b"5\xff"],
        &[b"Sat, 01 Jan 0000 00:00:00 GMT"],
        &[b"Thu, 01 Jan 1970 00:00:00 GMT"],
        &[b"Sunday, 06-Nov-94 08:49:37 GMT"],
        &[b"Mon, 32 Jan 2026 25:61:61 GMT"],
        &[b"9999-12-31T23:59:59Z"],
        &[b"0000-01-01T00:00:00Z"],
        &[b"99999-01-01T00:00:00Z"],
        &[b"", b""],
        &[b"-1", b"NaN"],
    ];
    for lines in none {
        let (count, response, took) = refused(lines).await;
        assert_eq!((count, response.history().asked_wait()), (4, None), "{lines:?}");
        assert!(took < seconds(1), "{lines:?}: {took:?}");
    }
}

/// Each is waited in full before each of the three retries, and not much longer.
#[tokio::test(start_paused = true)]
async fn waits_in_every_dress() {
    let some: [(&[&[u8]], u64); 7] = [
        (&[b"0.5"], 500),
        (&[b"1s"], 1_000),
        (&[b"1\t"], 1_000),
        (&[b"1, 2, 3"], 3_000),
        (&[b"1", b"2"], 2_000),
        (&[b"0000000000000000000000000000000000007"], 7_000),
        (&[b"x", b"4"], 4_000),
    ];
    for (lines, wait) in some {
        let (count, response, took) = refused(lines).await;
        assert_eq!((count, response.history().asked_wait()), (4, Some(ms(wait))), "{lines:?}");
        assert!((ms(3 * wait)..ms(3 * wait + 500)).contains(&took), "{lines:?}: {took:?}");
    }
}

/// Longer than anybody waits: the call ends at once, and says what was asked.
#[tokio::test(start_paused = true)]
async fn waits_that_nobody_waits() {
    let lines: [&[&[u8]]; 7] = [
        &[b"4294967296"],
        &[b"9223372036854775807"],
        &[b"18446744073709551615"],
        &[b"18446744073709551616"],
        &[b"99999999999999999999999999999999999999.5"],
        &[b"Fri, 31 Dec 9999 23:59:59 GMT"],
        &[&[b'9'; 400]],
    ];
    for lines in lines {
        let (count, response, took) = refused(lines).await;
        assert_eq!((count, response.history().stop(), took), (1, Stop::Deadline, Duration::ZERO), "{lines:?}");
        assert_eq!(response.history().asked_wait(), Some(LONGEST), "{lines:?}");
    }
}

/// What becomes of a key whose server answers a 200 with these headers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// Calls go on.
    Open,
    /// The next call is refused at once: there is no permit within its ten seconds.
    Closed,
}

async fn fate(fields: &[(&'static str, &str)]) -> Fate {
    let reply = || fields.iter().fold(status(200), |reply, (name, value)| reply.header(name, *value));
    let net = Net::new((0..20).map(|_| reply()));
    let (client, start) = (net.client().key_by(KeyBy::with(by_path)).build().unwrap(), Instant::now());
    let call = async |path: &str| client.get(format!("{URL}{path}")).deadline(seconds(10)).send().await;
    let mut ends = Vec::new();
    for _ in 0..4 {
        ends.push(call("a").await);
    }
    assert!(start.elapsed() < seconds(10), "{fields:?}: {:?}", start.elapsed());
    assert!(ends[0].is_ok());
    let closed = ends.iter().filter_map(|end| end.as_ref().err());
    let closed: Vec<&Error> = closed.inspect(|error| assert!(error.refused().unwrap().retry_at().is_some())).collect();
    // Another key has nothing to do with it.
    call("b").await.unwrap();
    if closed.is_empty() { Fate::Open } else { Fate::Closed }
}

fn by_path(request: &Request) -> Key {
    Key::from(request.url().path())
}

#[tokio::test(start_paused = true)]
async fn limits_of_every_size() {
    use Fate::{Closed, Open};
    let policy = "ratelimit-policy";
    let trio = |limit, remaining, reset| {
        [("x-ratelimit-limit", limit), ("x-ratelimit-remaining", remaining), ("x-ratelimit-reset", reset)]
    };
    let rows: [(&[(&str, &str)], Fate); 18] = [
        // Nothing is left, for a minute.
        (&[(policy, "\"p\";q=0;w=60"), ("ratelimit", "\"p\";r=0;t=60")], Closed),
        // One in 31 years.
        (&[(policy, "\"p\";q=1;w=1000000000"), ("ratelimit", "\"p\";r=0;t=1000000000")], Closed),
        (&[(policy, "\"p\";q=1;w=1000000000")], Closed),
        (&[("x-ratelimit-limit", "1;w=1000000000")], Closed),
        (&[("x-ratelimit-limit", "0.0001"), ("x-ratelimit-window", "60")], Closed),
        // No window, no limit.
        (&[(policy, "\"p\";q=1;w=0")], Open),
        (&[(policy, "\"p\";q=0;w=0")], Open),
        (&[(policy, "\"p\";q=1;w=-1")], Open),
        (&[(policy, "\"p\";q=1;w=9999999999999999")], Open),
        // Limits that are none.
        (&[(policy, "\"p\";q=999999999999999;w=1")], Open),
        (&[(policy, "\"p\";q=0;w=60;qu=\"concurrent-requests\"")], Open),
        (&trio("1000000000000000000", "1000000000000000000", "1"), Open),
        (&trio("-5", "-5", "-5"), Open),
        (&trio("NaN", "inf", "1e308"), Open),
        (&trio("1e-300", "1e-300", "1"), Open),
        // An instant of 2001, and one after the sun is gone: nobody knows when there is more.
        (&trio("1", "0", "1000000000"), Open),
        (&trio("1", "0", "99999999999999999999"), Open),
        // Units that the call does not state.
        (&[("x-ratelimit-limit-tokens", "0"), ("x-ratelimit-remaining-tokens", "0")], Open),
    ];
    for (fields, expected) in rows {
        assert_eq!(fate(fields).await, expected, "{fields:?}");
    }
}

fn hint(name: String) -> QuotaHint {
    let mut hint = QuotaHint::default();
    (hint.name, hint.limit, hint.remaining) = (Some(name), Some(1e9), Some(1e9));
    hint.window = Some(seconds(3600));
    hint
}

#[tokio::test(start_paused = true)]
async fn names_that_are_new_in_every_answer() {
    let limiter = Limiter::default();
    let key = Key::from("k");
    for n in 0..5_000 {
        let mut permit = limiter.acquire(&key, 1, None).await.unwrap();
        permit.commit();
        let mut hints = Hints::default();
        for m in 0..3 {
            let mut hint = hint(format!("name {n} {m}"));
            hint.partition = Some(format!("partition {n} {m}"));
            hints.quotas.push(hint);
        }
        permit.observe(&hints);
    }
    let snapshot = limiter.snapshot(&key).unwrap();
    assert!((1..=64).contains(&snapshot.left.len()), "{} quotas", snapshot.left.len());
    assert_eq!((snapshot.in_flight, snapshot.waiting), (0, 0));
    // The same by headers, on routes of their own.
    let net = Net::default();
    let client = net.client().key_by(KeyBy::Client).build().unwrap();
    for n in 0..2_000 {
        let reply = status(200).header("x-ratelimit-bucket", format!("b{n}")).header("x-ratelimit-limit", "1000000");
        net.replace([reply.header("x-ratelimit-remaining", "999999").header("x-ratelimit-reset-after", "3600")]);
        client.get(format!("{URL}route-{n}x")).send().await.unwrap();
    }
    assert_eq!((client.limiter().tracked_keys(), net.count()), (1, 2_000));
}

#[cfg(target_os = "linux")]
#[test]
fn a_key_for_every_request() {
    // 100,000 keys that are all in use, with a learned quota each: some 2.2 KiB.
    crate::support::raw::alone(320, async || {
        let limiter = Limiter::default();
        let mut hints = Hints::default();
        hints.quotas.push(hint(String::new()));
        let (mut granted, mut full) = (0, 0);
        for n in 0..150_000 {
            match limiter.try_acquire(&Key::from(format!("{n}")), 1) {
                Ok(mut permit) => {
                    permit.commit();
                    permit.observe(&hints);
                    granted += 1;
                }
                Err(refused) => {
                    assert!(refused.is_full());
                    full += 1;
                }
            }
        }
        assert_eq!((granted, full, limiter.tracked_keys()), (100_000, 50_000, 100_000));
    });
}

/// Its `Date` goes back and forth by an hour: waits are what it means by them.
#[tokio::test(start_paused = true)]
async fn a_server_clock_that_jumps() {
    let date = |offset: i64| {
        let now = i64::try_from(clock::wall().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap();
        httpdate::fmt_http_date(UNIX_EPOCH + seconds(u64::try_from(now + offset).unwrap()))
    };
    let answer = |offset: i64, wait: i64| -> Reply {
        status(429).header("date", date(offset)).header("retry-after", date(offset + wait))
    };
    let net = Net::new([answer(3_600, 3), answer(-3_600, 3), answer(86_400 * 365, 3), status(200)]);
    let client = net.client().policy(Policy::default().no_budget()).build().unwrap();
    let (response, start) = (client.get(URL).send().await.unwrap(), Instant::now());
    assert_eq!((response.status().as_u16(), net.count()), (200, 4));
    let gaps = net.gaps();
    assert!(gaps.iter().all(|gap| (seconds(2)..seconds(9)).contains(gap)), "{gaps:?}");
    // Counters of an instant that was: they lower nothing for long.
    for offset in [3_600, -3_600, 0, 7_200, -7_200] {
        let reset = (clock::wall().duration_since(UNIX_EPOCH).unwrap().as_secs()).wrapping_add_signed(offset + 2);
        let told = [("x-ratelimit-limit", "10".to_owned()), ("x-ratelimit-remaining", "0".to_owned())];
        let reply = told.into_iter().fold(status(200), |reply, (name, value)| reply.header(name, value));
        net.replace([reply.header("date", date(offset)).header("x-ratelimit-reset", reset.to_string())]);
        let asked = client.get(URL).deadline(seconds(60)).send().await.unwrap();
        assert_eq!(asked.status().as_u16(), 200, "{offset}");
    }
    assert!(start.elapsed() < seconds(60), "{:?}", start.elapsed());
}

#[test]
fn what_is_read_is_finite() {
    // Any hint stays within what sums of times can hold.
    for text in ["1e308", "-1e308", "1e-308", "99999999999999999999999999", "0.000000000000000000001", "-0", "\u{221e}"]
    {
        for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-ratelimit-reset-after"] {
            let mut map = HeaderMap::new();
            map.insert(name, HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("x")));
            map.insert("x-ratelimit-window", HeaderValue::from_static("1e308"));
            let hints = headers::read(StatusCode::TOO_MANY_REQUESTS, &map, None, clock::wall());
            assert!(hints.retry_after.is_none_or(|wait| wait <= LONGEST), "{name}: {text}: {hints:?}");
            for quota in &hints.quotas {
                let numbers = [quota.limit, quota.remaining];
                let times = [quota.reset_after, quota.window];
                assert!(numbers.iter().flatten().all(|number| number.is_finite() && *number >= 0.0), "{hints:?}");
                assert!(times.iter().flatten().all(|time| *time <= LONGEST), "{name}: {text}: {hints:?}");
            }
        }
    }
}
