//! Runs an [`Execution`]: the fast path of a call that succeeds at once; every other call enters the retry loop of [`drive`].

use std::future::{Future, poll_fn, ready};
use std::pin::{Pin, pin};
use std::task::Poll;

use super::drive::drive;
use super::pause::Pause;
use super::{Attempt, Execution, IdempotentExecution, RetryError};
use crate::clock::Sleep;
use crate::failure::{BoxError, Failure};
use crate::idempotency::IdempotencyKey;

impl<'a> Execution<'a> {
    /// Makes the call idempotent: it runs at most once under this key, and later calls return the stored result.
    pub fn idempotent(self, key: IdempotencyKey) -> IdempotentExecution<'a> {
        IdempotentExecution::new(self, key)
    }

    /// Runs the operation until it succeeds or the policy allows no further attempt.
    ///
    /// Safe to cancel: dropping the future cancels the attempt in flight and frees a probe's slot.
    // Not an `async fn`: its future would hold every argument twice, as captured and as moved into its body.
    #[allow(clippy::manual_async_fn)]
    #[inline(always)] // builds the execution in place instead of copying it
    pub fn run<T, E, Op, Fut>(
        self,
        mut operation: Op,
    ) -> impl Future<Output = Result<T, RetryError>> + use<'a, T, E, Op, Fut>
    where
        Op: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Into<BoxError> + 'static,
    {
        async move {
            // The retry loop is boxed, to keep the future of a call that succeeds at once small.
            if self.call.breaker.is_some() | self.policy.deadline().is_some() {
                return out_of_line(self, operation).await;
            }
            // Fast path of a call that succeeds at once: no allocation, no copied name, and a clock read only for a time limit.
            let environment = self.environment;
            environment.count_first_attempt();
            let limit = self.policy.attempt_timeout();
            let deadline = limit.map(|limit| environment.clock.now() + limit);
            let first = {
                let mut first = pin!(operation(Attempt::new(1, self.policy, deadline, None)));
                let mut timer: Option<Pin<Box<Sleep>>> = None;
                poll_fn(|cx| {
                    if let Poll::Ready(result) = first.as_mut().poll(cx) {
                        return Poll::Ready(result.map_err(Failure::new));
                    }
                    let Some(limit) = limit else { return Poll::Pending };
                    // A timer exists only while the operation waits.
                    let timer = timer.get_or_insert_with(|| Box::pin(environment.clock.sleep(limit)));
                    timer.as_mut().poll(cx).map(|()| Err(Failure::timeout(limit)))
                })
                .await
            };
            match first {
                Ok(value) => {
                    environment.meter.count(self.category, 1, true);
                    Ok(value)
                }
                Err(failure) => Box::pin(drive(self, None, Pause::Async, operation, Some(failure))).await,
            }
        }
    }

    /// Runs a blocking operation until it succeeds or the policy allows no further attempt. Delays block the thread.
    ///
    /// A blocking operation cannot be cancelled: it should observe [`Attempt::deadline`].
    pub fn run_blocking<T, E, Op>(self, mut operation: Op) -> Result<T, RetryError>
    where
        Op: FnMut(Attempt) -> Result<T, E>,
        E: Into<BoxError> + 'static,
    {
        let operation = |attempt| ready(operation(attempt));
        pollster::block_on(drive(self, None, Pause::Blocking, operation, None))
    }
}

/// Boxes the retry loop outside of the fast path.
#[cold]
#[inline(never)]
fn out_of_line<'a, T, E, Op, Fut>(
    execution: Execution<'a>,
    operation: Op,
) -> Pin<Box<impl Future<Output = Result<T, RetryError>> + use<'a, T, E, Op, Fut>>>
where
    Op: FnMut(Attempt) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: Into<BoxError> + 'static,
{
    Box::pin(drive(execution, None, Pause::Async, operation, None))
}
