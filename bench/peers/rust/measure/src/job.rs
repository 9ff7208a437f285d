//! The job: the order of some two hundred bytes that `redrive bench` uses, and when it was sent.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The part of a job that says when it was sent.
#[derive(Debug, Deserialize)]
pub struct Stamp {
    /// Nanoseconds since the process began.
    sent: u64,
}

impl Stamp {
    pub(crate) fn age(&self) -> Duration {
        BEGAN.elapsed().saturating_sub(Duration::from_nanos(self.sent))
    }
}

pub(crate) fn sent_now() -> Value {
    let sent =
        u64::try_from(BEGAN.elapsed().as_nanos()).expect("a process that began less than 500 years ago");
    json!({
        "order": 4711, "customer": "c-1234567", "total": "129.90", "currency": "EUR",
        "items": [{"sku": "A-100", "quantity": 2}, {"sku": "B-200", "quantity": 1}],
        "note": "please leave it at the door", "sent": sent,
    })
}
