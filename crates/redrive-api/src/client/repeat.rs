//! Decides whether and when a failed request is sent again. The delays are those of `redrive-retry`.

use std::time::Duration;

use redrive_retry::decision::Identity;
use redrive_retry::{Jitter, RetryPolicy};

use super::error::Error;

/// Requests in total by default. A server that is killed in the middle of a publish leaves the key of the request leased for five seconds, in
/// which repetitions are refused: the waits must outlast that.
const MAX_REQUESTS: u32 = 8;

/// Longest `Retry-After` that is waited for by default.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Whether a request may be repeated after an error that leaves open whether it took effect.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It may: executing it twice has the effect of executing it once.
    Always,
    /// It may be repeated only after an answer which says that the server did nothing.
    IfRefused,
}

/// When a [`Client`](super::Client) repeats a failed request.
///
/// Default: 8 requests, waits of 200 ms doubling up to 5 s of which half is random, 30 s for each request, no repetition after 60 s,
/// `Retry-After` honoured up to 30 s.
#[derive(Clone, Debug)]
pub struct Retries {
    policy: RetryPolicy,
    max_retry_after: Duration,
}

impl Retries {
    /// Sets the longest `Retry-After` that is waited for; 30 s by default. A longer one is an error at once.
    #[must_use]
    pub fn max_retry_after(self, max: Duration) -> Self {
        Retries { max_retry_after: max, ..self }
    }

    /// Number of requests, waits and time limits.
    pub fn policy(&self) -> &RetryPolicy {
        &self.policy
    }

    /// Returns the wait before the request is sent again; `None` for giving up.
    ///
    /// `requests` is the number of requests so far, `elapsed` the time since the first one began.
    pub(super) fn wait_before_repeat(
        &self,
        error: &Error,
        repeat: Repeat,
        requests: u32,
        elapsed: Duration,
        seed: u64,
    ) -> Option<Duration> {
        let may_repeat = error.is_refused_for_now() || (repeat == Repeat::Always && error.is_temporary());
        if requests >= self.policy.max_attempts() || !may_repeat {
            return None;
        }
        let asked = error.retry_after();
        if asked > Some(self.max_retry_after) {
            return None;
        }
        let wait = self.policy.backoff().delay(requests + 1, asked, Identity::new(seed, "", ""));
        let is_late = self.policy.deadline().is_some_and(|deadline| elapsed.saturating_add(wait) > deadline);
        (!is_late).then_some(wait)
    }
}

impl Default for Retries {
    fn default() -> Self {
        let policy = RetryPolicy::builder()
            .max_attempts(MAX_REQUESTS)
            .base_delay(Duration::from_millis(200))
            .multiplier(2.0)
            .max_delay(Duration::from_secs(5))
            .jitter(Jitter::Equal)
            .attempt_timeout(Duration::from_secs(30))
            .deadline(Duration::from_secs(60));
        policy.build().expect("the constants are valid").into()
    }
}

impl From<RetryPolicy> for Retries {
    /// Takes attempts, delays and time limits of the policy. Its error rules have no effect: the code of the problem decides.
    fn from(policy: RetryPolicy) -> Self {
        Retries { policy, max_retry_after: MAX_RETRY_AFTER }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_waits_for_a_restart_of_the_server() {
        let retries = Retries::default();
        let unreachable = Error::Unreachable("connection refused".to_owned());
        let waits: Vec<Duration> = (1..)
            .map_while(|n| retries.wait_before_repeat(&unreachable, Repeat::Always, n, Duration::ZERO, 7))
            .collect();
        assert_eq!(waits.len(), 7);
        let all: Duration = waits.iter().sum();
        assert!((Duration::from_millis(8100)..=Duration::from_millis(16_200)).contains(&all), "{waits:?}");
    }
}
