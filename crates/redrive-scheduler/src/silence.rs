//! Queues of which the broker confirms nothing, such as one that has lost most of its replicas: they may not hold up the others.
//!
//! To one queue only a part of what may be under way at once is sent, and the rest of what is due for it waits its turn. As long as the
//! broker answers, that turn comes soon. If it does not, whoever waits gives up, so that the places are there for others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A queue is silent if for so long nothing was heard of what went to it.
const SILENT: Duration = Duration::from_secs(1);

/// To one queue one of so many may be under way.
const SHARE: usize = 4;

/// Who is under way to which queue.
#[derive(Debug)]
pub(crate) struct Silence {
    /// So many may be under way to one queue.
    most: usize,
    // A std mutex: held for a few instructions, never across an await.
    queues: Mutex<HashMap<String, Queue>>,
}

#[derive(Debug)]
struct Queue {
    turns: Arc<Semaphore>,
    /// How many wait for their turn or are under way: nothing is remembered of a queue with none, as there may be any number of names.
    count: usize,
    /// Since when nothing was heard.
    since: Instant,
    /// Whether that was said.
    is_said: bool,
}

/// One that may be sent. It counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    silence: &'a Silence,
    queue: &'a str,
    permit: Option<OwnedSemaphorePermit>,
}

impl Silence {
    /// Where so many may be under way at once.
    pub(crate) fn new(in_flight: usize) -> Self {
        Silence { most: (in_flight / SHARE).max(1), queues: Mutex::default() }
    }

    /// Waits for a turn; or says for how long the queue has been silent. Where all queues are silent for a reason that is known,
    /// it is waited for as long as that lasts.
    pub(crate) async fn turn<'a>(
        &'a self,
        queue: &'a str,
        is_excused: impl Fn() -> bool,
    ) -> Result<Turn<'a>, Duration> {
        let (mut turn, turns) = self.come(queue);
        loop {
            let left = SILENT.saturating_sub(self.silent_for(queue));
            let acquired = tokio::time::timeout(left, Arc::clone(&turns).acquire_owned()).await;
            if let Ok(permit) = acquired {
                turn.permit = permit.ok(); // nobody closes it
                return Ok(turn);
            }
            let silent = self.silent_for(queue);
            if silent >= SILENT {
                if !is_excused() {
                    self.say(queue, silent);
                    return Err(silent);
                }
                tokio::time::sleep(SILENT).await;
            }
        }
    }

    fn come<'a>(&'a self, queue: &'a str) -> (Turn<'a>, Arc<Semaphore>) {
        let mut queues = self.lock();
        if !queues.contains_key(queue) {
            let turns = Arc::new(Semaphore::new(self.most));
            queues.insert(queue.to_owned(), Queue { turns, count: 0, since: Instant::now(), is_said: false });
        }
        let known = queues.get_mut(queue).expect("it is there now");
        known.count += 1;
        (Turn { silence: self, queue, permit: None }, Arc::clone(&known.turns))
    }

    /// Once, until something is heard.
    fn say(&self, queue: &str, silent: Duration) {
        let is_said =
            self.lock().get_mut(queue).is_none_or(|known| std::mem::replace(&mut known.is_said, true));
        if !is_said {
            tracing::error!(
                target: "redrive::scheduler", queue, silent_ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
                "the broker confirms nothing that goes to this queue, and enough waits for that: the rest is put off. Look at the queue"
            );
        }
    }

    fn silent_for(&self, queue: &str) -> Duration {
        self.lock().get(queue).map_or(Duration::ZERO, |queue| queue.since.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Queue>> {
        // Every change leaves it valid, so a poisoned lock is still good to use.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// The broker has said something about this queue, whatever it was.
    pub(crate) fn answered(self) {
        if let Some(queue) = self.silence.lock().get_mut(self.queue) {
            queue.since = Instant::now();
            queue.is_said = false;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queues = self.silence.lock();
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
    async fn a_silent_queue_has_its_share_and_whoever_waits_for_it_gives_up() {
        let silence = Silence::new(8);
        let mut sent = vec![silence.turn("a", NEVER).await.unwrap(), silence.turn("a", NEVER).await.unwrap()];
        let began = Instant::now();
        assert_eq!(silence.turn("a", NEVER).await.unwrap_err(), SILENT);
        assert_eq!(began.elapsed(), SILENT);
        // From now on they do not wait at all, and others have nothing to do with it.
        assert!(silence.turn("a", NEVER).await.is_err());
        let other = silence.turn("b", NEVER).await.unwrap();
        assert_eq!(began.elapsed(), SILENT);
        // An answer for one is an answer for its queue.
        sent.pop().unwrap().answered();
        sent.push(silence.turn("a", NEVER).await.unwrap());
        assert_eq!(began.elapsed(), SILENT);
        drop((sent, other));
        assert!(silence.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn as_long_as_answers_come_everybody_waits_for_a_turn() {
        let silence = Silence::new(4);
        let sent = silence.turn("a", NEVER).await.unwrap();
        let one_by_one = async {
            let mut sent = sent;
            for _ in 0..20 {
                tokio::time::sleep(SILENT * 9 / 10).await;
                sent.answered();
                sent = silence.turn("a", NEVER).await.unwrap();
            }
            sent.answered();
        };
        let waits = async {
            for _ in 0..3 {
                silence.turn("a", NEVER).await.unwrap().answered();
            }
        };
        tokio::join!(one_by_one, waits);
        assert!(silence.lock().is_empty());
    }

    /// Such as a broker that is short of memory.
    #[tokio::test(start_paused = true)]
    async fn who_is_excused_is_waited_for() {
        let silence = Silence::new(4);
        let began = Instant::now();
        let sent = silence.turn("a", NEVER).await.unwrap();
        let excused = || began.elapsed() < Duration::from_secs(600);
        let answers = async {
            tokio::time::sleep(Duration::from_secs(300)).await;
            sent.answered();
        };
        let (waited, ()) = tokio::join!(silence.turn("a", excused), answers);
        assert!(waited.is_ok());
    }
}
