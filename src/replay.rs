//! Bodies of requests that are had once more for each attempt.

use std::{any::Any, fmt, future::Future, sync::Arc};

use bytes::Bytes;
use http_body_util::{Empty, Full};
use reqwest::{Body, Response};

use crate::{
    body::{self, End},
    error::BoxError,
};

/// How [`AbideLayer`](crate::tower::AbideLayer) has a body once more for each attempt: [`Known`], [`Cloned`] or
/// [`Buffered`].
pub trait Replay<B>: sealed::Replay<B> {}

impl<B, T: sealed::Replay<B>> Replay<B> for T {}

mod sealed {
    use super::{BoxError, Future};

    /// A body, as often as it can be had.
    #[expect(unnameable_types, missing_debug_implementations, reason = "sealed")]
    pub enum Kept<B> {
        Once(Option<B>),
        Again(Box<dyn Fn() -> Option<B> + Send>),
    }

    impl<B> Kept<B> {
        pub(crate) fn is_once(&self) -> bool {
            matches!(self, Self::Once(_))
        }

        pub(crate) fn take(&mut self) -> Option<B> {
            match self {
                Self::Once(body) => body.take(),
                Self::Again(make) => make(),
            }
        }

        pub(crate) fn cloned(body: B) -> Self
        where
            B: Clone + Send + 'static,
        {
            Self::Again(Box::new(move || Some(body.clone())))
        }
    }

    #[expect(unnameable_types, reason = "sealed: users name the three types that have it")]
    pub trait Replay<B>: Clone + Send + Sync + 'static {
        #[doc(hidden)]
        fn keep(&self, body: B) -> impl Future<Output = Result<Kept<B>, BoxError>> + Send;
    }
}
pub(crate) use sealed::Kept;

/// Bodies that are known to be bytes are sent again; any other is sent once, and the history says
/// [`NotReplayable`](crate::Stop::NotReplayable).
///
/// Known are `Full<Bytes>`, `Empty<Bytes>`, `Bytes`, `Vec<u8>`, `String`, `&'static str`, `()`, and a `reqwest::Body`
/// made of bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known;

impl<B: Send + 'static> sealed::Replay<B> for Known {
    async fn keep(&self, body: B) -> Result<Kept<B>, BoxError> {
        Ok(known(body))
    }
}

fn known<B: Send + 'static>(body: B) -> Kept<B> {
    let any: &dyn Any = &body;
    macro_rules! again {
        ($($kind:ty),*) => {
            $(if let Some(bytes) = any.downcast_ref::<$kind>() {
                let bytes = bytes.clone();
                return Kept::Again(Box::new(move || same(bytes.clone())));
            })*
        };
    }
    again!(Full<Bytes>, Empty<Bytes>, Bytes, Vec<u8>, String, &'static str, ());
    if let Some(bytes) = any.downcast_ref::<Body>().and_then(Body::as_bytes) {
        let bytes = Bytes::copy_from_slice(bytes);
        return Kept::Again(Box::new(move || same(Body::from(bytes.clone()))));
    }
    Kept::Once(Some(body))
}

/// `T` is `B`, as was just seen.
fn same<T: 'static, B: 'static>(body: T) -> Option<B> {
    let mut slot = Some(body);
    let any: &mut dyn Any = &mut slot;
    any.downcast_mut::<Option<B>>().and_then(Option::take)
}

/// Bodies are cloned for each attempt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cloned;

impl<B: Clone + Send + 'static> sealed::Replay<B> for Cloned {
    async fn keep(&self, body: B) -> Result<Kept<B>, BoxError> {
        Ok(Kept::cloned(body))
    }
}

/// Bodies are read into a buffer; one that is longer than it goes on as a stream, once.
pub struct Buffered<B> {
    pub(crate) limit: usize,
    pub(crate) make: Arc<dyn Fn(Body) -> B + Send + Sync>,
}

impl<B> sealed::Replay<B> for Buffered<B>
where
    B: http_body::Body<Data: Into<Bytes>, Error: Into<BoxError>> + Send + 'static,
{
    async fn keep(&self, body: B) -> Result<Kept<B>, BoxError> {
        // In a response's clothes, because that is what is read in part elsewhere.
        let whole = Response::from(http::Response::new(body::erase(body)));
        let (mut taken, end) = body::read(whole, self.limit, None).await;
        match end {
            End::Whole => {
                let (bytes, make) = (taken.bytes(), Arc::clone(&self.make));
                Ok(Kept::Again(Box::new(move || Some(make(Body::from(bytes.clone()))))))
            }
            End::Long | End::Late => Ok(Kept::Once(Some((self.make)(taken.into_response().into())))),
            End::Broken => Err(taken.take_error().map_or_else(|| "body broke off".into(), Into::into)),
        }
    }
}

impl<B> Clone for Buffered<B> {
    fn clone(&self) -> Self {
        Self { limit: self.limit, make: Arc::clone(&self.make) }
    }
}

impl<B> fmt::Debug for Buffered<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffered").field("limit", &self.limit).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn known_bodies_come_again_and_others_once() {
        let mut text = known("text");
        assert_eq!((text.is_once(), text.take(), text.take()), (false, Some("text"), Some("text")));
        let mut number = known(7_u8);
        assert_eq!((number.is_once(), number.take(), number.take()), (true, Some(7), None));
        let mut bytes = known(Body::from("abc"));
        assert!(!bytes.is_once());
        let taken = [bytes.take(), bytes.take()].map(|body| body.unwrap().as_bytes().unwrap().to_vec());
        assert_eq!(taken, [b"abc", b"abc"]);
    }

    #[tokio::test]
    async fn a_buffer_that_is_too_small_keeps_the_stream_whole() {
        use http_body_util::BodyExt;
        for (limit, once) in [(3, false), (2, true)] {
            let buffered = Buffered { limit, make: Arc::new(|body| body) };
            let mut kept = sealed::Replay::keep(&buffered, Body::from("abc")).await.unwrap();
            assert_eq!(kept.is_once(), once);
            assert_eq!(kept.take().unwrap().collect().await.unwrap().to_bytes(), "abc");
            assert_eq!(kept.take().is_none(), once);
        }
    }
}
