//! HTTP/2 by the h2 crate, with the frames that it would not send written past it.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use h2::{Reason, RecvStream, server::SendResponse};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, WriteHalf},
    sync::Notify,
    task::JoinSet,
};

use super::{
    clock,
    http1::Wire,
    net::WARM_UP,
    record::{Hub, Kind, Peer, Request},
    script::{Entry, Fault},
};

/// Answers the requests of one connection until it is closed.
pub(crate) async fn serve<W: Wire>(wire: W, hub: Arc<Hub>, peer: Peer) {
    let (reads, writes) = tokio::io::split(wire);
    let writes = Writes(Arc::new(Mutex::new(writes)));
    let Ok(mut session) = h2::server::handshake(tokio::io::join(reads, writes.clone())).await else { return };
    let gone = Arc::new(Notify::new());
    let mut streams = JoinSet::new();
    loop {
        let next = tokio::select! {
            next = session.accept() => next,
            () = gone.notified() => break,
        };
        let Some(Ok((request, answer))) = next else { return };
        let stream = Stream { hub: Arc::clone(&hub), peer, writes: writes.clone(), gone: Arc::clone(&gone) };
        streams.spawn(async move {
            if let Err(error) = stream.serve(request, answer).await {
                tracing::debug!(%error, "a stream broke");
            }
        });
    }
    // After GOAWAY: a FIN, then whatever the client still sends is read, so that no RST overtakes the frame.
    let _ = writes.clone().shutdown().await;
    let _ = tokio::time::timeout(clock::ms(1000), async { while session.accept().await.is_some() {} }).await;
}

struct Stream<W> {
    hub: Arc<Hub>,
    peer: Peer,
    writes: Writes<W>,
    gone: Arc<Notify>,
}

impl<W: Wire> Stream<W> {
    async fn serve(
        self,
        request: http::Request<RecvStream>,
        mut answer: SendResponse<Bytes>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let arrived = clock::now();
        let (head, mut body) = request.into_parts();
        if head.uri.path() == WARM_UP {
            answer.send_response(http::Response::new(()), true)?;
            return Ok(());
        }
        let head_only = head.method == http::Method::HEAD;
        let Some((number, entry)) = self.hub.take(Kind::Request, self.peer, seen_head(&head), arrived) else {
            answer.send_response(http::Response::builder().status(501).body(())?, true)?;
            return Ok(());
        };
        if entry.fault == Some(Fault::H2RefusedStream) && !entry.after_body {
            self.hub.end(number);
            answer.send_reset(Reason::REFUSED_STREAM);
            return Ok(());
        }
        self.hub.body(number, read_body(&mut body).await?);
        clock::sleep(clock::ms(entry.delay_ms.unwrap_or(0))).await;
        self.answer(number, &entry, answer, head_only).await
    }

    async fn answer(
        &self,
        number: usize,
        entry: &Entry,
        mut answer: SendResponse<Bytes>,
        head_only: bool,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let id = answer.stream_id().as_u32();
        match entry.fault {
            None | Some(Fault::ResetMidBody) => self.respond(number, entry, answer, head_only).await?,
            Some(Fault::H2RefusedStream) => {
                self.hub.end(number);
                answer.send_reset(Reason::REFUSED_STREAM);
            }
            Some(Fault::H2GoawayUnprocessed) => {
                self.go_away(number, id.saturating_sub(2), Reason::NO_ERROR).await?;
                hold(&mut answer).await;
            }
            Some(Fault::H2GoawayCalm) => {
                self.go_away(number, id, Reason::ENHANCE_YOUR_CALM).await?;
                hold(&mut answer).await;
            }
            Some(Fault::ResetBeforeResponse) => {
                self.hub.end(number);
                answer.send_reset(Reason::INTERNAL_ERROR);
            }
            Some(Fault::CloseBeforeResponse | Fault::CloseKeepalive) => {
                self.hub.end(number);
                self.gone.notify_one();
                hold(&mut answer).await;
            }
            Some(Fault::Stall) => {
                hold(&mut answer).await;
                self.hub.end(number);
            }
            Some(fault) => self.hub.problem(format!("{fault:?} cannot happen to a request of HTTP/2")),
        }
        Ok(())
    }

    async fn respond(
        &self,
        number: usize,
        entry: &Entry,
        mut answer: SendResponse<Bytes>,
        head_only: bool,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let mut head = http::Response::builder().status(entry.status.unwrap_or(200));
        for (name, value) in &entry.headers {
            head = head.header(name, self.hub.values.fill(value)?);
        }
        let full = entry.full_body();
        let sent = entry.sent_body(full.len());
        let whole = sent == full.len() && entry.fault.is_none() && entry.stall_body_after.is_none();
        if whole {
            self.hub.end(number);
        }
        let head_only = head_only || full.is_empty();
        let mut body = answer.send_response(head.body(())?, head_only)?;
        if head_only {
            return Ok(());
        }
        body.send_data(Bytes::from(full).slice(..sent), whole)?;
        if entry.fault.is_some() {
            clock::sleep(clock::ms(20)).await;
            self.hub.end(number);
            body.send_reset(Reason::INTERNAL_ERROR);
        } else if !whole {
            let _ = std::future::poll_fn(|cx| body.poll_reset(cx)).await;
            self.hub.end(number);
        }
        Ok(())
    }

    /// A GOAWAY that covers the streams up to `last`, then a FIN.
    async fn go_away(&self, number: usize, last: u32, reason: Reason) -> io::Result<()> {
        let mut frame = vec![0, 0, 8, 7, 0, 0, 0, 0, 0];
        frame.extend(last.to_be_bytes());
        frame.extend(u32::from(reason).to_be_bytes());
        self.hub.end(number);
        self.writes.clone().write_all(&frame).await?;
        self.gone.notify_one();
        Ok(())
    }
}

/// Keeps a stream open until the client or the connection ends it: dropped, it would be reset.
async fn hold(answer: &mut SendResponse<Bytes>) {
    let _ = std::future::poll_fn(|cx| answer.poll_reset(cx)).await;
}

fn seen_head(head: &http::request::Parts) -> Request {
    let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    Request {
        method: head.method.to_string(),
        path: head.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
        headers: head.headers.iter().map(field).collect(),
        body: Vec::new(),
    }
}

async fn read_body(body: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut whole = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        whole.extend_from_slice(&data);
    }
    Ok(whole)
}

/// The writing half, shared by the h2 session and whoever writes a frame past it.
struct Writes<W>(Arc<Mutex<WriteHalf<W>>>);

impl<W> Clone for Writes<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Writes<W> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock().unwrap()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock().unwrap()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock().unwrap()).poll_shutdown(cx)
    }
}
