//! The main loop: one call, from its first permit to its last response. It makes no decision of its own.
//!
//! | step | who |
//! | --- | --- |
//! | what comes next, and why it stops | [`Call`], pure |
//! | permits, pauses, queues | `limit/`, by [`Wire::acquire`] |
//! | the share of retries | `budget.rs`, by [`Wire::withdraw`] |
//! | one request on the wire, and what its answer says | [`Wire::send`] |

use std::sync::Arc;

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
pub(crate) async fn run<T: Transport>(client: &Inner, request: &mut Outgoing, transport: T) -> Result<Response, Error> {
    let (span, mut now) = (telemetry::call(request.key), clock::now());
    let policy = request.options.policy.as_ref().unwrap_or(&client.policy);
    let mut call = Call::new(Arc::clone(policy), request.options.deadline, now);
    let mut wire = Wire::new(client, request, (transport, span.clone()), (&call, now));
    // It borrows what is large: a future is moved, all of it, before it is first polled.
    let drive = async {
        loop {
            now = match call.next(now) {
                Step::Acquire => wire.acquire(&mut call).await,
                Step::Withdraw => wire.withdraw(&mut call),
                Step::Send(number) => wire.send(&mut call, number).await,
                Step::WaitUntil(when) => clock::wait_until(when).await,
                Step::Return => return wire.finish(&mut call),
            }
        }
    };
    drive.instrument(span).await
}
