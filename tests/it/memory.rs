//! A network in memory, for whole calls under paused time.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use abide::{
    BoxError, ClientBuilder,
    http::{HeaderMap, Method},
    reqwest::{Body, Request, Response, Url},
};
use tokio::time::{Instant, sleep};

/// What the network answers.
pub(crate) enum Reply {
    Answer { status: u16, headers: Vec<(&'static str, String)>, body: Body, after: Duration },
    Reset,
    Refuse,
    Stall,
}

/// What the network saw.
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

#[derive(Clone, Default)]
pub(crate) struct Net {
    inner: Arc<Mutex<(VecDeque<Reply>, Vec<Seen>)>>,
}

pub(crate) fn status(status: u16) -> Reply {
    Reply::Answer { status, headers: vec![], body: Body::from(""), after: Duration::ZERO }
}

impl Reply {
    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        if let Self::Answer { headers, .. } = &mut self {
            headers.push((name, value.into()));
        }
        self
    }

    pub(crate) fn body(mut self, new: impl Into<Body>) -> Self {
        if let Self::Answer { body, .. } = &mut self {
            *body = new.into();
        }
        self
    }

    pub(crate) fn after(mut self, wait: Duration) -> Self {
        if let Self::Answer { after, .. } = &mut self {
            *after = wait;
        }
        self
    }
}

impl Net {
    /// Answers in this order; beyond it, 599.
    pub(crate) fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        let net = Self::default();
        net.inner.lock().unwrap().0.extend(replies);
        net
    }

    /// A client on this network, with a budget of its own for each call.
    pub(crate) fn client(&self) -> ClientBuilder {
        let net = self.clone();
        // No certificates: loading them takes longer than all the rest.
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([]);
        abide::Client::builder().http(http).transport(move |request| net.clone().answer(request))
    }

    /// From now on answers these.
    pub(crate) fn replace(&self, replies: impl IntoIterator<Item = Reply>) {
        self.inner.lock().unwrap().0 = replies.into_iter().collect();
    }

    pub(crate) fn count(&self) -> usize {
        self.inner.lock().unwrap().1.len()
    }

    /// One line for each request: method and URL.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.each(|seen| format!("{} {}", seen.method, seen.url))
    }

    pub(crate) fn header(&self, name: &str) -> Vec<Option<String>> {
        self.each(|seen| seen.headers.get(name).map(|value| value.to_str().unwrap().to_owned()))
    }

    pub(crate) fn bodies(&self) -> Vec<String> {
        self.each(|seen| String::from_utf8(seen.body.clone()).unwrap())
    }

    pub(crate) fn gaps(&self) -> Vec<Duration> {
        self.each(|seen| seen.at).windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn each<T>(&self, read: impl Fn(&Seen) -> T) -> Vec<T> {
        self.inner.lock().unwrap().1.iter().map(read).collect()
    }

    pub(crate) async fn answer(self, mut request: Request) -> Result<Response, BoxError> {
        use http_body_util::BodyExt;
        let body = request.body_mut().take();
        let body = match body {
            Some(body) => body.collect().await?.to_bytes().to_vec(),
            None => vec![],
        };
        let reply = {
            let mut inner = self.inner.lock().unwrap();
            inner.1.push(Seen {
                at: Instant::now(),
                method: request.method().clone(),
                url: request.url().clone(),
                headers: request.headers().clone(),
                body,
            });
            inner.0.pop_front().unwrap_or_else(|| status(599))
        };
        match reply {
            Reply::Reset => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
            Reply::Refuse => Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            Reply::Stall => std::future::pending().await,
            Reply::Answer { status, headers, body, after } => {
                sleep(after).await;
                let response = http::Response::builder().status(status);
                let response =
                    headers.into_iter().fold(response, |response, (name, value)| response.header(name, value));
                Ok(Response::from(response.body(body)?))
            }
        }
    }
}
