//! HTTP/1.1 over raw streams, so that every fault happens exactly where the script says.

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};
use tokio_rustls::server::TlsStream;

use super::{
    clock,
    net::WARM_UP,
    record::{Hub, Kind, Peer, Request},
    script::{Entry, Fault},
};

/// A stream whose TCP connection can be reset.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The connection under it.
    fn tcp(&self) -> &TcpStream;

    /// The next close is a RST.
    fn reset_on_close(&self) {
        let _ = self.tcp().set_zero_linger();
    }
}

impl Wire for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Wire for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// Answers the requests of one connection until it is closed.
pub(crate) async fn serve<W: Wire>(mut wire: W, hub: Arc<Hub>, peer: Peer) {
    let mut unread = Vec::new();
    while let Ok(Some((request, arrived))) = read_request(&mut wire, &mut unread).await {
        if request.path == WARM_UP {
            let _ = wire.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            continue;
        }
        let head_only = request.method == "HEAD";
        let Some((number, entry)) = hub.take(Kind::Request, peer, request, arrived) else {
            let _ = wire.write_all(b"HTTP/1.1 501 Beyond The Script\r\ncontent-length: 0\r\n\r\n").await;
            continue;
        };
        let answer = Answer { hub: &hub, number, entry: &entry, head_only };
        if !matches!(answer.send(&mut wire).await, Ok(true)) {
            return;
        }
    }
}

struct Answer<'a> {
    hub: &'a Hub,
    number: usize,
    entry: &'a Entry,
    head_only: bool,
}

impl Answer<'_> {
    /// Says whether the connection goes on.
    async fn send<W: Wire>(&self, wire: &mut W) -> io::Result<bool> {
        clock::sleep(clock::ms(self.entry.delay_ms.unwrap_or(0))).await;
        match self.entry.fault {
            None => self.respond(wire).await,
            Some(Fault::ResetMidBody) => {
                self.head_and_body(wire).await?;
                clock::sleep(clock::ms(20)).await;
                self.hub.end(self.number);
                wire.reset_on_close();
                Ok(false)
            }
            Some(Fault::ResetBeforeResponse) => {
                self.hub.end(self.number);
                wire.reset_on_close();
                Ok(false)
            }
            Some(Fault::CloseBeforeResponse | Fault::CloseKeepalive) => {
                self.hub.end(self.number);
                wire.shutdown().await?;
                until_closed(wire).await;
                Ok(false)
            }
            Some(Fault::Stall) => {
                until_closed(wire).await;
                self.hub.end(self.number);
                Ok(false)
            }
            Some(fault) => {
                self.hub.problem(format!("{fault:?} cannot happen to a request of HTTP/1.1"));
                Ok(false)
            }
        }
    }

    async fn respond<W: Wire>(&self, wire: &mut W) -> io::Result<bool> {
        self.head_and_body(wire).await?;
        if self.entry.stall_body_after.is_some() {
            until_closed(wire).await;
            self.hub.end(self.number);
            return Ok(false);
        }
        let closes = |(name, value): &(String, String)| {
            name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close")
        };
        if self.entry.headers.iter().any(closes) {
            wire.shutdown().await?;
            return Ok(false);
        }
        Ok(true)
    }

    async fn head_and_body<W: Wire>(&self, wire: &mut W) -> io::Result<()> {
        let full = self.entry.full_body();
        let mut out = self.head(full.len()).into_bytes();
        let bodiless = self.head_only || matches!(self.entry.status, Some(204 | 304));
        let sent = if bodiless { 0 } else { self.entry.sent_body(full.len()) };
        let breaks = self.entry.fault.is_some() || self.entry.stall_body_after.is_some();
        let step = self.entry.body_rate_bps.map(|rate| usize::try_from(rate / 20).unwrap_or(usize::MAX).max(1));
        let mut chunks = full[..sent].chunks(step.unwrap_or(16 * 1024)).peekable();
        if step.is_some() && chunks.peek().is_some() {
            wire.write_all(&std::mem::take(&mut out)).await?;
        }
        while let Some(chunk) = chunks.next() {
            if step.is_some() {
                clock::sleep(clock::ms(50)).await;
            }
            out.extend_from_slice(chunk);
            if chunks.peek().is_none() && !breaks {
                self.hub.end(self.number);
            }
            wire.write_all(&std::mem::take(&mut out)).await?;
        }
        if !breaks {
            self.hub.end(self.number);
        }
        wire.write_all(&out).await?;
        wire.flush().await
    }

    fn head(&self, length: usize) -> String {
        let status = self.entry.status.unwrap_or(200);
        let reason = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
        let mut head = format!("HTTP/1.1 {status} {}\r\n", reason.unwrap_or("Unknown"));
        let mut framed = status == 204 || status == 304;
        for (name, value) in &self.entry.headers {
            framed |= name.eq_ignore_ascii_case("content-length") || name.eq_ignore_ascii_case("transfer-encoding");
            match self.hub.values.fill(value) {
                Ok(value) => head.push_str(&format!("{name}: {value}\r\n")),
                Err(problem) => self.hub.problem(problem),
            }
        }
        if !framed {
            head.push_str(&format!("content-length: {length}\r\n"));
        }
        head.push_str("\r\n");
        head
    }
}

/// Reads what still comes until the other side closes.
async fn until_closed(wire: &mut (impl AsyncRead + Unpin)) {
    let mut sink = [0; 4096];
    while wire.read(&mut sink).await.is_ok_and(|read| read > 0) {}
}

/// A whole request and the instant at which its head was there; none when the connection ends first.
async fn read_request(
    wire: &mut (impl AsyncRead + Unpin),
    unread: &mut Vec<u8>,
) -> io::Result<Option<(Request, Instant)>> {
    let (mut request, length) = loop {
        if let Some((request, length)) = parse_head(unread)? {
            break (request, length);
        }
        if wire.read_buf(unread).await? == 0 {
            return Ok(None);
        }
    };
    let arrived = clock::now();
    unread.drain(..length);
    let chunked = request.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
    if chunked {
        request.body = read_chunked(wire, unread).await?;
    } else {
        let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        request.body = take(wire, unread, length).await?;
    }
    Ok(Some((request, arrived)))
}

fn parse_head(bytes: &[u8]) -> io::Result<Option<(Request, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Request::new(&mut headers);
    let status = head.parse(bytes).map_err(io::Error::other)?;
    let httparse::Status::Complete(length) = status else { return Ok(None) };
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let request = Request {
        method: head.method.unwrap_or_default().to_owned(),
        path: head.path.unwrap_or_default().to_owned(),
        headers: head.headers.iter().map(|field| (field.name.to_ascii_lowercase(), text(field.value))).collect(),
        body: Vec::new(),
    };
    Ok(Some((request, length)))
}

/// Exactly `length` bytes.
async fn take(wire: &mut (impl AsyncRead + Unpin), unread: &mut Vec<u8>, length: usize) -> io::Result<Vec<u8>> {
    while unread.len() < length {
        if wire.read_buf(unread).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(unread.drain(..length).collect())
}

async fn read_chunked(wire: &mut (impl AsyncRead + Unpin), unread: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = unread.windows(2).position(|pair| pair == b"\r\n") {
                break end;
            }
            if wire.read_buf(unread).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let line = take(wire, unread, end + 2).await?;
        let size = String::from_utf8_lossy(&line);
        let size = size.trim().split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
        let chunk = take(wire, unread, size + 2).await?;
        body.extend_from_slice(&chunk[..size]);
        if size == 0 {
            return Ok(body);
        }
    }
}
