#![doc = include_str!("../README.md")]

pub mod audit;
mod backoff;
mod breaker;
mod budget;
mod category;
mod class;
mod clock;
mod decision;
mod failure;
mod hex;
pub mod http;
mod human_duration;
pub mod idempotency;
mod identity;
mod jitter;
mod manager;
#[doc(hidden)]
pub mod planted;
mod policy;
mod ratio;
mod record;
mod rules;
pub mod simulation;
mod timestamp;

pub use backoff::{Backoff, DelayRange};
pub use breaker::{
    Admission, Breaker, BreakerConfig, BreakerError, BreakerPermit, BreakerSnapshot, CallCounts,
    CircuitState, PooledAdmission, PooledBreaker, Refused, SharedBreaker,
};
pub use budget::{BudgetConfig, BudgetError, BudgetPart, BudgetShare, BudgetSnapshot, RetryBudget};
pub use category::{Category, CategoryError, CustomCategory};
pub use class::{Classify, FailureClass};
pub use clock::{Busy, Clock, Sleep, VirtualTime};
pub use decision::{DeadReason, Decision, Outcome, ParkReason, RetryReason, Situation, decide};
pub use failure::{BoxError, ClassifyError, ClassifyResult, Failure};
pub use human_duration::{DurationError, format_duration, parse_duration};
pub use identity::Identity;
pub use jitter::Jitter;
pub use manager::{
    Attempt, Execution, IdempotentExecution, OnConflict, RetryError, RetryErrorReason, RetryManager,
    RetryManagerBuilder,
};
pub use policy::{PolicyError, RetryOverride, RetryPolicy, RetryPolicyBuilder};
pub use ratio::{Ratio, RatioError};
pub use record::{DecisionRecord, Discrepancy, RECORD_VERSION};
pub use rules::{ErrorRule, RuleError, Rules};
pub use timestamp::Timestamp;
