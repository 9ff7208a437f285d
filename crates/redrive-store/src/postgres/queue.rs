//! Bounded queue for several consumers that wakes the consumer that became idle last.
//!
//! Under light load the same consumer takes every item, so its connection and the server's backend stay warm, and no other
//! consumer is woken. A channel behind a mutex would wake the next consumer, on another core, for every item.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, Semaphore, SemaphorePermit, TryAcquireError};
use tokio::task::JoinHandle;

use super::lock;
use crate::error::StoreError;

/// Bounded queue for several consumers.
pub(super) struct Queue<T> {
    /// A std mutex: held for a few moves.
    waiting: Mutex<Waiting<T>>,
    /// Free capacity. Senders wait for it.
    free: Semaphore,
    /// Wakes idle consumers.
    idle: Notify,
}

struct Waiting<T> {
    items: VecDeque<T>,
    is_shut: bool,
}

impl<T> Queue<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Queue {
            waiting: Mutex::new(Waiting { items: VecDeque::new(), is_shut: false }),
            free: Semaphore::new(capacity.max(1)),
            idle: Notify::new(),
        }
    }

    /// Adds an item. Waits while the queue is full.
    pub(super) async fn send(&self, item: T) -> Result<(), StoreError> {
        let permit = self.free.acquire().await.map_err(|_| StoreError::Closed)?;
        self.push(item, permit)
    }

    /// Adds an item. Fails with [`StoreError::Busy`] if the queue is full.
    pub(super) fn try_send(&self, item: T) -> Result<(), StoreError> {
        let permit = self.free.try_acquire().map_err(|error| match error {
            TryAcquireError::NoPermits => StoreError::Busy,
            TryAcquireError::Closed => StoreError::Closed,
        })?;
        self.push(item, permit)
    }

    fn push(&self, item: T, permit: SemaphorePermit<'_>) -> Result<(), StoreError> {
        {
            let mut waiting = lock(&self.waiting);
            if waiting.is_shut {
                return Err(StoreError::Closed);
            }
            waiting.items.push_back(item);
        }
        permit.forget(); // until the item is taken
        self.idle.notify_last();
        Ok(())
    }

    /// Waits for items and takes up to `max` of them, oldest first. Returns none if the queue is shut and empty.
    pub(super) async fn take(&self, max: usize) -> Vec<T> {
        loop {
            let mut woken = pin!(self.idle.notified());
            woken.as_mut().enable(); // before the check, so that no wakeup is lost
            if let Some(taken) = self.try_take(max) {
                return taken;
            }
            woken.await;
        }
    }

    fn try_take(&self, max: usize) -> Option<Vec<T>> {
        let mut waiting = lock(&self.waiting);
        if waiting.items.is_empty() && !waiting.is_shut {
            return None;
        }
        let count = waiting.items.len().min(max);
        let taken: Vec<T> = waiting.items.drain(..count).collect();
        drop(waiting);
        self.free.add_permits(count);
        Some(taken)
    }

    /// Refuses new items. Queued items can still be taken.
    pub(super) fn shut(&self) {
        lock(&self.waiting).is_shut = true;
        self.free.close();
        self.idle.notify_waiters();
    }

    pub(super) fn is_shut(&self) -> bool {
        self.free.is_closed()
    }
}

/// A queue and the tasks that drain it.
pub(super) struct Workers<T> {
    pub(super) queue: Arc<Queue<T>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl<T> Workers<T> {
    /// Spawns `count` tasks, each of which runs until the queue is shut and empty.
    pub(super) fn start<R>(count: usize, capacity: usize, run: impl Fn(Arc<Queue<T>>) -> R) -> Self
    where
        R: Future<Output = ()> + Send + 'static,
    {
        let queue = Arc::new(Queue::new(capacity));
        let tasks = (0..count.max(1)).map(|_| tokio::spawn(run(Arc::clone(&queue)))).collect();
        Workers { queue, tasks: Mutex::new(tasks) }
    }

    /// Refuses new items, and waits until the queued ones are done.
    pub(super) async fn finish(&self) {
        self.queue.shut();
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        for task in tasks {
            let _ = task.await; // the panic hook reports a panic
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    /// Lets all tasks that are ready run; there is one thread.
    async fn run_ready_tasks() {
        for _ in 0..10 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn only_the_consumer_that_became_idle_last_is_woken() {
        let queue = Arc::new(Queue::new(10));
        let taken_by = Arc::new(Mutex::new(Vec::new()));
        for name in ["first", "last"] {
            let (queue, taken_by) = (Arc::clone(&queue), Arc::clone(&taken_by));
            tokio::spawn(async move {
                loop {
                    let taken = queue.take(10).await;
                    if taken.is_empty() {
                        return;
                    }
                    taken_by.lock().unwrap().push((name, taken));
                }
            });
            run_ready_tasks().await;
        }
        for item in [1, 2] {
            queue.send(item).await.unwrap();
            run_ready_tasks().await;
        }
        assert_eq!(*taken_by.lock().unwrap(), [("last", vec![1]), ("last", vec![2])]);
    }

    #[tokio::test]
    async fn take_returns_all_queued_items_up_to_its_maximum() {
        let queue = Queue::new(10);
        for item in 0..5 {
            queue.send(item).await.unwrap();
        }
        assert_eq!(queue.take(3).await, [0, 1, 2]);
        assert_eq!(queue.take(3).await, [3, 4]);
    }

    #[tokio::test]
    async fn send_waits_while_the_queue_is_full() {
        let queue = Arc::new(Queue::new(1));
        queue.send(1).await.unwrap();
        let more = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.send(2).await }
        });
        run_ready_tasks().await;
        assert!(!more.is_finished());
        assert_eq!(queue.take(10).await, [1]);
        assert_eq!(queue.take(10).await, [2]);
        more.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_shut_queue_refuses_new_items_and_returns_queued_ones() {
        let queue = Arc::new(Queue::new(1));
        queue.send(1).await.unwrap();
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.send(2).await }
        });
        run_ready_tasks().await;
        queue.shut();
        assert!(waiting.await.unwrap().is_err());
        assert!(queue.send(3).await.is_err());
        assert_eq!(queue.take(10).await, [1]);
        assert!(queue.take(10).await.is_empty());
    }

    #[tokio::test]
    async fn shutting_the_queue_wakes_all_idle_consumers() {
        let queue = Arc::new(Queue::<u32>::new(1));
        let idle: Vec<_> = (0..3)
            .map(|_| {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move { queue.take(1).await })
            })
            .collect();
        run_ready_tasks().await;
        queue.shut();
        for taken in idle {
            assert!(taken.await.unwrap().is_empty());
        }
    }
}
