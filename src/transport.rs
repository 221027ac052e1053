//! What sends one request: reqwest, or what lies beneath an adapter.

use std::future::{Future, ready};

use reqwest::{Request, Response};

use crate::{Verdict, error::BoxError};

/// Sends the requests of one call, one at a time.
pub(crate) trait Transport: Send {
    /// Waits until it takes a request; nothing is committed yet.
    fn ready(&mut self) -> impl Future<Output = Result<(), BoxError>> + Send {
        ready(Ok(()))
    }

    /// One request on the wire, to the head of its answer. It is made where it is sent, as moving one is dear.
    fn send(
        &mut self,
        request: impl FnOnce() -> Request + Send,
    ) -> impl Future<Output = Result<Response, BoxError>> + Send;

    /// What its own classifier says of the last result; `None`: it has none.
    fn word(&self) -> Option<Verdict> {
        None
    }
}
