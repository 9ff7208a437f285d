//! Write an audit log and verify it: `cargo run -p redrive-examples --example audit_and_verify`
//!
//! `redrive audit verify FILE` verifies such a file, too.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use redrive_retry::audit::{AuditEvent, JsonLinesSink};
use redrive_retry::{BoxError, Category, RetryManager, RetryPolicy};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let path =
        std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("redrive-audit.jsonl"), Into::into);
    let manager = RetryManager::builder().audit(JsonLinesSink::new(File::create(&path)?)).seed(42).build();
    let policy = RetryPolicy::builder().max_attempts(5).base_delay(Duration::from_millis(10)).build()?;

    for order in 0..20 {
        let _ = manager
            .execute(&Category::ApiRequest, "reserve stock")
            .policy(&policy)
            .correlation(&format!("order-{order}"))
            .run(|attempt| async move {
                // Every third order always fails; the rest succeed at the second attempt.
                if order % 3 == 0 || attempt.number() < 2 { Err("out of stock") } else { Ok(()) }
            })
            .await;
    }

    let mut verified = 0;
    let mut kinds = std::collections::BTreeMap::<&str, u32>::new();
    for line in BufReader::new(File::open(&path)?).lines() {
        let kind = match serde_json::from_str::<AuditEvent>(&line?)? {
            AuditEvent::RetryDecision(decision) => {
                decision.record.verify()?;
                verified += 1;
                "retry_decision"
            }
            AuditEvent::RetryAttempt(_) => "retry_attempt",
            AuditEvent::RetryExhausted(_) => "retry_exhausted",
            AuditEvent::Idempotency(_) => "idempotency",
        };
        *kinds.entry(kind).or_default() += 1;
    }
    println!("{}: {kinds:?}", path.display());
    println!("{verified} decisions verified");
    Ok(())
}
