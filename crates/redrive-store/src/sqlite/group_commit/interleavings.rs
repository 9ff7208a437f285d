//! Explores thread interleavings of inline commit, writer thread and close: `cargo test -p redrive-store --features shuttle interleavings`.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::VecDeque;
use std::sync::Arc;

use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::oneshot;

use super::tests::{append, commit_lock};
use super::*;
use crate::sqlite::writer::{self, Queue};

const SCHEDULES: usize = 2_000;
/// SQLite needs more stack than a shuttle thread has by default.
const STACK_BYTES: usize = 1 << 20;

fn explore(scene: impl Fn() + Send + Sync + 'static) {
    // Publishers commit inline only on a runtime with other threads.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let _entered = runtime.enter();
    let mut config = shuttle::Config::default();
    config.stack_size = STACK_BYTES;
    let scheduler = shuttle::scheduler::RandomScheduler::new(SCHEDULES);
    shuttle::Runner::new(scheduler, config).run(scene);
}

/// Stands for the channel to the writer.
#[derive(Clone, Default)]
struct TestQueue(Arc<(Mutex<Waiting>, Condvar)>);

#[derive(Default)]
struct Waiting {
    commands: VecDeque<Command>,
    is_closed: bool,
}

impl TestQueue {
    /// Drops the command and its reply if the queue is closed.
    fn send(&self, command: Command) {
        let mut waiting = self.0.0.lock().unwrap();
        if !waiting.is_closed {
            waiting.commands.push_back(command);
        }
        self.0.1.notify_all();
    }

    /// Refuses new commands; the queued ones stay.
    fn shut(&self) {
        self.0.0.lock().unwrap().is_closed = true;
        self.0.1.notify_all();
    }
}

impl Queue<Command> for TestQueue {
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

/// When the store is closed.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Closing {
    /// After the last publish.
    AtTheEnd,
    /// By a command, while publishers run.
    InBetween,
}

/// Runs the writer's thread, two publishers that commit inline or send their command, and a close.
fn scene(closing: Closing) {
    let (lock, queue) = (Arc::new(commit_lock()), TestQueue::default());
    let of_thread = (Arc::clone(&lock), queue.clone());
    let writer =
        thread::spawn(move || writer::run(&of_thread.0, of_thread.1, &redrive_retry::Clock::system()));
    let publishers: Vec<_> = (0..2)
        .map(|_| {
            let (lock, queue) = (Arc::clone(&lock), queue.clone());
            thread::spawn(move || {
                let mut answers = Vec::new();
                for _ in 0..2 {
                    let (command, answer) = append();
                    if let Some(command) = lock.try_commit_inline(command) {
                        queue.send(command);
                    }
                    answers.push(answer);
                }
                answers
            })
        })
        .collect();
    let (reply, mut closed) = oneshot::channel();
    if closing == Closing::InBetween {
        queue.send(Command::Close { reply });
    }
    let answers: Vec<_> = publishers.into_iter().flat_map(|publisher| publisher.join().unwrap()).collect();
    queue.shut();
    writer.join().unwrap();
    if closing == Closing::InBetween {
        closed.try_recv().unwrap().unwrap();
    }
    for mut answer in answers {
        match answer.try_recv() {
            Ok(Err(StoreError::Closed)) if closing == Closing::InBetween => {}
            Ok(answer) => assert_eq!(answer.unwrap(), crate::store::Appended::New),
            // The reply was dropped with the closed queue; the caller gets `Closed`.
            Err(error) => assert!(closing == Closing::InBetween, "{error}"),
        }
    }
    assert!(lock.acquire().is_none(), "the file is closed");
}

#[test]
fn every_publisher_gets_a_reply_in_every_interleaving() {
    explore(|| scene(Closing::AtTheEnd));
}

#[test]
fn closing_while_publishing_leaves_no_caller_waiting() {
    explore(|| scene(Closing::InBetween));
}
