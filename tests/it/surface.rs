//! The public names, used as documented: this file compiles as long as they stand.

use std::time::{Duration, SystemTime};

use abide::{
    Answer, Attempt, Backoff, Classify, Client, Error, Event, History, Jitter, Key, KeyBy, KeyFormat, KeyScheme,
    Limiter, NonIdempotent, Observer, Permit, Policy, Quota, Refused, RequestBuilder, ResponseExt, RetryBudget,
    SentState, Snapshot, Stop, Unit, Verdict,
    headers::{Hints, QuotaHint, QuotaScope},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    reqwest::{Method, Request, Response},
};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Never;

impl Classify for Never {
    fn classify(&self, answer: &Answer<'_>) -> Option<Verdict> {
        (answer.attempt() > 9).then_some(Verdict::Stop)
    }
}

#[derive(Debug)]
struct Deaf;

impl Observer for Deaf {
    fn on_event(&self, _: &Event) {}
}

fn policy() -> Policy {
    Policy::default()
        .max_attempts(3)
        .backoff(Backoff::full_jitter(SECOND, SECOND * 2))
        .throttle_backoff(Backoff::equal_jitter(SECOND, SECOND * 2))
        .deadline(SECOND * 30)
        .no_deadline()
        .attempt_timeout(SECOND)
        .max_server_wait(SECOND)
        .retry_statuses([500, 503])
        .retry_non_idempotent(NonIdempotent::WhenUnsent)
        .rate_limit_403(true)
        .poll_202(true)
        .classify(Never)
        .classify_body(1024, |_: StatusCode, _: &HeaderMap, _: &[u8]| None)
        .budget(RetryBudget::ratio(0.2).per(SECOND * 10).floor(10))
        .no_budget()
}

fn client(limiter: Limiter) -> Result<Client, Error> {
    Client::builder()
        .http(reqwest::Client::builder())
        .default_headers(HeaderMap::new())
        .user_agent("tests")
        .policy(policy())
        .key_by(KeyBy::OriginAndCredential)
        .key_by(KeyBy::with(|_: &Request| Key::from("one")))
        .key_scheme(
            KeyScheme::new(HeaderName::from_static("x-key"))
                .format(KeyFormat::Quoted)
                .lifetime(SECOND)
                .retry_conflict(true),
        )
        .limiter(limiter)
        .redirects(3)
        .sensitive_headers([HeaderName::from_static("x-secret")])
        .headers_with(|_: u32| async { Ok(HeaderMap::new()) })
        .observer(Deaf)
        .build()
}

fn request(client: &Client) -> RequestBuilder {
    client
        .request(Method::POST, "http://127.0.0.1:9/")
        .header("a", "b")
        .idempotency_key("key")
        .idempotent()
        .cost(2)
        .units(Unit::Tokens, 100)
        .key("tenant")
        .deadline(SECOND)
        .policy(policy())
        .buffered(1024)
        .body_with(|| "body".into())
        .on_attempt(|request: &mut Request, _: u32| {
            request.headers_mut().insert("x-attempt", HeaderValue::from_static("1"));
        })
        .headers_with(|_: u32| async { Ok(HeaderMap::new()) })
}

#[tokio::test(start_paused = true)]
async fn the_documented_names_stand() {
    let quotas = [
        Quota::window(10, SECOND).burst(2),
        Quota::bucket(10, SECOND).burst(20).unit(Unit::Other("images".into())),
        "600/m".parse().unwrap(),
    ];
    let builder = quotas.into_iter().fold(Limiter::builder(), |builder, quota| builder.quota(quota));
    let limiter: Limiter =
        builder.max_in_flight(4).max_keys(10).max_waiting(10).headroom(0.1).learn(true).build().unwrap();
    let (key, soon) = (Key::from("k"), Instant::now() + SECOND);
    let permit: Result<Permit, Refused> = limiter.acquire(&key, 1, Some(soon)).await;
    let mut permit = permit.unwrap();
    permit.commit();
    permit.settle(1);
    permit.settle_units(Unit::Bytes, 3);
    permit.observe(&Hints::default());
    drop(permit);
    drop(limiter.acquire_units(&key, &[(Unit::Requests, 1)], None).await.unwrap());
    limiter.observe(&key, &Hints::default());
    limiter.pause(&key, soon);
    let refused = limiter.try_acquire(&key, 1).unwrap_err();
    assert_eq!(refused.retry_at(), Some(soon));
    assert!(!refused.is_never() && !refused.is_full() && !refused.is_deadline());
    let snapshot: Option<Snapshot> = limiter.snapshot(&key);
    assert!(snapshot.is_some() && limiter.tracked_keys() == 1);

    let client = client(limiter).unwrap();
    let error: Error = request(&client).send().await.unwrap_err();
    let history: &History = error.history();
    let attempt: Option<&Attempt> = history.attempts().first();
    assert!(attempt.is_none_or(|attempt| attempt.number() == 1 && attempt.sent() != SentState::Sent));
    assert!(matches!(history.stop(), Stop::NotRetryable | Stop::MaxAttempts | Stop::Deadline | Stop::Refused));
    assert!(error.source_is_plain());
    let _: &Limiter = client.limiter();
    let _ = (KeyBy::Origin, KeyBy::Client, KeyFormat::Raw, Jitter::Full, NonIdempotent::Never);
    let _ = (client.get("http://a/"), client.put("http://a/"), client.patch("http://a/"), client.delete("http://a/"));
    let _ = (client.head("http://a/").auto_idempotency_key(), Client::from(reqwest::Client::new()));
}

/// What an error tells beside its history.
trait Plain {
    fn source_is_plain(&self) -> bool;
}

impl Plain for Error {
    fn source_is_plain(&self) -> bool {
        let told = (self.is_timeout(), self.is_connect(), self.is_body(), self.is_deadline(), self.is_throttled());
        let _ = (told, self.is_builder(), self.status(), self.url(), self.retry_after());
        !format!("{self} {self:?}").contains("secret")
    }
}

#[test]
fn hints_are_plain_values() {
    let mut headers = HeaderMap::new();
    headers.insert("x-ratelimit-limit", HeaderValue::from_static("10"));
    let hints = abide::headers::read(StatusCode::OK, &headers, None, SystemTime::UNIX_EPOCH);
    let QuotaHint { name, limit, remaining, reset_after, window, unit, partition, scope, .. } = &hints.quotas[0];
    assert_eq!((name, *limit, *remaining, *reset_after), (&None, Some(10.0), None, None));
    assert_eq!((*window, unit, partition, *scope), (None, &Unit::Requests, &None, QuotaScope::Key));
    assert_eq!((hints.retry_after, hints.should_retry, hints.refused), (None, None, false));
    let response = Response::from(http::Response::new(""));
    assert_eq!(response.history().stop(), Stop::NotSent);
}

#[test]
fn shared_types_cross_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Client>();
    check::<Limiter>();
    check::<Permit>();
    check::<Error>();
    check::<Policy>();
    check::<abide::testing::Server>();
    fn send<T: Send>(_: T) {}
    send(Client::new().get("http://a/").send());
    send(Limiter::default().acquire(&Key::from("k"), 1, None));
    let _ = abide::tower::AbideLayer::new(Limiter::default(), Policy::default());
    let _ = abide::middleware::Abide::new(Limiter::default(), Policy::default());
}

/// Names of the setters of a builder, in a file of the crate.
fn setters(file: &str, of: &str) -> Vec<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let (_, after) = text.split_once(&format!("\nimpl {of} {{\n")).unwrap();
    let (body, _) = after.split_once("\n}\n").unwrap();
    let lines = body.lines().map(str::trim_start);
    let heads = lines.filter_map(|line| line.strip_prefix("pub fn ").unwrap_or(line).split_once(['(', '<']));
    heads.map(|(name, _)| name.to_owned()).filter(|name| name.chars().all(|c| c.is_lowercase() || c == '_')).collect()
}

/// Beside what replaces the network or chance in tests.
#[test]
fn a_blocking_client_has_every_setting() {
    let (all, blocking) = (setters("builder.rs", "ClientBuilder"), setters("blocking.rs", "ClientBuilder"));
    assert!(all.len() > 10 && all.contains(&"fleet".to_owned()), "{all:?}");
    let lacking: Vec<_> = all.iter().filter(|name| !blocking.contains(name)).collect();
    assert_eq!(lacking, ["transport", "seed"]);
}
