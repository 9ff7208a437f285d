//! Custom category, errors with a class, and a policy from configuration:
//! `cargo run -p redrive-examples --example custom_category`

#![allow(clippy::print_stdout)] // an example shows what it does

use redrive_retry::policy::Rules;
use redrive_retry::{Category, Classify, FailureClass, RetryManager, RetryPolicy};

#[derive(Debug, thiserror::Error)]
enum PaymentError {
    #[error("the card was declined")]
    Declined,
    #[error("the bank did not answer")]
    BankSilent,
}

impl Classify for PaymentError {
    fn class(&self) -> FailureClass {
        match self {
            PaymentError::Declined => FailureClass::Permanent,
            PaymentError::BankSilent => FailureClass::Timeout,
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Text of a configuration file; the field names of all specifications are accepted.
    let policy: RetryPolicy =
        serde_json::from_str(r#"{"max_attempts": 4, "base_delay": "50ms", "jitter": "20%"}"#)?;
    let policy = policy.to_builder().rules(Rules::new().classify::<PaymentError>()).build()?;

    let payment = Category::custom("RETRY_PAYMENT")?;
    let manager = RetryManager::builder().policy(payment.clone(), policy).build();

    let attempts = manager
        .execute(&payment, "charge card")
        .run(|attempt| async move {
            if attempt.number() < 3 { Err(PaymentError::BankSilent) } else { Ok(attempt.number()) }
        })
        .await?;
    println!("charged at attempt {attempts}");

    let error = manager
        .execute(&payment, "charge card")
        .run(|_| async { Err::<(), _>(PaymentError::Declined) })
        .await
        .expect_err("a declined card stays declined");
    println!("{error}"); // as the operation returned it, after one attempt
    Ok(())
}
