//! Pulls events for free slots, starts their handlers, and waits for them when the worker stops.

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::decision::Identity;
use redrive_retry::{Jitter, RetryPolicy};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::job;
use super::state::State;
use crate::client::{Error, Result};
use crate::problem::ProblemCode;
use crate::subscriptions::{LeasedEvent, MAX_LEASES, Pull};

/// Wait after the first failed pull, or an empty answer that came too soon; it doubles.
const FIRST_PULL_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Longest wait between failed pulls.
const MAX_PULL_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Time that a pull may take beyond its wait for an event.
const PULL_TIMEOUT: Duration = Duration::from_secs(15);

/// Time for the last acks after a stop has waited for its handlers.
const LAST_ACKS_TIMEOUT: Duration = Duration::from_secs(2);

/// Slots and settlements that one pull may use.
struct Permits {
    slots: OwnedSemaphorePermit,
    unsettled: OwnedSemaphorePermit,
}

/// Pulls and handles events until the worker is stopped, then waits for the handlers that it started.
pub(super) async fn pull_until_stopped(
    state: Arc<State>,
    slots: Arc<Semaphore>,
    unsettled: Arc<Semaphore>,
) -> Result<()> {
    let mut jobs = JoinSet::new();
    let result = pull_loop(&state, &slots, &unsettled, &mut jobs).await;
    if result.is_err() {
        state.stop();
    }
    drain(&state, jobs).await;
    result
}

async fn pull_loop(
    state: &Arc<State>,
    slots: &Arc<Semaphore>,
    unsettled: &Arc<Semaphore>,
    jobs: &mut JoinSet<()>,
) -> Result<()> {
    let backoff = RetryPolicy::builder()
        .base_delay(FIRST_PULL_RETRY_DELAY)
        .multiplier(2.0)
        .max_delay(MAX_PULL_RETRY_DELAY)
        .jitter(Jitter::Equal);
    let backoff = *backoff.build().expect("the constants are valid").backoff();
    // Workers that lost their server together must not come back together.
    let seed = Uuid::new_v4().as_u64_pair().0;
    let mut failures = 0;
    loop {
        while jobs.try_join_next().is_some() {}
        let permits = tokio::select! {
            biased;
            () = state.stopping() => return Ok(()),
            permits = free(slots, unsettled) => permits,
        };
        // A result that has arrived is taken before the stop is: its events are leased.
        let pulled = tokio::select! {
            biased;
            pulled = pull(state, permits.slots.num_permits()) => pulled,
            () = state.stopping() => return Ok(()),
        };
        let pause = match pulled {
            Ok(Pulled { events, is_empty_too_soon }) => {
                failures = 0;
                begin(state, events, permits, jobs);
                is_empty_too_soon.then_some(FIRST_PULL_RETRY_DELAY)
            }
            Err(error) if is_final(&error) => {
                tracing::error!(subscription = &*state.subscription, %error, "the worker stops");
                return Err(error);
            }
            Err(error) => {
                failures += 1;
                let identity = Identity::new(seed, "", "");
                let wait = backoff.delay(failures + 1, error.retry_after(), identity);
                tracing::warn!(subscription = &*state.subscription, %error, ?wait, "a pull failed");
                Some(wait)
            }
        };
        if let Some(pause) = pause {
            tokio::select! {
                () = state.stopping() => return Ok(()),
                () = state.client.clock().sleep(pause) => {}
            }
        }
    }
}

/// Waits for a free slot, and takes all free ones that one pull can fill.
async fn free(slots: &Arc<Semaphore>, unsettled: &Arc<Semaphore>) -> Permits {
    const OPEN: &str = "the semaphores are never closed";
    let mut taken = Arc::clone(slots).acquire_owned().await.expect(OPEN);
    for more in [slots.available_permits().min(MAX_LEASES - 1), 1] {
        // Another pull may have taken some of them.
        if let Ok(more) = Arc::clone(slots).try_acquire_many_owned(u32::try_from(more).unwrap_or(1)) {
            taken.merge(more);
            break;
        }
    }
    let count = u32::try_from(taken.num_permits()).unwrap_or(u32::MAX);
    let unsettled = Arc::clone(unsettled).acquire_many_owned(count).await.expect(OPEN);
    Permits { slots: taken, unsettled }
}

struct Pulled {
    events: Vec<LeasedEvent>,
    /// The answer was empty although there was time to wait.
    is_empty_too_soon: bool,
}

async fn pull(state: &State, max: usize) -> Result<Pulled> {
    let (clock, settings) = (state.client.clock(), &state.settings);
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).ok();
    let how = Pull { max: Some(max), wait_ms: millis(settings.wait), lease_ms: millis(settings.lease) };
    let (began, limit) = (clock.steady(), settings.wait + PULL_TIMEOUT);
    let events = tokio::select! {
        pulled = async { state.once.subscriptions().pull(&state.subscription, &how).await } => pulled?.data,
        () = clock.sleep(limit) => return Err(Error::TimedOut(limit)),
    };
    let is_empty_too_soon = events.is_empty() && clock.steady().since(began) < settings.wait / 2;
    Ok(Pulled { events, is_empty_too_soon })
}

/// Starts the handlers of pulled events; gives the events back if the worker stops.
fn begin(state: &Arc<State>, events: Vec<LeasedEvent>, mut permits: Permits, jobs: &mut JoinSet<()>) {
    for event in events {
        let state = Arc::clone(state);
        match (permits.slots.split(1), permits.unsettled.split(1)) {
            (Some(slot), Some(unsettled)) if !state.is_stopping() => {
                jobs.spawn(job::handle(state, event, slot, unsettled))
            }
            _ => jobs.spawn(job::release(state, event)),
        };
    }
}

/// Whether a repetition of the pull cannot help.
fn is_final(error: &Error) -> bool {
    use ProblemCode::{
        CrossOrigin, InvalidRequest, InvalidToken, MethodNotAllowed, MissingScope, NotFound, TokenRequired,
    };
    matches!(
        error.code(),
        CrossOrigin
            | InvalidRequest
            | InvalidToken
            | MethodNotAllowed
            | MissingScope
            | NotFound
            | TokenRequired
    )
}

/// Waits for running handlers and their acks; drops the futures of handlers that take too long, and releases their events.
async fn drain(state: &State, mut jobs: JoinSet<()>) {
    let clock = state.client.clock();
    let all = async |jobs: &mut JoinSet<()>| while jobs.join_next().await.is_some() {};
    tokio::select! {
        () = all(&mut jobs) => return,
        () = clock.sleep(state.settings.stop_timeout) => {
            tracing::warn!(subscription = &*state.subscription, "handlers still run: their events are released");
            state.abandon();
        }
    }
    tokio::select! {
        () = all(&mut jobs) => {}
        () = clock.sleep(LAST_ACKS_TIMEOUT) => {}
    }
}
