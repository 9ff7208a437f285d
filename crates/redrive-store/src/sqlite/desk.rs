//! Where the committer is to be had: for the writer's thread, batch by batch, or for a publisher who is alone.
//!
//! To wake another thread and to be woken by it takes a good part of the time of a sync. Who publishes alone therefore
//! commits on its own thread. Five things make that harmless: the last commit was brief, so this one will hold an async
//! thread up for less than a millisecond; the runtime has other threads, which go on meanwhile; there is one committer, so
//! only one thread is ever held up, even if the disk hangs; nobody else's transaction is waited for; and a checkpoint is
//! left to the writer's thread.

use std::sync::TryLockError;
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};

use super::batch::{BatchFailure, Command};
use super::committer::Committer;
use crate::error::StoreError;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The committer, and whether a publisher may use it.
#[derive(Debug)]
pub(super) struct Desk {
    /// None once the store is closed. A std mutex: whoever holds it does not await anything.
    committer: Mutex<Option<Committer>>,
    /// Whether one command after another came, each of them committed briefly.
    is_quiet: AtomicBool,
    /// Whether the thread has commands in its hands: then it is its turn.
    is_awaited: AtomicBool,
    /// A commit that takes longer is not for an async thread.
    brief: Duration,
}

impl Desk {
    pub(super) fn new(committer: Committer, brief: Duration) -> Self {
        Desk {
            committer: Mutex::new(Some(committer)),
            is_quiet: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            brief,
        }
    }

    /// A commit that takes longer is not for an async thread.
    pub(super) fn brief(&self) -> Duration {
        self.brief
    }

    /// For the writer's thread, which waits until it is free.
    pub(super) fn take(&self) -> MutexGuard<'_, Option<Committer>> {
        self.is_awaited.store(true, Ordering::Relaxed);
        let guard = match self.committer.lock() {
            Ok(guard) => guard,
            Err(poisoned) => {
                let mut guard = poisoned.into_inner();
                if let Some(committer) = guard.as_mut().filter(|committer| committer.stopped.is_none()) {
                    // In the middle of a transaction: nobody knows what is in it.
                    committer.stop(&BatchFailure::Unknown("a commit panicked".to_owned()));
                }
                guard
            }
        };
        self.is_awaited.store(false, Ordering::Relaxed);
        guard
    }

    /// Says whether the last batch was one brief command with nobody behind it.
    pub(super) fn is_quiet(&self, is_quiet: bool) {
        self.is_quiet.store(is_quiet, Ordering::Relaxed);
    }

    /// Carries a command out on the caller's thread, or gives it back.
    pub(super) fn at_once(&self, command: Command) -> Option<Command> {
        let is_free = self.is_quiet.load(Ordering::Relaxed) && !self.is_awaited.load(Ordering::Relaxed);
        if !is_free || !others_go_on() {
            return Some(command);
        }
        let mut committer = match self.committer.try_lock() {
            Ok(committer) => committer,
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => return Some(command),
        };
        let Some(committer) = committer.as_mut() else { return Some(command) };
        let began = Instant::now();
        let given_back = committer.at_once(command);
        if began.elapsed() >= self.brief {
            self.is_quiet(false);
        }
        given_back
    }

    /// Takes the committer away for good, and closes the file.
    pub(super) fn close(&self) -> Result<(), StoreError> {
        // Through `take`: a committer in whose hands a commit panicked writes nothing more, not even now.
        let committer = self.take().take();
        committer.map_or(Ok(()), Committer::close)
    }
}

/// Whether the caller's runtime has other threads.
fn others_go_on() -> bool {
    Handle::try_current().is_ok_and(|handle| {
        handle.runtime_flavor() == RuntimeFlavor::MultiThread && handle.metrics().num_workers() > 1
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is a failed test
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use redrive_retry::Timestamp;
    use tokio::sync::oneshot;

    use super::*;
    use crate::event::{EventId, EventType, Metadata, NewEvent, To};
    use crate::sqlite::batch::Reply;
    use crate::sqlite::{Durability, schema};
    use crate::store::Appended;

    pub(super) fn desk() -> Desk {
        let committer = Committer {
            connection: schema::open_writer(Path::new(":memory:"), Durability::Full).unwrap(),
            durability: Durability::Full,
            synced: true,
            sink: Arc::default(),
            due: Arc::new(crate::work::DueHint::new()),
            stopped: None,
            checkpoint: None,
        };
        let desk = Desk::new(committer, Duration::from_millis(1));
        desk.is_quiet(true);
        desk
    }

    pub(super) fn append() -> (Command, oneshot::Receiver<Result<Appended, crate::error::StoreError>>) {
        let now = Timestamp::from_millis(1_000);
        let event = NewEvent {
            id: EventId::new(),
            event_type: EventType::new("order.created").unwrap(),
            payload: Arc::from("{}"),
            metadata: Metadata::new(),
            created_at: now,
            due_at: now,
            retry: None,
            to: To::All,
        };
        let (reply, answer): (Reply<Appended>, _) = oneshot::channel();
        (Command::AppendOne { row: event.into(), reply }, answer)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_is_alone_is_answered_at_once() {
        let (command, mut answer) = append();
        assert!(desk().at_once(command).is_none());
        assert_eq!(answer.try_recv().unwrap().unwrap(), Appended::New);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_is_not_alone_is_sent_to_the_thread() {
        let desk = desk();
        let guard = desk.take();
        assert!(desk.at_once(append().0).is_some(), "the thread is at work");
        drop(guard);
        desk.is_quiet(false);
        assert!(desk.at_once(append().0).is_some(), "others came the last time");
        desk.is_quiet(true);
        desk.is_awaited.store(true, Ordering::Relaxed);
        assert!(desk.at_once(append().0).is_some(), "it is the thread's turn");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_runtime_is_never_held_up_as_a_whole() {
        assert!(desk().at_once(append().0).is_some());
    }

    #[test]
    fn nor_one_that_nobody_knows() {
        assert!(desk().at_once(append().0).is_some());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_written_after_a_panic() {
        let desk = Arc::new(desk());
        let held = Arc::clone(&desk);
        let panicked = std::thread::spawn(move || {
            let _committer = held.take();
            panic!("in the middle of a commit");
        });
        assert!(panicked.join().is_err());
        assert!(desk.at_once(append().0).is_some());
        let (command, mut answer) = append();
        desk.take().as_mut().unwrap().batch(&mut vec![command], |_| {});
        let error = answer.try_recv().unwrap().unwrap_err();
        assert!(error.to_string().contains("a commit panicked"), "{error}");
    }
}

/// Who comes first must not matter: `cargo test -p redrive-store --features shuttle interleavings`.
#[cfg(all(test, feature = "shuttle"))]
#[allow(clippy::unwrap_used)] // a panic is a failed test
mod interleavings {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use shuttle::sync::{Condvar, Mutex};
    use shuttle::thread;
    use tokio::sync::mpsc::error::TryRecvError;
    use tokio::sync::oneshot;

    use super::tests::{append, desk};
    use super::*;
    use crate::sqlite::rhythm::Queue;
    use crate::sqlite::writer;

    const ROUNDS: usize = 2_000;
    /// The engine needs more than a thread of the scheduler usually has.
    const STACK: usize = 1 << 20;

    fn try_out(scene: impl Fn() + Send + Sync + 'static) {
        // Publishers commit alone only on a runtime that has other threads.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let _entered = runtime.enter();
        let mut config = shuttle::Config::default();
        config.stack_size = STACK;
        let scheduler = shuttle::scheduler::RandomScheduler::new(ROUNDS);
        shuttle::Runner::new(scheduler, config).run(scene);
    }

    /// What the channel of the writer is otherwise.
    #[derive(Clone, Default)]
    struct Line(Arc<(Mutex<Waiting>, Condvar)>);

    #[derive(Default)]
    struct Waiting {
        commands: VecDeque<Command>,
        is_closed: bool,
    }

    impl Line {
        /// Dropped, and with it its reply, if nobody takes it any more.
        fn send(&self, command: Command) {
            let mut waiting = self.0.0.lock().unwrap();
            if !waiting.is_closed {
                waiting.commands.push_back(command);
            }
            self.0.1.notify_all();
        }

        /// What was sent is still taken.
        fn shut(&self) {
            self.0.0.lock().unwrap().is_closed = true;
            self.0.1.notify_all();
        }
    }

    impl Queue<Command> for Line {
        fn try_take(&mut self) -> Result<Command, TryRecvError> {
            let mut waiting = self.0.0.lock().unwrap();
            let is_closed = waiting.is_closed;
            waiting.commands.pop_front().ok_or(if is_closed {
                TryRecvError::Disconnected
            } else {
                TryRecvError::Empty
            })
        }

        fn wait_and_take(&mut self, commands: &mut Vec<Command>, most: usize) {
            let mut waiting = self.0.0.lock().unwrap();
            while waiting.commands.is_empty() && !waiting.is_closed {
                waiting = self.0.1.wait(waiting).unwrap();
            }
            let count = waiting.commands.len().min(most);
            commands.extend(waiting.commands.drain(..count));
        }

        fn waiting(&self) -> usize {
            self.0.0.lock().unwrap().commands.len()
        }

        fn close(&mut self) {
            self.shut();
            self.0.0.lock().unwrap().commands.clear();
        }
    }

    /// How a store is closed.
    #[derive(Copy, Clone, PartialEq, Eq)]
    enum Closing {
        /// When everybody has gone.
        AtTheEnd,
        /// By a command, while others publish.
        InBetween,
    }

    /// The writer's thread, publishers that come to the desk or send their command to it, and one that closes.
    fn scene(closing: Closing) {
        let (desk, line) = (Arc::new(desk()), Line::default());
        let of_thread = (Arc::clone(&desk), line.clone());
        let writer = thread::spawn(move || writer::run(&of_thread.0, of_thread.1));
        let publishers: Vec<_> = (0..2)
            .map(|_| {
                let (desk, line) = (Arc::clone(&desk), line.clone());
                thread::spawn(move || {
                    let mut answers = Vec::new();
                    for _ in 0..2 {
                        let (command, answer) = append();
                        if let Some(command) = desk.at_once(command) {
                            line.send(command);
                        }
                        answers.push(answer);
                    }
                    answers
                })
            })
            .collect();
        let (reply, mut closed) = oneshot::channel();
        if closing == Closing::InBetween {
            line.send(Command::Close { reply });
        }
        let answers: Vec<_> =
            publishers.into_iter().flat_map(|publisher| publisher.join().unwrap()).collect();
        line.shut();
        writer.join().unwrap();
        if closing == Closing::InBetween {
            closed.try_recv().unwrap().unwrap();
        }
        for mut answer in answers {
            match answer.try_recv() {
                Ok(Err(StoreError::Closed)) if closing == Closing::InBetween => {}
                Ok(answer) => assert_eq!(answer.unwrap(), crate::store::Appended::New),
                // Not answered, because there was no file any more: the caller is told that the store is closed.
                Err(error) => assert!(closing == Closing::InBetween, "{error}"),
            }
        }
        assert!(desk.take().is_none(), "the file is closed");
    }

    #[test]
    fn everybody_is_answered_whoever_commits() {
        try_out(|| scene(Closing::AtTheEnd));
    }

    #[test]
    fn closing_in_between_leaves_nobody_waiting() {
        try_out(|| scene(Closing::InBetween));
    }
}
