//! Describes a policy in one sentence.

use redrive_retry::{Jitter, RetryPolicy};

use crate::format;
use crate::time_format::millis;

/// `5 attempts, waiting 1s, then 2× as long each time up to 1h, ±10% jitter`.
pub(crate) fn describe(policy: &RetryPolicy) -> String {
    let attempts = format::counted(policy.max_attempts().into(), "attempt");
    if policy.max_retries() == 0 {
        return format!("{attempts}, no retries");
    }
    format!("{attempts}, {}, {}", waits(policy), jitter(policy.jitter()))
}

/// `waiting 1s, then 2× as long each time up to 1h`.
pub(crate) fn waits(policy: &RetryPolicy) -> String {
    let wait = |attempt| format::duration(millis(policy.backoff().nominal(attempt)));
    let (first, last) = (wait(2), wait(policy.max_attempts()));
    if policy.max_retries() < 2 || first == last {
        return format!("waiting {first} between them");
    }
    let cap = format::duration(millis(policy.max_delay()));
    if !policy.backoff().is_exponential() {
        return format!("waiting {first}, {}, then longer each time up to {cap}", wait(3));
    }
    format!("waiting {first}, then {}× as long each time up to {cap}", policy.multiplier())
}

/// Jitter as part of a sentence.
pub(crate) fn jitter(jitter: Jitter) -> String {
    match jitter {
        Jitter::None => "no jitter".to_owned(),
        Jitter::Proportional(_) => format!("±{jitter} jitter"),
        Jitter::Additive(_) => format!("plus {jitter} of jitter"),
        Jitter::Full | Jitter::Equal => format!("{jitter} jitter"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_policy_is_described_in_one_sentence() {
        let changed = |attempts, multiplier| {
            let builder = RetryPolicy::bus().to_builder().max_attempts(attempts);
            builder.multiplier(multiplier).build().unwrap()
        };
        for (policy, sentence) in [
            (
                RetryPolicy::webhook(),
                "5 attempts, waiting 1s, then 2× as long each time up to 1h, ±10% jitter",
            ),
            (
                RetryPolicy::scheduler(),
                "4 attempts, waiting 2s, then 2× as long each time up to 1m, plus 0..1s of jitter",
            ),
            (
                RetryPolicy::standard(),
                "10 attempts, waiting 5s, 5m, then longer each time up to 1d, ±10% jitter",
            ),
            (changed(1, 2.0), "1 attempt, no retries"),
            (changed(2, 2.0), "2 attempts, waiting 1s between them, ±10% jitter"),
            (changed(9, 1.0), "9 attempts, waiting 1s between them, ±10% jitter"),
        ] {
            assert_eq!(describe(&policy), sentence);
        }
        assert_eq!(jitter(Jitter::Full), "full jitter");
        assert_eq!(jitter(Jitter::Additive(Duration::from_secs(2))), "plus 0..2s of jitter");
    }
}
