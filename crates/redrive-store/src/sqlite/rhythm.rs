//! When to begin a batch: how long to wait for more, and how much to take.
//!
//! Whoever was answered together comes back together, but not at the same instant. Three cases:
//!
//! - One publisher after its own answer: it is back within the time that waking this thread takes, so the thread stays
//!   awake a moment instead of going to sleep.
//! - A few at once: without a moment's patience the first one back gets a sync of its own, and the others wait for it.
//!   (The same idea as PostgreSQL's `commit_delay`.) What is there already is carried out meanwhile.
//! - Many at once: only half of them are taken, so that the other half prepares the next batch meanwhile.

use std::time::{Duration, Instant};

use tokio::sync::mpsc::Receiver;
use tokio::sync::mpsc::error::TryRecvError;

/// The most commands in one transaction.
pub(super) const BATCH: usize = 1024;

/// From how many on half of them is enough to make a sync worth its while.
const MANY: usize = 128;

/// So many are worth carrying out while the rest is still to come.
const FEW: usize = 8;

/// Who comes back within this time is waited for without going to sleep.
const BACK_SOON: Duration = Duration::from_micros(150);

/// Nobody waits longer than this for others.
const LONGEST: Duration = Duration::from_millis(2);

/// So many that are no hurry are worth a transaction, and so long is slept before it is looked whether they are there.
const ENOUGH: usize = 64;
const NAP: Duration = Duration::from_micros(200);

/// Where commands come from: the channel, or in tests one of a scheduler that tries out who comes first.
pub(super) trait Queue<T> {
    /// One that is there already.
    fn try_take(&mut self) -> Result<T, TryRecvError>;
    /// Waits until something is there, and takes up to so many. Takes nothing when nobody can send any more.
    fn wait_and_take(&mut self, commands: &mut Vec<T>, most: usize);
    /// How many are there.
    fn waiting(&self) -> usize;
    /// Nobody can send any more.
    fn close(&mut self);
}

impl<T> Queue<T> for Receiver<T> {
    fn try_take(&mut self) -> Result<T, TryRecvError> {
        self.try_recv()
    }

    fn wait_and_take(&mut self, commands: &mut Vec<T>, most: usize) {
        self.blocking_recv_many(commands, most);
    }

    fn waiting(&self) -> usize {
        self.len()
    }

    fn close(&mut self) {
        Receiver::close(self);
    }
}

/// How the last batch went.
#[derive(Debug)]
pub(super) struct Rhythm {
    /// How many commands it had.
    size: usize,
    /// How many there were in all: in the batch, and waiting when it was over.
    present: usize,
    began: Instant,
    took: Duration,
    ended: Instant,
    /// How long the next command took to come.
    pause: Duration,
    /// What takes less is brief.
    brief: Duration,
}

impl Rhythm {
    pub(super) fn new(brief: Duration) -> Self {
        let now = Instant::now();
        Rhythm {
            size: 0,
            present: 0,
            began: now,
            took: Duration::ZERO,
            ended: now,
            pause: Duration::MAX,
            brief,
        }
    }

    /// Fills `commands` with what the next batch begins with; leaves it empty when nobody can send any more.
    pub(super) fn begin<T>(&mut self, queue: &mut impl Queue<T>, commands: &mut Vec<T>) {
        let wanted = if self.is_crowded() { (self.present / 2).min(BATCH) } else { BATCH };
        if self.pause <= BACK_SOON {
            poll(queue, commands, 1, BACK_SOON.saturating_sub(self.ended.elapsed()));
        }
        if commands.len() < wanted && (commands.is_empty() || queue.waiting() > 0) {
            queue.wait_and_take(commands, wanted - commands.len());
        }
        self.began = Instant::now();
        self.pause = self.began.saturating_duration_since(self.ended);
        self.size = commands.len();
    }

    /// Waits for more where nobody is in a hurry and many come: what they change is then written once for all of them. Whoever is in
    /// a hurry ends it.
    pub(super) fn linger<T>(
        &mut self,
        queue: &mut impl Queue<T>,
        commands: &mut Vec<T>,
        is_hurry: impl Fn(&T) -> bool,
    ) {
        let began = Instant::now();
        while self.present >= FEW && commands.len() < ENOUGH && began.elapsed() < LONGEST {
            if commands.iter().any(&is_hurry) {
                break;
            }
            std::thread::sleep(NAP);
            while let Ok(command) = queue.try_take() {
                commands.push(command);
            }
        }
        self.began = Instant::now();
        self.size = commands.len();
    }

    /// Fills `commands` with what has come since and still belongs to this batch; leaves it empty if that is all.
    pub(super) fn go_on<T>(&mut self, queue: &mut impl Queue<T>, commands: &mut Vec<T>) {
        if self.size < self.present && !self.is_crowded() {
            let missing = self.present - self.size;
            let patience = (self.took / 2).min(LONGEST).saturating_sub(self.began.elapsed());
            poll(queue, commands, missing.min(FEW), patience);
            if commands.len() < missing && queue.waiting() > 0 {
                queue.wait_and_take(commands, missing - commands.len());
            }
            self.size += commands.len();
        }
    }

    /// Whether many are there at once.
    pub(super) fn is_crowded(&self) -> bool {
        self.present >= MANY
    }

    /// Whether one command came alone, and was done with briefly.
    pub(super) fn is_quiet(&self) -> bool {
        self.present <= 1 && self.took < self.brief
    }

    /// The batch is over.
    pub(super) fn end<T>(&mut self, queue: &impl Queue<T>) {
        self.ended = Instant::now();
        self.took = self.ended.saturating_duration_since(self.began);
        self.present = self.size + queue.waiting();
    }
}

/// Takes what comes until there are `enough`, giving the processor to others meanwhile.
fn poll<T>(queue: &mut impl Queue<T>, commands: &mut Vec<T>, enough: usize, patience: Duration) {
    let began = Instant::now();
    while commands.len() < enough {
        match queue.try_take() {
            Ok(command) => commands.push(command),
            Err(TryRecvError::Empty) if began.elapsed() < patience => std::thread::yield_now(),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
        }
    }
}
