//! The scripted test network: two origins on real sockets that answer by the script and record what they saw.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};
use tokio_rustls::TlsAcceptor;

use super::{
    clock, http1, http2,
    record::{Hub, Kind, Peer, Request, Scripts, Seen},
    script::{Entry, Fault, Values, unrolled},
    tls::Pki,
};

/// A path that is answered with a plain 200 and not recorded.
pub(crate) const WARM_UP: &str = "/warm-up";

/// A network that runs until it is dropped.
pub(crate) struct Network {
    hub: Arc<Hub>,
    url: String,
    http2: bool,
    tasks: Vec<AbortHandle>,
}

/// How a network is set up besides its scripts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setup {
    /// The client speaks HTTP/2 from the first byte on.
    pub(crate) http2: bool,
    /// Server clock minus local clock.
    pub(crate) skew_ms: i64,
}

impl Network {
    /// One that answers in order.
    pub(crate) async fn with(entries: &[Entry]) -> Self {
        let queue = VecDeque::from(unrolled(entries));
        let http2 = entries.iter().any(|entry| entry.fault.is_some_and(Fault::is_h2));
        Self::start(Scripts::InOrder(queue), entries, Setup { http2, skew_ms: 0 }).await
    }

    /// Starts one; `entries` are all that are in `scripts`.
    pub(crate) async fn start(scripts: Scripts, entries: &[Entry], setup: Setup) -> Self {
        let has = |wanted: &dyn Fn(Fault) -> bool| entries.iter().any(|entry| entry.fault.is_some_and(wanted));
        let tls = has(&Fault::is_tls);
        let scheme = if tls { "https" } else { "http" };
        let a = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let b = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = |listener: &TcpListener| format!("{scheme}://{}", listener.local_addr().unwrap());
        let values = Values { skew_ms: setup.skew_ms, origin_a: origin(&a), origin_b: origin(&b) };
        let port = a.local_addr().unwrap().port();
        let url = if has(&|fault| fault == Fault::BadScheme) {
            format!("ftp://127.0.0.1:{port}/")
        } else if has(&|fault| fault == Fault::DnsNxdomain) {
            format!("{scheme}://api.example.test:{port}/")
        } else {
            format!("{}/", values.origin_a)
        };
        let hub = Arc::new(Hub::new(scripts, values));
        let mut tasks = Vec::new();
        for (listener, host) in [(a, "a"), (b, "b")] {
            let host = Host { hub: Arc::clone(&hub), host, tls, http2: setup.http2 };
            tasks.push(tokio::spawn(host.listen(listener)).abort_handle());
        }
        Self { hub, url, http2: setup.http2, tasks }
    }

    /// Where the first request goes.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A URL on a host by its letter.
    pub(crate) fn url_on(&self, host: &str) -> String {
        if host == "b" { format!("{}/", self.hub.values.origin_b) } else { self.url.clone() }
    }

    /// Where warming up goes.
    pub(crate) fn warm_up_url(&self) -> String {
        format!("{}{WARM_UP}", self.hub.values.origin_a)
    }

    /// A client that trusts this network and resolves names in it.
    pub(crate) fn http(&self) -> reqwest::ClientBuilder {
        let builder = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([Pki::get().authority()])
            .dns_resolver(Names(Arc::clone(&self.hub)));
        if self.http2 { builder.http2_prior_knowledge() } else { builder }
    }

    /// All attempts so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.hub.seen()
    }

    /// What no script foresaw.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.hub.problems()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

#[derive(Clone)]
struct Host {
    hub: Arc<Hub>,
    host: &'static str,
    tls: bool,
    http2: bool,
}

impl Host {
    async fn listen(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        while let Ok((tcp, _)) = listener.accept().await {
            let _ = tcp.set_nodelay(true);
            connections.spawn(self.clone().connection(tcp));
        }
    }

    async fn connection(self, tcp: TcpStream) {
        let peer = Peer { host: self.host, connection: self.hub.connection() };
        if !self.tls {
            return self.serve(tcp, peer).await;
        }
        let arrived = clock::now();
        let mut fault = None;
        if self.hub.next_is(|entry| entry.fault.is_some_and(Fault::is_tls)) {
            let handshake = Request { method: "CONNECT".into(), ..Request::default() };
            let taken = self.hub.take(Kind::Handshake, peer, handshake, arrived);
            let Some((number, entry)) = taken else { return };
            self.hub.end(number);
            fault = entry.fault;
        }
        if fault == Some(Fault::ResetInTlsHandshake) {
            let mut tcp = tcp;
            let _ = tcp.read(&mut [0; 4096]).await;
            let _ = tcp.set_zero_linger();
            return;
        }
        let accepted = TlsAcceptor::from(Pki::get().config(fault)).accept(tcp).await;
        match (accepted, fault) {
            (Ok(stream), None) => self.serve(stream, peer).await,
            // In TLS 1.3 the server is done before the client has refused; nothing but its alert comes.
            (Ok(mut stream), Some(fault)) => {
                if stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {
                    self.hub.problem(format!("a request came in spite of {fault:?}"));
                }
            }
            (Err(_), _) => {}
        }
    }

    async fn serve(self, wire: impl http1::Wire, peer: Peer) {
        if self.http2 {
            http2::serve(wire, self.hub, peer).await;
        } else {
            http1::serve(wire, self.hub, peer).await;
        }
    }
}

/// Names of the network: all are this machine, unless the script says that there is no such name.
struct Names(Arc<Hub>);

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let arrived = clock::now();
        let answer: Result<Addrs, Box<dyn std::error::Error + Send + Sync>> = if self
            .0
            .next_is(|entry| entry.fault == Some(Fault::DnsNxdomain))
        {
            let look_up = Request { path: name.as_str().to_owned(), ..Request::default() };
            if let Some((number, _)) = self.0.take(Kind::LookUp, Peer { host: "a", connection: 0 }, look_up, arrived) {
                self.0.end(number);
            }
            // What the system's resolver says through std.
            Err(std::io::Error::other("failed to lookup address information: Name or service not known").into())
        } else {
            Ok(Box::new(std::iter::once(SocketAddr::from(([127, 0, 0, 1], 0)))))
        };
        Box::pin(std::future::ready(answer))
    }
}
