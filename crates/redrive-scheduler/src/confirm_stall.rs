//! Bounds publications in flight per queue, so that a queue without publisher confirms does not block other queues.
//!
//! A queue that has lost most of its replicas confirms nothing. Each queue gets a share of the in-flight limit; further tasks of the
//! queue wait for a permit. While confirms arrive, the wait is short. Once the queue stalls, waiting tasks fail fast and are snoozed,
//! so that they do not occupy in-flight slots.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A queue stalls when the broker has answered nothing about it for this long.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);

/// One queue may use a quarter of the in-flight limit.
const QUEUE_SHARE: usize = 4;

/// Publications in flight, by queue.
#[derive(Debug)]
pub(crate) struct ConfirmStall {
    max_per_queue: usize,
    // A std mutex: held for a few instructions, never across an await.
    queues: Mutex<HashMap<String, Queue>>,
}

#[derive(Debug)]
struct Queue {
    permits: Arc<Semaphore>,
    /// Tasks that wait for a permit or have one. At 0 the entry is removed: queue names are unbounded.
    count: usize,
    /// Time of the last answer of the broker about this queue.
    last_answer: Instant,
    is_logged: bool,
}

/// Right to publish one message to a queue, until it is dropped.
#[derive(Debug)]
pub(crate) struct PublishPermit<'a> {
    stall: &'a ConfirmStall,
    queue: &'a str,
    permit: Option<OwnedSemaphorePermit>,
}

impl ConfirmStall {
    /// Takes the in-flight limit over all queues.
    pub(crate) fn new(in_flight: usize) -> Self {
        ConfirmStall { max_per_queue: (in_flight / QUEUE_SHARE).max(1), queues: Mutex::default() }
    }

    /// Waits for a permit. Fails with the time since the last answer if the queue is stalled. While `is_blocked` (the broker blocks
    /// all publishers, so no queue gets confirms) it keeps waiting.
    pub(crate) async fn acquire<'a>(
        &'a self,
        queue: &'a str,
        is_blocked: impl Fn() -> bool,
    ) -> Result<PublishPermit<'a>, Duration> {
        let (mut permit, permits) = self.enter(queue);
        loop {
            let left = STALL_TIMEOUT.saturating_sub(self.stalled_for(queue));
            let acquired = tokio::time::timeout(left, Arc::clone(&permits).acquire_owned()).await;
            if let Ok(acquired) = acquired {
                permit.permit = acquired.ok(); // the semaphore is never closed
                return Ok(permit);
            }
            let stalled = self.stalled_for(queue);
            if stalled >= STALL_TIMEOUT {
                if !is_blocked() {
                    self.log_once(queue, stalled);
                    return Err(stalled);
                }
                tokio::time::sleep(STALL_TIMEOUT).await;
            }
        }
    }

    fn enter<'a>(&'a self, queue: &'a str) -> (PublishPermit<'a>, Arc<Semaphore>) {
        let mut queues = self.lock();
        let entry = queues.entry(queue.to_owned()).or_insert_with(|| Queue {
            permits: Arc::new(Semaphore::new(self.max_per_queue)),
            count: 0,
            last_answer: Instant::now(),
            is_logged: false,
        });
        entry.count += 1;
        (PublishPermit { stall: self, queue, permit: None }, Arc::clone(&entry.permits))
    }

    /// Logs a stall once, until the broker answers again.
    fn log_once(&self, queue: &str, stalled: Duration) {
        let is_logged =
            self.lock().get_mut(queue).is_none_or(|entry| std::mem::replace(&mut entry.is_logged, true));
        if !is_logged {
            tracing::error!(
                target: "redrive::scheduler", queue, stalled_ms = u64::try_from(stalled.as_millis()).unwrap_or(u64::MAX),
                "the broker confirms nothing published to this queue; further messages for it are snoozed. Check the queue"
            );
        }
    }

    fn stalled_for(&self, queue: &str) -> Duration {
        self.lock().get(queue).map_or(Duration::ZERO, |queue| queue.last_answer.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Queue>> {
        // Every change leaves the map valid, so a poisoned lock is still usable.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PublishPermit<'_> {
    /// Notes that the broker answered (confirm, return or refusal), and releases the permit.
    pub(crate) fn answered(self) {
        if let Some(queue) = self.stall.lock().get_mut(self.queue) {
            queue.last_answer = Instant::now();
            queue.is_logged = false;
        }
    }
}

impl Drop for PublishPermit<'_> {
    fn drop(&mut self) {
        let mut queues = self.stall.lock();
        if let Some(queue) = queues.get_mut(self.queue) {
            queue.count -= 1;
            if queue.count == 0 {
                queues.remove(self.queue);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: fn() -> bool = || false;

    #[tokio::test(start_paused = true)]
    async fn a_stalled_queue_uses_its_share_and_further_tasks_fail_fast() {
        let stall = ConfirmStall::new(8);
        let mut sent =
            vec![stall.acquire("a", NEVER).await.unwrap(), stall.acquire("a", NEVER).await.unwrap()];
        let began = Instant::now();
        assert_eq!(stall.acquire("a", NEVER).await.unwrap_err(), STALL_TIMEOUT);
        assert_eq!(began.elapsed(), STALL_TIMEOUT);
        // From now on tasks of this queue fail at once; other queues are not affected.
        assert!(stall.acquire("a", NEVER).await.is_err());
        let other = stall.acquire("b", NEVER).await.unwrap();
        assert_eq!(began.elapsed(), STALL_TIMEOUT);
        // One answer ends the stall of the queue.
        sent.pop().unwrap().answered();
        sent.push(stall.acquire("a", NEVER).await.unwrap());
        assert_eq!(began.elapsed(), STALL_TIMEOUT);
        drop((sent, other));
        assert!(stall.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_wait_for_a_permit_while_confirms_arrive() {
        let stall = ConfirmStall::new(4);
        let sent = stall.acquire("a", NEVER).await.unwrap();
        let one_by_one = async {
            let mut sent = sent;
            for _ in 0..20 {
                tokio::time::sleep(STALL_TIMEOUT * 9 / 10).await;
                sent.answered();
                sent = stall.acquire("a", NEVER).await.unwrap();
            }
            sent.answered();
        };
        let waits = async {
            for _ in 0..3 {
                stall.acquire("a", NEVER).await.unwrap().answered();
            }
        };
        tokio::join!(one_by_one, waits);
        assert!(stall.lock().is_empty());
    }

    /// A broker that is short of memory or disk.
    #[tokio::test(start_paused = true)]
    async fn tasks_wait_while_the_broker_blocks_publishers() {
        let stall = ConfirmStall::new(4);
        let began = Instant::now();
        let sent = stall.acquire("a", NEVER).await.unwrap();
        let is_blocked = || began.elapsed() < Duration::from_secs(600);
        let answers = async {
            tokio::time::sleep(Duration::from_secs(300)).await;
            sent.answered();
        };
        let (waited, ()) = tokio::join!(stall.acquire("a", is_blocked), answers);
        assert!(waited.is_ok());
    }
}
