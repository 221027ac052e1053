//! The server: its life and its connections.

use std::{
    io,
    ops::Range,
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use hyper::{rt::Executor, service::service_fn};
use hyper_util::{rt::TokioIo, server::conn::auto};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
    time::Instant,
};

use super::{
    builder::{ServerBuilder, invalid},
    charge::Charges,
    faults::{Faults, Switch, Wire},
    gate::lock,
    shared::{Recorded, Shared},
    stats::{Counters, Stats},
    visit,
};
use crate::{clock, limit::Quota};

/// A practice server, listening on a port of the loopback address until it is dropped.
///
/// Every path is the limited resource, except two: `POST /charge`, which counts executions per idempotency key, and
/// `GET /stats`, the numbers as JSON, never limited and never faulted. HTTP/1.1 and HTTP/2 (prior knowledge).
///
/// It runs in real time, as tasks of the runtime that started it: not under tokio's paused clock.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use abide::{Quota, testing::{Algorithm, Dialect, Server}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::builder()
///     .limit(Quota::window(2, Duration::from_secs(60)))
///     .algorithm(Algorithm::SlidingLog)
///     .dialect(Dialect::XRateLimit)
///     .start()
///     .await?;
/// for _ in 0..3 {
///     abide::reqwest::get(server.url()).await?;
/// }
/// assert_eq!((server.stats().accepted, server.stats().refused), (2, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    url: String,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// A server without limits until [`ServerBuilder::limit`] sets one.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    pub(super) fn listen(listener: TcpListener, shared: Arc<Shared>) -> io::Result<Self> {
        let url = format!("http://{}", listener.local_addr()?);
        tracing::debug!(url, seed = shared.seed, "practice server started");
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { url, shared, accepting })
    }

    /// `http://127.0.0.1:PORT`, without a slash at its end.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The numbers so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// When requests arrived, in order: the last 65,536.
    #[must_use]
    pub fn arrivals(&self) -> Vec<Instant> {
        lock(&self.shared.log).arrivals.to_vec()
    }

    /// The requests as they came: the last 10,000 of a server with a script or with [`ServerBuilder::record`].
    #[must_use]
    pub fn recorded(&self) -> Vec<Recorded> {
        lock(&self.shared.log).recorded.iter().cloned().collect()
    }

    /// How often `/charge` executed.
    #[must_use]
    pub fn charges(&self) -> Charges {
        self.shared.ledger.charges()
    }

    /// The seed of latency and faults.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// The server's clock, its skew included.
    #[must_use]
    pub fn wall(&self) -> SystemTime {
        self.shared.wall()
    }

    /// From now on the first limit in the quota's unit is `quota`, for every key; what was used stays used. If there is
    /// no such limit, it is added. What [`ServerBuilder::advertise`] said goes on being said.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the quota makes no sense; nothing changes.
    pub fn set_limit(&self, quota: Quota) -> io::Result<()> {
        quota.check().map_err(invalid)?;
        lock(&self.shared.gate).set_limit(quota, self.shared.nanos());
        Ok(())
    }

    /// From now on answers take this long, uniformly drawn; a range that runs backward is its start.
    pub fn set_latency(&self, latency: Range<Duration>) {
        lock(&self.shared.dice).latency = latency;
    }

    /// From now on these faults strike.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the rate is outside 0..=1; nothing changes.
    pub fn set_faults(&self, faults: Faults) -> io::Result<()> {
        faults.check().map_err(invalid)?;
        lock(&self.shared.dice).faults = faults;
        Ok(())
    }

    /// Stops listening and closes every connection; returns when all its tasks have ended.
    pub async fn shutdown(mut self) {
        self.accepting.abort();
        // A task that was aborted ends with an error that says so.
        let _ = (&mut self.accepting).await;
    }
}

/// Stops listening and closes every connection.
impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Accepts until it is aborted; its connections end with it.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors: some connection has to end first.
            clock::sleep_until(clock::now() + Duration::from_millis(10)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        Counters::count(&shared.counters.connections);
        connections.spawn(serve(stream, Arc::clone(&shared)));
    }
}

/// One connection, until it ends or a fault cuts it.
async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // Without it answers wait for acknowledgements; a socket that refuses is merely slower.
    let _ = stream.set_nodelay(true);
    let switch = Arc::new(Switch::default());
    let io = TokioIo::new(Wire::new(stream, Arc::clone(&switch)));
    let on_request = {
        let switch = Arc::clone(&switch);
        service_fn(move |request| visit::answer(Arc::clone(&shared), Arc::clone(&switch), request))
    };
    let mut builder = auto::Builder::new(Streams::default());
    // The server's clock is not the machine's.
    builder.http1().auto_date_header(false);
    builder.http2().auto_date_header(false);
    let connection = pin!(builder.serve_connection(io, on_request));
    switch.watch(connection).await;
}

/// The tasks of a connection's HTTP/2 streams: they end with it.
#[derive(Clone, Debug, Default)]
struct Streams(Arc<Mutex<JoinSet<()>>>);

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let mut streams = lock(&self.0);
        while streams.try_join_next().is_some() {}
        streams.spawn(stream);
    }
}
