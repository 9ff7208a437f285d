//! What waits for whoever is free.
//!
//! Who became idle last is woken first. Where one is enough it is always the same, and its connection and the server's process
//! behind it stay warm. And nobody else is woken: a receiver that they pass on to each other wakes the next one with every command,
//! on another core.

use std::collections::VecDeque;
use std::fmt;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore};

pub(super) struct Queue<T> {
    /// A std mutex: held for a few moves.
    waiting: Mutex<Waiting<T>>,
    /// One for each that may still come in; who brings more waits.
    room: Semaphore,
    /// Those who have nothing to do.
    idle: Notify,
}

struct Waiting<T> {
    items: VecDeque<T>,
    is_shut: bool,
}

/// It takes nothing more in.
#[derive(Debug)]
pub(super) struct Shut;

impl<T> Queue<T> {
    pub(super) fn new(room: usize) -> Self {
        Queue {
            waiting: Mutex::new(Waiting { items: VecDeque::new(), is_shut: false }),
            room: Semaphore::new(room.max(1)),
            idle: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room.
    pub(super) async fn send(&self, item: T) -> Result<(), Shut> {
        let place = self.room.acquire().await.map_err(|_| Shut)?;
        {
            let mut waiting = self.lock();
            if waiting.is_shut {
                return Err(Shut);
            }
            waiting.items.push_back(item);
        }
        place.forget(); // until it is taken
        self.idle.notify_last();
        Ok(())
    }

    /// Waits until there is something, and takes it in the order in which it came. Nothing means that it is shut and empty.
    pub(super) async fn take(&self, most: usize) -> Vec<T> {
        loop {
            let mut woken = pin!(self.idle.notified());
            woken.as_mut().enable(); // so that nothing comes unheard between the look and the wait
            if let Some(taken) = self.look(most) {
                return taken;
            }
            woken.await;
        }
    }

    fn look(&self, most: usize) -> Option<Vec<T>> {
        let mut waiting = self.lock();
        if waiting.items.is_empty() && !waiting.is_shut {
            return None;
        }
        let count = waiting.items.len().min(most);
        let taken: Vec<T> = waiting.items.drain(..count).collect();
        drop(waiting);
        self.room.add_permits(count);
        Some(taken)
    }

    /// Takes nothing more in. What is there can still be taken.
    pub(super) fn shut(&self) {
        self.lock().is_shut = true;
        self.room.close();
        self.idle.notify_waiters();
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.lock();
        f.debug_struct("Queue")
            .field("waiting", &waiting.items.len())
            .field("is_shut", &waiting.is_shut)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::yield_now;

    use super::*;

    /// Everybody who can go on does; there is one thread.
    async fn settle() {
        for _ in 0..10 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn who_became_idle_last_is_woken_and_nobody_else() {
        let queue = Arc::new(Queue::new(10));
        let told = Arc::new(Mutex::new(Vec::new()));
        for name in ["first", "last"] {
            let (queue, told) = (Arc::clone(&queue), Arc::clone(&told));
            tokio::spawn(async move {
                loop {
                    let taken = queue.take(10).await;
                    if taken.is_empty() {
                        return;
                    }
                    told.lock().unwrap().push((name, taken));
                }
            });
            settle().await;
        }
        for item in [1, 2] {
            queue.send(item).await.unwrap();
            settle().await;
        }
        assert_eq!(*told.lock().unwrap(), [("last", vec![1]), ("last", vec![2])]);
    }

    #[tokio::test]
    async fn what_has_gathered_is_taken_at_once_but_no_more_than_wanted() {
        let queue = Queue::new(10);
        for item in 0..5 {
            queue.send(item).await.unwrap();
        }
        assert_eq!(queue.take(3).await, [0, 1, 2]);
        assert_eq!(queue.take(3).await, [3, 4]);
    }

    #[tokio::test]
    async fn who_brings_more_than_there_is_room_for_waits() {
        let queue = Arc::new(Queue::new(1));
        queue.send(1).await.unwrap();
        let more = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.send(2).await }
        });
        settle().await;
        assert!(!more.is_finished());
        assert_eq!(queue.take(10).await, [1]);
        assert_eq!(queue.take(10).await, [2]);
        more.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn shut_means_that_nothing_comes_in_and_all_that_is_there_goes_out() {
        let queue = Arc::new(Queue::new(1));
        queue.send(1).await.unwrap();
        let waits_for_room = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.send(2).await }
        });
        settle().await;
        queue.shut();
        assert!(waits_for_room.await.unwrap().is_err());
        assert!(queue.send(3).await.is_err());
        assert_eq!(queue.take(10).await, [1]);
        assert!(queue.take(10).await.is_empty());
    }

    #[tokio::test]
    async fn all_who_are_idle_hear_that_it_is_shut() {
        let queue = Arc::new(Queue::<u32>::new(1));
        let idle: Vec<_> = (0..3)
            .map(|_| {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move { queue.take(1).await })
            })
            .collect();
        settle().await;
        queue.shut();
        for taken in idle {
            assert!(taken.await.unwrap().is_empty());
        }
    }
}
