//! What was written for reqwest-retry goes on working: its backoff is a [`Policy`], its strategies are asked.

use reqwest::Response;
use reqwest_retry::{Retryable, RetryableStrategy};
use retry_policies::{Jitter, policies::ExponentialBackoff};

use crate::{Backoff, Policy, Verdict};

/// Retries, least and greatest wait, and jitter; all else as by default.
///
/// | there | here |
/// | --- | --- |
/// | `max_n_retries: Some(n)` | `max_attempts(n + 1)` |
/// | `max_n_retries: None` | no end but the deadline |
/// | `Jitter::None`, `Jitter::Full` | the same |
/// | `Jitter::Bounded` (between the least wait and `e`) | equal jitter (between `e/2` and `e`) |
/// | a `base` other than 2 | 2 |
///
/// # Examples
///
/// ```
/// use abide::Policy;
/// use retry_policies::policies::ExponentialBackoff;
///
/// let policy = Policy::from(ExponentialBackoff::builder().build_with_max_retries(3));
/// # let _ = policy;
/// ```
impl From<ExponentialBackoff> for Policy {
    fn from(there: ExponentialBackoff) -> Self {
        let attempts = there.max_n_retries.map_or(u32::MAX, |retries| retries.saturating_add(1));
        Self::default().max_attempts(attempts).backoff(there.into())
    }
}

/// Least and greatest wait and jitter; without the number of retries, which a [`Policy`] has.
impl From<ExponentialBackoff> for Backoff {
    fn from(there: ExponentialBackoff) -> Self {
        let jitter = match there.jitter {
            Jitter::None => crate::Jitter::None,
            Jitter::Bounded => crate::Jitter::Equal,
            _ => crate::Jitter::Full,
        };
        Self::exponential(there.min_retry_interval, there.max_retry_interval).jitter(jitter)
    }
}

/// A strategy, asked once per attempt.
pub(crate) trait Judge: Send + Sync {
    fn judge(&self, result: &reqwest_middleware::Result<Response>) -> Verdict;
}

impl<T: RetryableStrategy + Send + Sync> Judge for T {
    fn judge(&self, result: &reqwest_middleware::Result<Response>) -> Verdict {
        match self.handle(result) {
            Some(Retryable::Transient) => Verdict::Retry,
            Some(Retryable::Fatal) => Verdict::Stop,
            None if result.is_ok() => Verdict::Accept,
            None => Verdict::Stop,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bounds_and_jitter_stay() {
        let bounds = (Duration::from_millis(30), Duration::from_secs(3));
        let there = ExponentialBackoff::builder().retry_bounds(bounds.0, bounds.1);
        let here = |jitter| Backoff::from(there.jitter(jitter).build_with_max_retries(2));
        assert_eq!(here(Jitter::None), Backoff::exponential(bounds.0, bounds.1));
        let there = ExponentialBackoff::builder().retry_bounds(bounds.0, bounds.1).build_with_max_retries(2);
        assert_eq!(Backoff::from(there), Backoff::full_jitter(bounds.0, bounds.1));
        assert_eq!(Policy::from(there).attempts(), 3);
    }
}
