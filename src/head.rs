//! The head of an answer, and what of its body the verdict needs.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reqwest::Response;
use tokio::time::Instant;

use crate::{
    Error,
    body::{self, End},
    call::{Call, Onward},
    headers::{self, Hints},
    sent::{Cause, SentState},
    told,
};

/// A head, and what of the body was needed.
pub(crate) struct Head {
    pub(crate) response: Response,
    pub(crate) hints: Hints,
    pub(crate) body: Option<Bytes>,
    pub(crate) received: Instant,
    pub(crate) wall: SystemTime,
    pub(crate) onward: Onward,
    pub(crate) long: bool,
    pub(crate) needs: Needs,
}

/// What of a body is read before the verdict.
#[derive(Clone, Copy)]
pub(crate) enum Needs {
    Nothing,
    /// All of it, if it is no longer than this.
    Whole(usize),
    /// A small one, for a wait that the head does not name.
    Wait,
}

/// What of an error body is read for a wait that the head does not name. It is small, and follows its head at once.
const ERROR_BODY: (usize, Duration) = (headers::MAX_BODY, Duration::from_millis(250));

impl Head {
    /// With as much of the body as is needed, and what that says.
    pub(crate) async fn with_body(
        mut self,
        call: &Call,
        (until, cause): (Option<Instant>, Cause),
    ) -> Result<Self, (Error, Hints)> {
        if let Needs::Whole(limit) = self.needs {
            let (mut taken, end) = body::read(self.response, limit, until).await;
            match end {
                End::Whole => self.body = Some(taken.bytes()),
                End::Long => self.long = true,
                End::Late => return Err((Error::cut(cause, SentState::Sent), self.hints)),
                End::Broken => return Err((broken(taken.take_error()), self.hints)),
            }
            self.response = taken.into_response();
        } else {
            let until = earliest(self.received.checked_add(ERROR_BODY.1), call.deadline());
            let (taken, end) = body::read(self.response, ERROR_BODY.0, until).await;
            self.body = (end == End::Whole).then(|| taken.bytes());
            self.response = taken.into_response();
        }
        if let Some(body) = &self.body
            && told::may_be_in_body(&self.response, &self.hints, call.policy())
        {
            self.hints = headers::read(self.response.status(), self.response.headers(), Some(body), self.wall);
        }
        Ok(self)
    }
}

fn broken(error: Option<reqwest::Error>) -> Error {
    match error {
        Some(error) => Error::body(error.into()),
        None => Error::cut(Cause::Reset, SentState::Sent),
    }
}

pub(crate) fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
