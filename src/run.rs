//! The main loop: one call, from its first permit to its last response. It makes no decision of its own.
//!
//! | step | who |
//! | --- | --- |
//! | what comes next, and why it stops | [`Call`], pure |
//! | permits, pauses, queues | `limit/`, by [`Wire::acquire`] |
//! | the share of retries | `budget.rs`, by [`Wire::withdraw`] |
//! | one request on the wire, and what its answer says | [`Wire::send`] |

use std::{future::Future, sync::Arc};

use reqwest::Response;
use tracing::Instrument;

use crate::{
    Error,
    call::{Call, Step},
    client::Inner,
    clock,
    outgoing::Outgoing,
    telemetry,
    transport::Transport,
    wire::Wire,
};

/// Drives the call to its end, in a span of its own.
///
/// # Cancel safety
/// Dropping the future at any await gives back permit, slot and retry budget.
pub(crate) fn run<'a, T: Transport + 'a>(
    client: &'a Inner,
    request: Outgoing,
    transport: T,
) -> impl Future<Output = Result<Response, Error>> + Send + 'a {
    let (span, now) = (telemetry::call(request.key), clock::now());
    let policy = request.options.policy.as_ref().unwrap_or(&client.policy);
    let mut call = Call::new(Arc::clone(policy), request.options.deadline, now);
    let mut wire = Wire::new(client, request, (transport, span.clone()), (&call, now));
    // A block, as the arguments of an `async fn` lie in its future twice, and a future is moved before it is polled.
    let drive = async move {
        loop {
            match call.next(clock::now()) {
                Step::Acquire => wire.acquire(&mut call).await,
                Step::Withdraw => wire.withdraw(&mut call),
                Step::Send(number) => wire.send(&mut call, number).await,
                Step::WaitUntil(when) => clock::sleep_until(when).await,
                Step::Return => return wire.finish(call),
            }
        }
    };
    drive.instrument(span)
}
