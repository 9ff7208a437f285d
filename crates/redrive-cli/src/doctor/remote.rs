//! Checks a server through its HTTP API: readiness and clock.

use std::time::Instant;

use redrive::retry::Timestamp;

use super::finding::Finding;
use crate::api::Session;
use crate::failure::Failure;
use crate::{format, time_format};

/// Clock difference at which times in logs are hard to compare, and tokens and delays look wrong.
const MAX_SKEW_MS: i64 = 1000;

/// Checks readiness; `false` if the server cannot be reached, so that further checks say nothing.
pub(super) async fn ready(api: &Session<'_>, checks: &mut Vec<Finding>) -> bool {
    let began = Instant::now();
    match api.ready().await {
        Ok(_) => {
            let took = format::duration(time_format::millis(began.elapsed()).max(1));
            checks.push(Finding::ok("server", format!("ready, answered within {took}")));
            true
        }
        Err(error) => {
            let answered = error.problem().is_some();
            let said = Failure::from(error).into_message();
            checks.push(Finding::fail("server", said, "look at the log of the server"));
            answered
        }
    }
}

/// Compares the clock by which deliveries are due with that of this machine: it is between these two instants if both agree.
pub(super) fn clock(theirs: Timestamp, before: Timestamp, after: Timestamp) -> Finding {
    let (theirs, before, after) = (theirs.as_millis(), before.as_millis(), after.as_millis());
    let skew = if theirs < before { theirs - before } else { (theirs - after).max(0) };
    let found = match skew {
        0 => "the server's clock is this machine's".to_owned(),
        1.. => format!("the server's clock is {skew} ms ahead of this machine's"),
        _ => format!("the server's clock is {} ms behind this machine's", skew.unsigned_abs()),
    };
    if skew.abs() < MAX_SKEW_MS {
        return Finding::ok("clocks", found);
    }
    Finding::act("clocks", found, "synchronise both with NTP: leases, delays and logs are hard to compare")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn a_clock_that_differs_by_more_than_a_second_is_reported() {
        let at = Timestamp::from_millis;
        assert_eq!(clock(at(5000), at(4990), at(5010)).verdict, Verdict::Ok);
        assert_eq!(clock(at(5500), at(4990), at(5010)).verdict, Verdict::Ok);
        let behind = clock(at(1000), at(9000), at(9010));
        assert!(behind.verdict == Verdict::Act && behind.found.contains("8000 ms behind"), "{behind:?}");
        assert!(clock(at(19_010), at(9000), at(9010)).found.contains("10000 ms ahead"));
    }
}
