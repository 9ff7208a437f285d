//! Guard a call to an HTTP API: `cargo run -p redrive-examples --example guard_http_call`
//!
//! Shows the policy of a category, classified errors, `Retry-After`, a circuit breaker and a retry budget.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::time::Duration;

use redrive_retry::breaker::{BreakerConfig, CircuitBreaker};
use redrive_retry::budget::BudgetConfig;
use redrive_retry::{Category, Clock, Failure, RetryError, RetryManager, RetryPolicy};

/// Simulates an HTTP client: first overloaded, then a bad gateway, then a success.
async fn get_invoice(call: u32) -> Result<String, Failure> {
    let now = Clock::system().now();
    match call {
        1 => Err(Failure::http(429, Some("1"), now, "429 Too Many Requests")),
        2 => Err(Failure::http(502, None, now, "502 Bad Gateway")),
        _ => Ok("invoice 4711: 12.50 €".to_owned()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let manager = RetryManager::builder()
        .budget(BudgetConfig::new(0.1, 100, 1.0)?) // one retry per ten calls, a reserve of 100
        .build();
    let breaker = CircuitBreaker::new(BreakerConfig::default(), Clock::system());
    let policy = RetryPolicy::builder()
        .max_attempts(4)
        .base_delay(Duration::from_millis(100))
        .attempt_timeout(Duration::from_secs(2))
        .deadline(Duration::from_secs(30))
        .build()?;

    let invoice = manager
        .execute(&Category::ApiRequest, "Fetch invoice 4711")
        .policy(&policy)
        .breaker(&breaker)
        .run(|attempt| {
            println!("attempt {} of {}", attempt.number(), attempt.max_attempts());
            get_invoice(attempt.number())
        })
        .await?;
    println!("{invoice}");

    // A permanent error is not retried.
    let error: RetryError = manager
        .execute(&Category::ApiRequest, "Fetch invoice 0")
        .run(|_| async { Err::<(), _>(Failure::http(404, None, Clock::system().now(), "404 Not Found")) })
        .await
        .expect_err("there is no invoice 0");
    println!("{error}");
    Ok(())
}
