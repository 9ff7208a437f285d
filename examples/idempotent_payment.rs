//! Charge a card at most once: `cargo run -p redrive-examples --example idempotent_payment`
//!
//! Ten concurrent callers request one payment. One call charges, all get its receipt, and another payload under this key is
//! refused.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive_retry::idempotency::{IdempotencyKey, MemoryStore};
use redrive_retry::manager::OnConflict;
use redrive_retry::{BoxError, Category, Clock, RetryManager};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Debug, Serialize, Deserialize)]
struct Receipt {
    number: u32,
    cents: u32,
}

static CHARGES: AtomicU32 = AtomicU32::new(0);

async fn charge(manager: RetryManager, order: u32, cents: u32) -> Result<Receipt, BoxError> {
    let key = IdempotencyKey::compute("charge card", Some("shop-1"), None, &json!({ "order": order }))?;
    let receipt = manager
        .execute(&Category::ApiRequest, "charge card")
        .tenant("shop-1")
        .idempotent(key)
        .payload(&json!({ "cents": cents }))?
        .on_conflict(OnConflict::Wait(Duration::from_secs(5)))
        .run(|_attempt| async move {
            // A real client sends the attempt's idempotency key in a header, so that the bank detects repetitions.
            let number = CHARGES.fetch_add(1, Ordering::SeqCst) + 1;
            Ok::<_, BoxError>(Receipt { number, cents })
        })
        .await?;
    Ok(receipt)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let store = Arc::new(MemoryStore::new(Clock::system()));
    let manager = RetryManager::builder().idempotency_store(store).build();
    let callers: Vec<_> = (0..10).map(|_| tokio::spawn(charge(manager.clone(), 7, 1250))).collect();
    for caller in callers {
        println!("{:?}", caller.await??);
    }
    println!("charged {} time(s)", CHARGES.load(Ordering::SeqCst));
    let error = charge(manager, 7, 9900).await.expect_err("another amount under the same key");
    println!("{error}");
    Ok(())
}
