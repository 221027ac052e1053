//! Cases of one call: run as often as they ask, and every expectation checked.

use std::{collections::VecDeque, sync::Arc};

use tokio::{sync::Semaphore, task::JoinSet, time::Instant};

use super::{
    case::{CallCase, Config},
    check,
    door::Door,
    outcome::Outcome,
};
use crate::support::{
    clock,
    net::{Network, Setup},
    record::{Scripts, Seen},
    script::unrolled,
};

/// What one trial showed.
pub(crate) struct Trial {
    pub(crate) outcome: Outcome,
    pub(crate) seen: Vec<Seen>,
    pub(crate) problems: Vec<String>,
    pub(crate) total_ms: f64,
}

/// All that is wrong with a case of mode `call`.
pub(crate) async fn run(case: CallCase, door: Door, slots: Arc<Semaphore>) -> Vec<String> {
    if case.clock.real {
        return vec!["clock.real has no meaning in a call".into()];
    }
    let problems: Vec<String> = case.server.iter().filter_map(|entry| entry.check().err()).collect();
    if !problems.is_empty() {
        return problems;
    }
    let case = Arc::new(case);
    let mut trials = JoinSet::new();
    for _ in 0..case.expect.trials.unwrap_or(1) {
        let (case, slots) = (Arc::clone(&case), Arc::clone(&slots));
        trials.spawn(async move {
            let _slot = slots.acquire_owned().await;
            trial(&case, door).await
        });
    }
    let mut failures = Vec::new();
    let mut waits = Vec::new();
    while let Some(trial) = trials.join_next().await {
        match trial.map_err(|error| error.to_string()) {
            Ok(Ok(trial)) => {
                waits.push(check::waits(&trial.seen, case.config.attempt_timeout_ms));
                failures.extend(check::trial(&case, &trial));
            }
            Ok(Err(problem)) | Err(problem) => failures.push(problem),
        }
    }
    failures.extend(check::over_trials(&case.expect, &waits));
    failures.sort();
    failures.dedup();
    failures
}

async fn trial(case: &CallCase, door: Door) -> Result<Trial, String> {
    let setup = Setup { http2: speaks_http2(&case.config)?, skew_ms: case.clock.server_skew_ms };
    let queue = VecDeque::from(unrolled(&case.server));
    let network = Network::start(Scripts::InOrder(queue), &case.server, setup).await;
    let client = door.client(&network, &case.config)?;
    for _ in 0..case.warmup {
        let warm = client.warm_up(&network.warm_up_url()).await.map_err(|error| format!("warm-up: {error}"))?;
        warm.bytes().await.map_err(|error| format!("warm-up: {error}"))?;
    }
    let started = clock::now();
    let outcome = Box::pin(client.outcome(case, network.url())).await;
    let total_ms = clock::as_ms(ended(&outcome) - started);
    clock::sleep(clock::ms(case.expect.observe_ms.unwrap_or(20))).await;
    Ok(Trial { outcome, seen: network.seen(), problems: network.problems(), total_ms })
}

/// When a call was over.
pub(crate) fn ended(outcome: &Outcome) -> Instant {
    outcome.ended.unwrap_or_else(clock::now)
}

/// Whether the client is to speak HTTP/2.
pub(crate) fn speaks_http2(config: &Config) -> Result<bool, String> {
    match config.http.as_deref() {
        None | Some("1" | "1.1") => Ok(false),
        Some("2") => Ok(true),
        Some(other) => Err(format!("no HTTP {other:?}")),
    }
}
