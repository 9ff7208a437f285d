#![doc = include_str!("docs.md")]

pub mod audit;
mod backoff;
pub mod breaker;
pub mod budget;
pub mod category;
mod class;
pub mod clock;
pub mod decision;
pub mod duration;
mod error_name;
mod failure;
#[doc(hidden)]
pub mod fault;
mod hex;
pub mod http;
pub mod idempotency;
mod identity;
#[doc(hidden)]
pub mod internal;
mod jitter;
mod macros;
pub mod manager;
pub mod policy;
mod ratio;
mod rules;
mod timestamp;

#[doc(inline)]
pub use category::Category;
pub use class::{Classify, FailureClass};
#[doc(inline)]
pub use clock::{Clock, VirtualTime};
pub use failure::{BoxError, ClassifyError, ClassifyResult, Failure};
#[doc(inline)]
pub use manager::{
    Attempt, Retry, RetryError, RetryErrorReason, RetryExt, RetryManager, get_retry_manager,
    set_retry_manager,
};
#[doc(inline)]
pub use policy::{Jitter, RetryOverride, RetryPolicy};
pub use timestamp::Timestamp;
