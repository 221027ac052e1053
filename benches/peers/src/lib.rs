//! What a user would pick instead, each around the same reqwest and with room for three retries, and a server for them
//! in another process.

use std::{
    future::Future,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    num::NonZeroU32,
    pin::Pin,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use backon::Retryable;
use governor::DefaultKeyedRateLimiter;
use reqwest::{Request, Response};
use reqwest_middleware::ClientWithMiddleware;
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use tower::{
    BoxError, Service, ServiceBuilder, ServiceExt,
    buffer::Buffer,
    retry::{
        Retry,
        budget::{Budget, TpsBudget},
    },
};

const ATTEMPTS: usize = 4;
const LIMIT: NonZeroU32 = NonZeroU32::MAX;

/// One of the clients to compare.
#[derive(Clone)]
pub enum Peer {
    /// reqwest, bare or with its own retries.
    Reqwest(reqwest::Client),
    /// reqwest-middleware with reqwest-retry.
    Middleware(ClientWithMiddleware),
    /// The same behind governor's limiter, by host.
    Governor(ClientWithMiddleware, Arc<DefaultKeyedRateLimiter<String>>),
    /// tower's retries and limit.
    Tower(Retry<Again, Buffer<Request, <reqwest::Client as Service<Request>>::Future>>),
    /// backon around reqwest.
    Backon(reqwest::Client),
    /// abide.
    Abide(abide::Client),
}

/// Their names; the first is what the others are measured against.
pub const PEERS: [&str; 9] = [
    "reqwest",
    "reqwest, again",
    "reqwest, its own retries",
    "reqwest-retry",
    "reqwest-retry + governor",
    "tower retry + limit",
    "backon",
    "abide",
    "abide, max_in_flight",
];

impl Peer {
    /// By name; inside a runtime, as tower's starts a task.
    pub fn of(name: &str) -> Option<Self> {
        let http = || reqwest::Client::builder().retry(reqwest::retry::never());
        let bare = || http().build().expect("it has no TLS to set up");
        let middleware = || {
            let policy = ExponentialBackoff::builder().build_with_max_retries(3);
            let retries = RetryTransientMiddleware::new_with_policy(policy);
            reqwest_middleware::ClientBuilder::new(bare()).with(retries).build()
        };
        let abide = || abide::Client::builder().http(http());
        Some(match name {
            "reqwest" | "reqwest, again" => Self::Reqwest(bare()),
            "reqwest, its own retries" => {
                let retries =
                    reqwest::retry::for_host("127.0.0.1").max_retries_per_request(3).classify_fn(|answer| match answer
                        .status()
                        .is_some_and(|status| status.is_server_error())
                    {
                        true => answer.retryable(),
                        false => answer.success(),
                    });
                Self::Reqwest(reqwest::Client::builder().retry(retries).build().ok()?)
            }
            "reqwest-retry" => Self::Middleware(middleware()),
            "reqwest-retry + governor" => {
                let limiter = governor::RateLimiter::keyed(governor::Quota::per_second(LIMIT));
                Self::Governor(middleware(), Arc::new(limiter))
            }
            "tower retry + limit" => {
                let again = Again { left: ATTEMPTS - 1, budget: Arc::default() };
                let limited = ServiceBuilder::new().rate_limit(LIMIT.get().into(), Duration::from_secs(1));
                let limited = limited.service(bare());
                Self::Tower(ServiceBuilder::new().retry(again).service(Buffer::new(limited, 1024)))
            }
            "backon" => Self::Backon(bare()),
            "abide" => Self::Abide(abide().build().ok()?),
            "abide, one attempt" => Self::Abide(abide().policy(abide::Policy::default().max_attempts(1)).build().ok()?),
            "abide, max_in_flight" => Self::Abide(abide().max_in_flight(1_000).build().ok()?),
            "abide, quota" => Self::Abide(abide().quota(abide::Quota::per_second(u32::MAX)).build().ok()?),
            _ => return None,
        })
    }

    /// A GET, to the end of its body.
    pub async fn get(&mut self, url: &str) {
        let done = match self {
            Self::Reqwest(client) => whole(client.get(url).send().await).await,
            Self::Middleware(client) => whole(client.get(url).send().await).await,
            Self::Governor(client, limiter) => {
                let url: reqwest::Url = url.parse().expect("a URL");
                limiter.until_key_ready(&url.host_str().unwrap_or_default().to_owned()).await;
                whole(client.get(url).send().await).await
            }
            Self::Tower(service) => {
                let request = Request::new(reqwest::Method::GET, url.parse().expect("a URL"));
                let ready = service.ready().await.expect("the server lives");
                whole(ready.call(request).await).await
            }
            Self::Backon(client) => {
                let policy = backon::ExponentialBuilder::default().with_jitter().with_max_times(ATTEMPTS - 1);
                whole((|| async { client.get(url).send().await?.error_for_status() }).retry(policy).await).await
            }
            Self::Abide(client) => whole(client.get(url).send().await).await,
        };
        assert!(done, "the server lives");
    }
}

async fn whole<E>(result: Result<Response, E>) -> bool {
    match result {
        Ok(response) => response.bytes().await.is_ok(),
        Err(_) => false,
    }
}

/// Three retries of what a server failed at, within a budget.
#[derive(Clone)]
pub struct Again {
    left: usize,
    budget: Arc<TpsBudget>,
}

impl tower::retry::Policy<Request, Response, BoxError> for Again {
    type Future = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn retry(&mut self, _: &mut Request, result: &mut Result<Response, BoxError>) -> Option<Self::Future> {
        if result.as_ref().is_ok_and(|response| !response.status().is_server_error()) {
            self.budget.deposit();
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        self.budget.withdraw().then(|| -> Self::Future { Box::pin(tokio::time::sleep(Duration::from_millis(200))) })
    }

    fn clone_request(&mut self, request: &Request) -> Option<Request> {
        request.try_clone()
    }
}

/// A response as APIs send it: twelve headers, and a small body.
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
date: Mon, 21 Sep 2026 14:13:20 GMT\r\n\
content-type: application/json; charset=utf-8\r\n\
content-length: 16\r\n\
connection: keep-alive\r\n\
server: nginx\r\n\
cache-control: private, max-age=60, s-maxage=60\r\n\
vary: Accept, Authorization, Cookie\r\n\
etag: W/\"a3f5c7d9e1\"\r\n\
x-request-id: 8e03978e-40d5-43e8-bc93-6894a57f9324\r\n\
strict-transport-security: max-age=31536000; includeSubdomains; preload\r\n\
x-frame-options: deny\r\n\
x-content-type-options: nosniff\r\n\
\r\n{\"things\": true}";

/// Serves until it is killed; its URL is the first line on stdout.
pub fn serve() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("http://{}/v1/things?page=1", listener.local_addr()?);
    for connection in listener.incoming() {
        let connection = connection?;
        thread::spawn(move || answer(connection));
    }
    Ok(())
}

/// One response for each end of a head.
fn answer(mut connection: TcpStream) {
    let _ = connection.set_nodelay(true);
    let (mut buffer, mut filled) = ([0; 4096], 0);
    while let Ok(read @ 1..) = connection.read(&mut buffer[filled..]) {
        filled += read;
        if buffer[..filled].ends_with(b"\r\n\r\n") {
            filled = 0;
            if connection.write_all(RESPONSE).is_err() {
                return;
            }
        }
    }
}

/// A server in a process of its own: what it does is not counted.
pub struct Server(Child, pub String);

impl Server {
    /// Starts this program with `server` as its argument.
    pub fn start() -> std::io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?).arg("server").stdout(Stdio::piped()).spawn()?;
        let mut url = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut url)?;
        }
        Ok(Self(child, url.trim().to_owned()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
