//! Backoff between attempts to connect to the broker, with a log message for each failed one.

use std::time::Duration;

use redrive_retry::decision::Identity;
use redrive_retry::{Jitter, RetryPolicy};
use uuid::Uuid;

/// Bounds of the delay between two attempts.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Exponential backoff with jitter, so that many clients that lose their connection at once do not reconnect at once.
#[derive(Debug)]
pub(crate) struct Reconnect {
    /// Address of the broker without secrets, for the log.
    address: String,
    seed: String,
}

impl Reconnect {
    pub(crate) fn new(address: String) -> Self {
        Reconnect { address, seed: Uuid::new_v4().to_string() }
    }

    /// The broker's address without secrets.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Logs a failed attempt and waits before the next one.
    pub(crate) async fn log_and_wait(&self, purpose: &str, attempt: u32, error: &str) {
        let wait = self.wait(purpose, attempt);
        let retry_in_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(
            target: "redrive::scheduler", broker = self.address, purpose, attempt, retry_in_ms, error,
            "the broker cannot be reached"
        );
        tokio::time::sleep(wait).await;
    }

    /// Delay after this many failed attempts.
    pub(crate) fn wait(&self, purpose: &str, attempt: u32) -> Duration {
        let policy = RetryPolicy::scheduler()
            .to_builder()
            .base_delay(MIN_RETRY_DELAY)
            .max_delay(MAX_RETRY_DELAY)
            .jitter(Jitter::Equal)
            .build()
            .expect("the constants are a valid policy");
        policy.backoff().delay(attempt.saturating_add(1), None, Identity::new(0, &self.seed, purpose))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap_with_jitter() {
        let reconnect = Reconnect::new("broker".into());
        for (attempt, longest) in [(1, 100), (2, 200), (5, 1600), (7, 6400), (8, 10_000), (1_000_000, 10_000)]
        {
            let wait = reconnect.wait("consume", attempt).as_millis();
            assert!((longest / 2..=longest).contains(&wait), "{attempt}: {wait}");
        }
    }
}
