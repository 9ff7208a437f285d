//! The names of most programs, for `use redrive::prelude::*`.

pub use crate::payload::EventPayload;
pub use crate::retry::{BoxError, ClassifyError, ClassifyResult, RetryOverride, RetryPolicy};
pub use crate::{
    BusError, Event, EventBus, EventId, EventType, HandlerResult, Limits, Snooze, SubscriptionHandle,
    Tracking,
};
