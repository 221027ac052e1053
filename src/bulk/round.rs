//! What the end of a round means for its row, and the names that rows go by.
//!
//! Invariant: pure.

use std::time::Duration;

use tokio::time::Instant;

use super::row::Answer;
use crate::{Error, Key, Stop};

/// Whether a row goes on as a new round.
pub(super) enum Again {
    No,
    Throttled,
    /// The limiter could not let it through before its deadline.
    NotBefore(Option<Instant>),
    TooLong,
}

/// A throttled row goes on, until an asked wait exceeds `max_server_wait`: a rate limit is no failure. What the policy
/// says may not be repeated is not.
pub(super) fn again(end: &Result<Answer, Error>, refused: bool, longest: Duration) -> Again {
    match end {
        Ok(answer) if refused => match answer.stop {
            // The deadline came first: a wait that no round waits for is told now, with its answer.
            Stop::Deadline if answer.asked.is_some_and(|asked| asked > longest) => Again::TooLong,
            Stop::MaxAttempts | Stop::Deadline | Stop::Refused => Again::Throttled,
            Stop::ServerWaitTooLong => Again::TooLong,
            _ => Again::No,
        },
        Ok(_) => Again::No,
        Err(error) => match error.refused() {
            Some(refused) if refused.is_never() => Again::No,
            Some(refused) if refused.is_paused() => Again::TooLong,
            Some(refused) => Again::NotBefore(refused.retry_at()),
            None if error.is_deadline() && error.history().attempts().is_empty() => Again::NotBefore(None),
            None => Again::No,
        },
    }
}

pub(super) fn origin(request: &reqwest::Request) -> Key {
    let url = request.url();
    let port = url.port_or_known_default().unwrap_or(0).to_be_bytes();
    Key::of_parts([url.scheme().as_bytes(), url.host_str().unwrap_or_default().as_bytes(), &port])
}

/// The lane of rows that go nowhere.
pub(super) fn nowhere() -> Key {
    Key::from("")
}

/// The run's id plus the line, as a UUID: version and variant stay as they are.
pub(super) fn key(run: uuid::Uuid, line: u64) -> String {
    const LOW: u128 = (1 << 62) - 1;
    let run = run.as_u128();
    let low = (run & LOW).wrapping_add(u128::from(line)) & LOW;
    uuid::Uuid::from_u128(run & !LOW | low).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_run_differ_and_stay() {
        let run = uuid::Uuid::new_v4();
        let mut keys: Vec<String> = (1..1000).map(|line| key(run, line)).collect();
        assert_eq!(keys[6], key(run, 7));
        assert!(keys.iter().all(|key| uuid::Uuid::parse_str(key).unwrap().get_version_num() == 4));
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 999);
    }
}
