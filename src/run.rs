//! The main loop: one call, from its first permit to its last response. It makes no decision of its own.
//!
//! | step | who |
//! | --- | --- |
//! | what comes next, and why it stops | [`Call`], pure |
//! | permits, pauses, queues | `limit/`, by [`Wire::acquire`] |
//! | the share of retries | `budget.rs`, by [`Wire::withdraw`] |
//! | one request on the wire, and what its answer says | [`Wire::send`] |

use reqwest::Response;
use tracing::Instrument;

use crate::{
    Error,
    call::{Call, Step},
    client::Inner,
    clock,
    outgoing::Outgoing,
    transport::Transport,
    wire::Wire,
};

/// Drives the call to its end.
///
/// # Cancel safety
/// Dropping the future at any await gives back permit, slot and retry budget.
pub(crate) async fn run(client: &Inner, request: Outgoing, transport: impl Transport) -> Result<Response, Error> {
    let policy = request.options.policy.as_ref().unwrap_or(&client.policy);
    let mut call = Call::new(policy.clone(), request.options.deadline, clock::now());
    let mut wire = Wire::new(client, request, transport, &call);
    let span = wire.span();
    let steps = async move {
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
    steps.instrument(span).await
}
