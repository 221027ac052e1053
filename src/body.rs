//! Bodies of responses: read in part, put together again, and holding a slot until they are done.

use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use reqwest::{Body, Response, ResponseBuilderExt};
use tokio::time::Instant;

use crate::{clock, limit::Permit};

/// A response whose body was read in part. Nothing of it is lost: [`into_response`](Self::into_response).
#[derive(Debug)]
pub(crate) struct Taken {
    head: http::Response<()>,
    body: Stitched,
}

/// How the reading of a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All of it is here.
    Whole,
    /// It is longer than the limit.
    Long,
    /// It takes too long.
    Late,
    /// It broke off.
    Broken,
}

/// Reads at most `limit` bytes of the body, until `until`.
///
/// # Cancel safety
/// Not cancel-safe: the response is lost.
pub(crate) async fn read(response: Response, limit: usize, until: Option<Instant>) -> (Taken, End) {
    let (head, rest) = apart(response);
    let mut taken = Taken { head, body: Stitched::new(rest, None) };
    if declared(&taken.body.rest) > limit as u64 {
        return (taken, End::Long);
    }
    let end = clock::before(until, taken.fill(limit)).await.unwrap_or(End::Late);
    taken.body.flush();
    (taken, end)
}

/// A body of any type, as reqwest's: trailers stay, and it need not be `Sync`.
#[cfg(feature = "tower")]
pub(crate) fn erase<B>(body: B) -> Body
where
    B: http_body::Body<Data: Into<Bytes>, Error: Into<crate::BoxError>> + Send + 'static,
{
    Body::wrap(Erased(std::sync::Mutex::new(Box::pin(body))))
}

/// Locked only by those who have it shared, which reading does not.
#[cfg(feature = "tower")]
struct Erased<B>(std::sync::Mutex<Pin<Box<B>>>);

#[cfg(feature = "tower")]
impl<B: http_body::Body> http_body::Body for Erased<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).as_mut().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).size_hint()
    }
}

/// The response with its body holding the permit until it is read to its end or dropped.
pub(crate) fn hold(response: Response, permit: Permit) -> Response {
    let (head, rest) = apart(response);
    let permit = Some(permit).filter(|_| !rest.is_end_stream());
    Taken { head, body: Stitched::new(rest, permit) }.into_response()
}

impl Taken {
    /// What was read; without a copy when it came in one piece.
    pub(crate) fn bytes(&self) -> Bytes {
        let mut pieces = self.body.read.iter().filter_map(Frame::data_ref);
        match (pieces.next(), pieces.next()) {
            (None, _) => Bytes::new(),
            (Some(only), None) => only.clone(),
            _ => self.body.read.iter().filter_map(Frame::data_ref).flatten().copied().collect(),
        }
    }

    /// The error that it broke off with, once.
    pub(crate) fn take_error(&mut self) -> Option<reqwest::Error> {
        match mem::replace(&mut self.body.rest, Rest::Nothing) {
            Rest::Error(error) => Some(error),
            rest => {
                self.body.rest = rest;
                None
            }
        }
    }

    /// The response as it was: what was read, then the rest.
    pub(crate) fn into_response(self) -> Response {
        Response::from(self.head.map(|()| Body::wrap(self.body)))
    }

    async fn fill(&mut self, limit: usize) -> End {
        let mut length = 0;
        while let Rest::Body(rest) = &mut self.body.rest {
            match rest.frame().await {
                None => self.body.rest = Rest::Nothing,
                Some(Ok(frame)) => length += self.body.keep(frame),
                Some(Err(error)) => {
                    self.body.rest = Rest::Error(error);
                    return End::Broken;
                }
            }
            if length > limit {
                return End::Long;
            }
        }
        End::Whole
    }
}

/// Head and body. The head keeps version, extensions and the URL, which reqwest otherwise drops.
fn apart(response: Response) -> (http::Response<()>, Body) {
    let url = response.url().clone();
    let (parts, body) = http::Response::from(response).into_parts();
    let mut head = http::Response::builder().url(url).body(()).unwrap_or_default();
    *head.status_mut() = parts.status;
    *head.version_mut() = parts.version;
    *head.headers_mut() = parts.headers;
    head.extensions_mut().extend(parts.extensions);
    (head, body)
}

fn declared(rest: &Rest) -> u64 {
    match rest {
        Rest::Body(body) => body.size_hint().lower(),
        _ => 0,
    }
}

/// What was read, then the rest.
#[derive(Debug)]
struct Stitched {
    read: VecDeque<Frame<Bytes>>,
    /// Small pieces, joined; empty but while it is read into.
    drip: BytesMut,
    rest: Rest,
    permit: Option<Permit>,
}

#[derive(Debug)]
enum Rest {
    Body(Body),
    Error(reqwest::Error),
    Nothing,
}

/// A piece below this is joined with the small ones before it, so that a body in single bytes takes little more memory
/// than it has bytes: a piece of its own takes some hundred, and holds the buffer that it came in.
const SMALL: usize = 4 * 1024;

impl Stitched {
    fn new(rest: Body, permit: Option<Permit>) -> Self {
        Self { read: VecDeque::new(), drip: BytesMut::new(), rest: Rest::Body(rest), permit }
    }

    /// Keeps a piece; its length.
    fn keep(&mut self, frame: Frame<Bytes>) -> usize {
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(trailers) => {
                self.flush();
                self.read.push_back(trailers);
                return 0;
            }
        };
        let length = data.len();
        let is_small = |data: &Bytes| data.len() < SMALL;
        if !is_small(&data) {
            self.flush();
            self.read.push_back(Frame::data(data));
        } else if !self.drip.is_empty() {
            self.drip.extend_from_slice(&data);
        } else if self.read.back().and_then(Frame::data_ref).is_some_and(is_small) {
            let last = self.read.pop_back().and_then(|last| last.into_data().ok()).unwrap_or_default();
            self.drip.extend_from_slice(&last);
            self.drip.extend_from_slice(&data);
        } else if length > 0 {
            self.read.push_back(Frame::data(data));
        }
        if self.drip.len() >= 16 * SMALL {
            self.flush();
        }
        length
    }

    fn flush(&mut self) {
        if !self.drip.is_empty() {
            self.read.push_back(Frame::data(mem::take(&mut self.drip).freeze()));
        }
    }
}

impl http_body::Body for Stitched {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        if let Some(frame) = self.read.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let polled = match &mut self.rest {
            Rest::Body(body) => Pin::new(body).poll_frame(cx),
            rest => match mem::replace(rest, Rest::Nothing) {
                Rest::Error(error) => Poll::Ready(Some(Err(error))),
                _ => Poll::Ready(None),
            },
        };
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) || self.is_end_stream() {
            self.permit = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let ended = match &self.rest {
            Rest::Body(body) => body.is_end_stream(),
            Rest::Error(_) => false,
            Rest::Nothing => true,
        };
        ended && self.read.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let read: u64 = self.read.iter().filter_map(Frame::data_ref).map(|data| data.len() as u64).sum();
        let rest = match &self.rest {
            Rest::Body(body) => body.size_hint(),
            Rest::Error(_) => SizeHint::new(),
            Rest::Nothing => SizeHint::with_exact(0),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(read.saturating_add(rest.lower()));
        if let Some(upper) = rest.upper() {
            hint.set_upper(read.saturating_add(upper));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte a piece, as a hostile server may send it.
    #[tokio::test]
    async fn a_drip_is_kept_in_few_pieces() {
        let pieces =
            (0..200_000_u32).map(|n| Bytes::from(vec![b'a' + u8::try_from(n % 26).unwrap_or(0); (n % 3) as usize]));
        let whole: Vec<u8> = pieces.clone().flatten().collect();
        let pieces = pieces.map(|data| Ok::<_, std::io::Error>(Frame::data(data)));
        let body = http_body_util::StreamBody::new(Pieces(pieces));
        let response = Response::from(http::Response::new(Body::wrap(body)));
        let (taken, end) = read(response, 1 << 20, None).await;
        let kept = taken.body.read.len();
        assert!(end == End::Whole && kept <= 8, "{end:?}, {kept} pieces of {} bytes", whole.len());
        assert_eq!(taken.bytes(), whole);
        assert_eq!(taken.into_response().bytes().await.unwrap(), whole);
    }

    /// A stream that is always ready.
    struct Pieces<I>(I);

    impl<I: Iterator + Unpin> futures_core::Stream for Pieces<I> {
        type Item = I::Item;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
            Poll::Ready(self.0.next())
        }
    }
}
