//! The open transaction: replies and claims that wait for its commit, its savepoints, and the reasons of its failure.

use std::sync::Arc;
use std::time::Instant;

use redrive_retry::Timestamp;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::sql::event_row::EventRow as Row;
use crate::store::{Appended, Finished};
use crate::work::{ClaimKey, ClaimSink, Claimed, Settlement, Slot};

/// The channel of the reply to one caller.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// The reply to a settlement. A failure returns the claim, so that the settlement can be retried.
pub(super) type SettleReply = Reply<Result<Finished, (StoreError, Claimed, Box<Settlement>)>>;

/// Called when the outcome of the transaction is known.
pub(super) type Completion = Box<dyn FnOnce(Result<(), &BatchFailure>) + Send>;

/// The reason why a whole batch failed.
#[derive(Clone, Debug)]
pub(super) enum BatchFailure {
    /// The disk is full. Rolled back.
    DiskFull,
    /// Another process holds the write lock. Rolled back.
    Busy,
    /// The outcome is unknown.
    Unknown(String),
    /// The file is damaged; all later writes are refused.
    Damaged(String),
    /// An earlier failure has stopped all writes.
    Stopped(String),
    /// The store is closed.
    Closed,
}

impl BatchFailure {
    /// Classifies the error of a `BEGIN` or `COMMIT`.
    pub(super) fn of(error: &rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => BatchFailure::DiskFull,
            Some(ErrorCode::DatabaseCorrupt) => BatchFailure::Damaged(error.to_string()),
            _ => BatchFailure::Unknown(error.to_string()),
        }
    }

    /// Returns the failure that every later command gets, if no write is safe after this one.
    pub(super) fn is_final(&self) -> Option<Self> {
        match self {
            BatchFailure::Unknown(why) => Some(BatchFailure::Stopped(why.clone())),
            BatchFailure::Damaged(why) => Some(BatchFailure::Damaged(why.clone())),
            _ => None,
        }
    }

    pub(super) fn to_error(&self) -> StoreError {
        match self {
            BatchFailure::DiskFull => StoreError::DiskFull,
            BatchFailure::Busy => StoreError::Busy,
            BatchFailure::Unknown(why) => StoreError::Unknown { why: why.clone() },
            BatchFailure::Damaged(why) => StoreError::Damaged { why: why.clone() },
            BatchFailure::Stopped(why) => StoreError::Stopped { why: why.clone() },
            BatchFailure::Closed => StoreError::Closed,
        }
    }
}

/// Results of an open transaction: answers, claims and due times that take effect with its commit.
#[derive(Default)]
pub(super) struct Uncommitted {
    /// The sink whose slots the claims of this transaction use, even if another sink is attached meanwhile.
    pub(super) sink: Option<ClaimSink>,
    answers: Vec<Answer>,
    /// The first failure of SQLite after which no write is safe.
    fatal: Option<BatchFailure>,
    pub(super) claimed: Vec<Claimed>,
    pub(super) earliest_due: Option<Timestamp>,
}

impl Uncommitted {
    /// Takes a slot of the sink if one is free.
    pub(super) fn take_slot(&self) -> Option<Slot> {
        self.sink.as_ref()?.take()
    }

    /// Records a new row: its claim if it has a slot, otherwise its due time.
    pub(super) fn stored(
        &mut self,
        row: &Row,
        subscription: Option<&SubscriptionName>,
        key: ClaimKey,
        slot: Option<Slot>,
    ) {
        match slot {
            Some(slot) => {
                let (event, subscription) = (Arc::clone(&row.event), subscription.cloned());
                self.claimed.push(Claimed::first(event, subscription, key, slot));
            }
            None => self.due(row.due_at),
        }
    }

    /// Records when work on disk is due.
    pub(super) fn due(&mut self, at: Timestamp) {
        self.earliest_due = Some(self.earliest_due.map_or(at, |earliest| earliest.min(at)));
    }

    /// Sends the claims to the sink.
    pub(super) fn hand_over(&mut self) {
        let now = Instant::now();
        for mut claimed in self.claimed.drain(..) {
            if let Some(sink) = &self.sink {
                claimed.sent_at = now;
                sink.send(claimed);
            }
        }
    }

    /// Runs a closure in a savepoint. If it fails, its changes and its claims are undone.
    pub(super) fn savepoint<T>(
        &mut self,
        connection: &Connection,
        work: impl FnOnce(&Connection, &mut Uncommitted) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let claimed_before = self.claimed.len();
        let result = savepoint(connection, |connection| work(connection, self));
        if result.is_err() {
            self.claimed.truncate(claimed_before);
        }
        result
    }

    /// Records the failure of one command, if SQLite itself failed.
    pub(super) fn note_failure(&mut self, error: &StoreError) {
        if let (None, StoreError::Engine(error)) = (&self.fatal, error) {
            self.fatal = Some(BatchFailure::of(error)).filter(|failure| failure.is_final().is_some());
        }
    }

    /// Keeps the reply to an append until the outcome of the transaction is known.
    pub(super) fn appended(
        &mut self,
        (row, reply): (Row, Reply<Appended>),
        result: Result<Appended, StoreError>,
    ) {
        if let Err(error) = &result {
            self.note_failure(error);
        }
        self.answers.push(Answer::AppendOne(reply, result, row));
    }

    /// Keeps the reply to a closure, if a caller waits, until the outcome of the transaction is known.
    pub(super) fn ran(&mut self, completion: Option<Completion>) {
        self.answers.extend(completion.map(Answer::Run));
    }

    /// Keeps the reply to a settlement until the outcome of the transaction is known.
    pub(super) fn settled(
        &mut self,
        (claimed, settlement, reply): (Claimed, Box<Settlement>, SettleReply),
        result: Result<Finished, StoreError>,
    ) {
        if let Err(error) = &result {
            self.note_failure(error);
        }
        self.answers.push(Answer::Settle(reply, result, claimed, settlement));
    }

    /// Returns why SQLite rolled the transaction back: a full disk, or a failure after which no write is safe.
    pub(super) fn rollback_reason(&self) -> BatchFailure {
        self.fatal.clone().unwrap_or(BatchFailure::DiskFull)
    }

    /// Sends every reply.
    pub(super) fn reply(self, outcome: Result<(), &BatchFailure>) {
        for answer in self.answers {
            answer.send(outcome);
        }
    }
}

/// The answer to one caller, sent when the outcome of the transaction is known; the content counts if the commit succeeded.
enum Answer {
    AppendOne(Reply<Appended>, Result<Appended, StoreError>, Row),
    // The claim is dropped, which frees its slot, only after the commit.
    Settle(SettleReply, Result<Finished, StoreError>, Claimed, Box<Settlement>),
    Run(Completion),
}

impl Answer {
    fn send(self, outcome: Result<(), &BatchFailure>) {
        match self {
            Answer::AppendOne(reply, result, _row) => answer(reply, result, outcome),
            Answer::Settle(reply, result, claimed, settlement) => {
                let result = outcome.map_err(BatchFailure::to_error).and(result);
                answer_settle(reply, result, claimed, settlement);
            }
            Answer::Run(completion) => completion(outcome),
        }
    }
}

pub(super) fn answer<T>(reply: Reply<T>, result: Result<T, StoreError>, outcome: Result<(), &BatchFailure>) {
    // The caller may have stopped waiting.
    let _ = reply.send(match outcome {
        Ok(()) => result,
        Err(failure) => Err(failure.to_error()),
    });
}

pub(super) fn answer_settle(
    reply: SettleReply,
    result: Result<Finished, StoreError>,
    claimed: Claimed,
    settlement: Box<Settlement>,
) {
    let _ = reply.send(Ok(match result {
        Ok(finished) => {
            drop(claimed); // before the reply, so that its slot is free when the caller continues
            Ok(finished)
        }
        Err(error) => Err((error, claimed, settlement)),
    }));
}

/// Returns whether SQLite has rolled the whole transaction back (disk full or failing). A later statement would commit by itself.
pub(super) fn is_rolled_back(connection: &Connection) -> bool {
    connection.is_autocommit()
}

/// Executes one of several commands, unless SQLite has rolled the transaction back: then the first reply names the reason.
pub(super) fn unless_rolled_back<T>(
    connection: &Connection,
    reason: &mut Option<StoreError>,
    work: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    if is_rolled_back(connection) { Err(reason.take().unwrap_or(StoreError::DiskFull)) } else { work() }
}

/// Runs a closure in a savepoint: if it fails, only its own changes are rolled back.
///
/// Fails without a transaction, which SQLite has rolled back then: the savepoint would begin one and commit it. The reply of the batch
/// names the reason.
pub(super) fn savepoint<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    if is_rolled_back(connection) {
        return Err(StoreError::DiskFull);
    }
    connection.prepare_cached("SAVEPOINT command")?.execute([])?;
    match work(connection) {
        Ok(value) => {
            connection.prepare_cached("RELEASE command")?.execute([])?;
            Ok(value)
        }
        Err(error) => {
            if !is_rolled_back(connection) {
                connection.prepare_cached("ROLLBACK TO command")?.execute([])?;
                connection.prepare_cached("RELEASE command")?.execute([])?;
            }
            Err(error)
        }
    }
}
