//! Retry a function in one line: `cargo run -p redrive-examples --example retry_ext`
//!
//! Shows `RetryExt` with a policy, a permanent error and a blocking function.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive_retry::{ClassifyError, Failure, RetryExt, RetryPolicy};

static CALLS: AtomicU32 = AtomicU32::new(0);

/// Fails twice, then succeeds.
async fn fetch() -> Result<&'static str, std::io::Error> {
    match CALLS.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => Err(std::io::ErrorKind::ConnectionReset.into()),
        _ => Ok("stock: 17"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy = RetryPolicy::builder().base_delay(Duration::from_millis(20)).build()?;

    println!("{} after {} calls", fetch.retry(&policy).await?, CALLS.load(Ordering::Relaxed));

    // A permanent error is not retried. The options are those of a managed call.
    let reserve = || async { Err::<(), Failure>("no such article".permanent()) };
    let error =
        reserve.retry(&policy).operation("Reserve stock").tenant("shop-1").await.expect_err("permanent");
    println!("{error}");
    assert_eq!(error.attempts(), 1);

    // A blocking function.
    let read = || std::fs::read_to_string("Cargo.toml");
    let manifest = read.retry(&policy).run_blocking()?;
    println!("{} bytes", manifest.len());
    Ok(())
}
