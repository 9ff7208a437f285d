//! Metrics of guarded calls by category, from the process-wide retry manager.

use std::collections::BTreeMap;

use redrive::retry::manager::CategoryMetrics;

use crate::metric_family::{Family, Kind};

/// Calls by outcome and attempts, of every category with a finished call.
pub(super) fn families(categories: &BTreeMap<String, CategoryMetrics>) -> [Family; 2] {
    let mut calls = Family::new(
        "redrive_retry_calls_total",
        "Finished calls of the retry manager, by category and outcome: succeeded_at_once, succeeded_after_retry, failed.",
        Kind::Counter,
    );
    let mut attempts = Family::new(
        "redrive_retry_attempts_total",
        "Attempts of finished calls of the retry manager, by category.",
        Kind::Counter,
    );
    for (category, counted) in categories {
        for (outcome, count) in [
            ("succeeded_at_once", counted.succeeded_at_once),
            ("succeeded_after_retry", counted.succeeded_after_retry),
            ("failed", counted.failed),
        ] {
            calls = calls.with(vec![("category", category.clone()), ("outcome", outcome.to_owned())], count);
        }
        attempts = attempts.with(vec![("category", category.clone())], counted.attempts);
    }
    [calls, attempts]
}

#[cfg(test)]
mod tests {
    use super::super::exposition;
    use super::*;
    use redrive::retry::{BoxError, Category, RetryManager};

    #[tokio::test]
    async fn calls_and_attempts_are_shown_by_category() {
        let manager = RetryManager::new();
        for _ in 0..2 {
            let call =
                manager.execute(&Category::ApiRequest, "Fetch").run(|_| async { Ok::<_, BoxError>(()) });
            call.await.unwrap();
        }
        let text = exposition::text(&families(&manager.metrics()));
        for line in [
            "redrive_retry_calls_total{category=\"RETRY_API_REQUEST\",outcome=\"succeeded_at_once\"} 2",
            "redrive_retry_calls_total{category=\"RETRY_API_REQUEST\",outcome=\"failed\"} 0",
            "redrive_retry_attempts_total{category=\"RETRY_API_REQUEST\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
}
