//! How long to wait before connecting again.

use std::time::Duration;

use redrive_retry::{Identity, Jitter, RetryPolicy};
use uuid::Uuid;

/// Between two attempts to connect.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Doubling waits that are spread, so that many that lose their connection at once do not come back at once.
#[derive(Debug)]
pub(crate) struct Reconnect {
    seed: String,
}

impl Reconnect {
    pub(crate) fn new() -> Self {
        Reconnect { seed: Uuid::new_v4().to_string() }
    }

    /// Before the attempt that follows so many failed ones.
    pub(crate) fn wait(&self, purpose: &str, attempt: u32) -> Duration {
        let policy = RetryPolicy::scheduler()
            .to_builder()
            .base_delay(SHORTEST_WAIT)
            .max_delay(LONGEST_WAIT)
            .jitter(Jitter::Equal)
            .build()
            .expect("these are valid");
        policy.backoff().delay(attempt.saturating_add(1), None, Identity::new(0, &self.seed, purpose))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_are_spread() {
        let reconnect = Reconnect::new();
        for (attempt, longest) in [(1, 100), (2, 200), (5, 1600), (7, 6400), (8, 10_000), (1_000_000, 10_000)]
        {
            let wait = reconnect.wait("consume", attempt).as_millis();
            assert!((longest / 2..=longest).contains(&wait), "{attempt}: {wait}");
        }
    }
}
