//! What goes wrong, how often, and the wires that make it go wrong for real.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use rand::{Rng, RngExt};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Notify,
    time::Sleep,
};

use super::stats::InFlight;
use crate::clock;

/// What can happen to a request instead of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// A 500.
    InternalError,
    /// A 503 that names no wait.
    Unavailable,
    /// The connection is reset (TCP RST) before a byte of the answer.
    Reset,
    /// The connection is closed (FIN) before a byte of the answer.
    Close,
    /// The head and half of the body, then a reset.
    ResetBody,
    /// Nothing ever comes.
    Stall,
    /// The head and half of the body, then the connection is closed.
    Truncate,
}

impl Fault {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::InternalError,
        Self::Unavailable,
        Self::Reset,
        Self::Close,
        Self::ResetBody,
        Self::Stall,
        Self::Truncate,
    ];

    /// It sends a 200 and part of its body.
    pub(super) fn has_head(self) -> bool {
        matches!(self, Self::ResetBody | Self::Truncate)
    }
}

/// How often requests meet a fault, and which.
///
/// A fault strikes what the limits have accepted, so every struck request has used its quota. On `/charge` it strikes
/// before the execution or after it, as the dice fall (those that break a body after it, since they send a 200): the
/// answer is lost either way.
///
/// # Examples
///
/// ```
/// use abide::testing::{Fault, Faults};
///
/// let faults = Faults::rate(0.05).kinds([Fault::Reset, Fault::Unavailable]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    pub(super) rate: f64,
    pub(super) kinds: Vec<Fault>,
}

impl Faults {
    /// A share of the accepted requests, 0 to 1 (anything else is an error of `start()`); 0: none. Every kind is as
    /// likely.
    #[must_use]
    pub fn rate(share: f64) -> Self {
        Self { rate: share, kinds: Fault::ALL.to_vec() }
    }

    /// Only these kinds, each as likely; naming one twice makes it twice as likely. Default: all. None: no faults.
    #[must_use]
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = Fault>) -> Self {
        self.kinds = kinds.into_iter().collect();
        self
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        if (0.0..=1.0).contains(&self.rate) { Ok(()) } else { Err("faults: the rate must be in 0..=1") }
    }

    /// Rolls the dice for one request.
    pub(super) fn roll(&self, rng: &mut impl Rng) -> Option<Fault> {
        if self.kinds.is_empty() || self.rate <= 0.0 || !rng.random_bool(self.rate) {
            return None;
        }
        Some(self.kinds[rng.random_range(0..self.kinds.len())])
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::rate(0.0)
    }
}

/// How a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// TCP RST.
    Reset,
    /// FIN.
    Close,
}

/// Cuts one connection from within a request.
#[derive(Debug, Default)]
pub(super) struct Switch {
    state: AtomicU8,
    pulled: Notify,
}

const RESET: u8 = 1;

impl Switch {
    pub(super) fn pull(&self, cut: Cut) {
        if cut == Cut::Reset {
            self.state.store(RESET, Ordering::Release);
        }
        self.pulled.notify_one();
    }

    /// Drives a connection until it ends or is cut; dropping it then closes the wire.
    pub(super) async fn watch(&self, connection: impl Future) {
        let mut connection = pin!(connection);
        let mut pulled = pin!(self.pulled.notified());
        poll_fn(|cx| match (connection.as_mut().poll(cx), pulled.as_mut().poll(cx)) {
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
    }
}

/// A connection that ends as its switch says.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    switch: Arc<Switch>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, switch: Arc<Switch>) -> Self {
        Self { stream, switch }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.switch.state.load(Ordering::Acquire) == RESET {
            // A socket that lost this race is closed already.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The body of an answer: at once, or in pieces with a bad end. Holds the request's place in flight until it is gone.
#[derive(Debug)]
pub(super) struct Body {
    plan: Plan,
    _in_flight: Option<InFlight>,
}

#[derive(Debug)]
enum Plan {
    Whole(Option<Bytes>),
    Pieces(Box<Pieces>),
}

/// A body that comes piece by piece.
#[derive(Debug)]
pub(super) struct Pieces {
    rest: Bytes,
    piece: usize,
    /// Between two pieces, and before the end.
    gap: Duration,
    end: End,
    timer: Option<Pin<Box<Sleep>>>,
}

/// What comes after the last piece.
#[derive(Debug)]
pub(super) enum End {
    Done,
    Stall,
    Cut(Arc<Switch>, Cut),
}

/// Long enough that what was written has left the process before the wire is cut.
const FLUSH: Duration = Duration::from_millis(5);

impl Pieces {
    pub(super) fn new(rest: Bytes, end: End) -> Self {
        Self { piece: rest.len().max(1), rest, gap: FLUSH, end, timer: None }
    }

    /// So many bytes a second, in pieces of at least a byte and at most 50 ms.
    pub(super) fn pace(&mut self, rate: u32) {
        let piece = (rate / 20).max(1);
        self.piece = usize::try_from(piece).unwrap_or(usize::MAX);
        self.gap = Duration::from_secs(1) * piece / rate;
    }

    /// It ends as it should.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.end, End::Done)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(timer) = &mut self.timer {
            ready!(timer.as_mut().poll(cx));
            self.timer = None;
        }
        if !self.rest.is_empty() {
            let piece = self.rest.split_to(self.piece.min(self.rest.len()));
            self.timer = Some(Box::pin(clock::sleep_until(clock::now() + self.gap)));
            return Poll::Ready(Some(piece));
        }
        match &self.end {
            End::Done => return Poll::Ready(None),
            End::Stall => {}
            End::Cut(switch, cut) => switch.pull(*cut),
        }
        Poll::Pending
    }
}

impl Body {
    pub(super) fn whole(data: Bytes, in_flight: Option<InFlight>) -> Self {
        Self { plan: Plan::Whole(Some(data).filter(|data| !data.is_empty())), _in_flight: in_flight }
    }

    pub(super) fn pieces(pieces: Pieces, in_flight: Option<InFlight>) -> Self {
        Self { plan: Plan::Pieces(Box::new(pieces)), _in_flight: in_flight }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let data = match &mut self.get_mut().plan {
            Plan::Whole(data) => data.take(),
            Plan::Pieces(pieces) => ready!(pieces.poll(cx)),
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.plan, Plan::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.plan {
            Plan::Whole(data) => SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64)),
            Plan::Pieces(_) => SizeHint::default(),
        }
    }
}
