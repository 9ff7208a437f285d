//! One call of one handler, with its timeout, trace context and panic guard.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use redrive_retry::{Failure, RetryPolicy};
use redrive_store::Claimed;

use crate::core::Core;
use crate::event::{Event, Recorded};
use crate::handler::catch_panic;
use crate::lock::lock;
use crate::subscription::Subscription;
use crate::trace::CURRENT;

/// Calls a handler and returns its result, with what it recorded beside.
pub(super) async fn call_handler(
    core: &Core,
    claimed: &Claimed,
    subscription: &Subscription,
    policy: &RetryPolicy,
) -> (Result<(), Failure>, Recorded) {
    let recorded = Arc::default();
    let timeout =
        policy.attempt_timeout().map_or(subscription.timeout, |limit| limit.min(subscription.timeout));
    let event = Event {
        stored: Arc::clone(&claimed.event),
        subscription: subscription.name.clone(),
        attempt: claimed.attempt,
        errors: claimed.errors.clone(),
        max_attempts: policy.max_attempts(),
        deadline: core.clock.steady() + timeout,
        clock: core.clock.clone(),
        recorded: Arc::clone(&recorded),
    };
    let (context, began) = (event.trace_context(), Instant::now());
    // The handler is called inside the guarded future: a panic before its first await is caught as well.
    let handling = async {
        let handling = pin!(async move { subscription.handler.handle(event).await });
        let handling = catch_panic(handling);
        match context {
            // Events that the handler publishes join the trace.
            Some(context) => CURRENT.scope(context, handling).await,
            None => handling.await,
        }
    };
    let result = tokio::select! {
        biased;
        result = handling => result.flatten(),
        () = core.clock.sleep(timeout) => Err(Failure::timeout(timeout)),
    };
    let recorded = std::mem::take(&mut *lock(&recorded));
    if recorded.handover.is_none() {
        let took = began.elapsed();
        core.counters.handled(took);
        subscription.counters.handled(took);
    }
    (result, recorded)
}
