//! The job: an order of about two hundred bytes, as `redrive bench` uses, with its send time.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Send time of a job.
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
