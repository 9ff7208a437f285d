//! One transaction for whatever waits: what is asked, how it is carried out, and who is told how it ended.

use std::time::Instant;

use redrive_retry::Timestamp;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use super::append::{self, Row};
use super::{claim, settle};
use crate::error::StoreError;
use crate::store::{Appended, Call, CalledUp, Finished};
use crate::work::{ClaimSink, Claimed, Settlement};

pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the writer is asked to do. The frequent ones are typed; the rest is a closure.
pub(super) enum Command {
    AppendOne { row: Row, reply: Reply<Appended> },
    Append { rows: Vec<Row>, reply: Reply<Vec<Appended>> },
    Claim { now: Timestamp, reply: Reply<usize> },
    CallUp { calls: Vec<Call>, now: Timestamp, reply: Reply<Vec<CalledUp>> },
    Settle { claimed: Claimed, settlement: Box<Settlement>, reply: SettleReply },
    Run { work: Work, sync: bool },
    Close { reply: Reply<()> },
}

impl Command {
    /// Whether the answer promises that the change is on stable storage.
    pub(super) fn needs_sync(&self) -> bool {
        !matches!(
            self,
            Command::Claim { .. }
                | Command::CallUp { .. }
                | Command::Settle { .. }
                | Command::Run { sync: false, .. }
        )
    }

    /// Whether somebody waits for it, or something that cannot begin before. What was delivered to one subscription is no hurry: its
    /// turn is over, and the next one is under way.
    pub(super) fn is_hurry(&self) -> bool {
        !matches!(self, Command::Settle { claimed, settlement, .. } if settle::is_delivered(claimed, settlement))
    }
}

/// A claim that could not be ended comes back, so that it can be tried again.
pub(super) type SettleReply = oneshot::Sender<Result<Finished, (StoreError, Claimed, Box<Settlement>)>>;

/// Done inside the transaction, or told that there will be none.
pub(super) type Work = Box<dyn FnOnce(Result<&Connection, &BatchFailure>) -> Ran + Send>;

/// What became of such work inside the transaction.
#[derive(Default)]
pub(super) struct Ran {
    /// What the engine said, if it failed because of it.
    pub(super) failure: Option<BatchFailure>,
    /// Whom to tell, if anybody waits.
    pub(super) completion: Option<Completion>,
}

/// Called when the fate of the transaction is known.
pub(super) type Completion = Box<dyn FnOnce(Result<(), &BatchFailure>) + Send>;

/// Why a whole batch failed.
#[derive(Clone, Debug)]
pub(super) enum BatchFailure {
    /// Rolled back; nothing was changed.
    DiskFull,
    /// Rolled back; nothing was changed.
    Busy,
    /// Nobody knows.
    Unknown(String),
    /// The file is damaged, and nothing more is written to it.
    Damaged(String),
    /// The thread has stopped before.
    Stopped(String),
}

impl BatchFailure {
    /// What a transaction that could not be begun or ended means.
    pub(super) fn of(error: &rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => BatchFailure::DiskFull,
            Some(ErrorCode::DatabaseCorrupt) => BatchFailure::Damaged(error.to_string()),
            _ => BatchFailure::Unknown(error.to_string()),
        }
    }

    /// What a command means for its neighbours that failed for this reason: nothing, unless it is the engine's.
    pub(super) fn behind(error: &StoreError) -> Option<Self> {
        match error {
            StoreError::Engine(error) => Some(Self::of(error)),
            _ => None,
        }
    }

    /// What everybody is told from now on, if nothing can be written after it.
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
        }
    }
}

/// What is to be done once the fate of the transaction is known.
#[derive(Default)]
pub(super) struct Pending {
    /// Who takes in what is claimed. The same for the whole transaction, whoever is attached meanwhile: its places are taken.
    pub(super) sink: Option<ClaimSink>,
    waiting: Vec<Waiting>,
    pub(super) claimed: Vec<Claimed>,
    pub(super) earliest_due: Option<Timestamp>,
}

impl Pending {
    pub(super) fn due(&mut self, at: Timestamp) {
        self.earliest_due = Some(self.earliest_due.map_or(at, |earliest| earliest.min(at)));
    }

    /// Gives what was claimed to whom it was claimed for.
    pub(super) fn hand_over(&mut self) {
        let now = Instant::now();
        for mut claimed in self.claimed.drain(..) {
            if let Some(sink) = &self.sink {
                claimed.handed_over = now;
                sink.send(claimed);
            }
        }
    }

    /// The engine has undone everything: because the disk is full, or because of something that nobody should go on after.
    fn why_rolled_back(&self) -> BatchFailure {
        let mut failures = self.waiting.iter().filter_map(Waiting::engine_failure);
        failures.find(|failure| failure.is_final().is_some()).unwrap_or(BatchFailure::DiskFull)
    }

    /// Tells everybody.
    pub(super) fn answer(self, fate: Result<(), &BatchFailure>) {
        for waiting in self.waiting {
            waiting.answer(fate);
        }
    }
}

/// Who waits for the end of the transaction, and for which answer if it is committed.
enum Waiting {
    AppendOne(Reply<Appended>, Result<Appended, StoreError>, Row),
    Append(Reply<Vec<Appended>>, Result<Vec<Appended>, StoreError>),
    Claim(Reply<usize>, Result<usize, StoreError>),
    CallUp(Reply<Vec<CalledUp>>, Result<Vec<CalledUp>, StoreError>),
    // The claim is dropped, and its place given back, only after the commit.
    Settle(SettleReply, Result<Finished, StoreError>, Claimed, Box<Settlement>),
    Run(Ran),
}

impl Waiting {
    /// What the engine said, if the command failed because of it.
    fn engine_failure(&self) -> Option<BatchFailure> {
        let error = match self {
            Waiting::AppendOne(_, result, _) => result.as_ref().err(),
            Waiting::Append(_, result) => result.as_ref().err(),
            Waiting::Claim(_, result) => result.as_ref().err(),
            Waiting::CallUp(_, result) => result.as_ref().err(),
            Waiting::Settle(_, result, ..) => result.as_ref().err(),
            Waiting::Run(ran) => return ran.failure.clone(),
        };
        error.and_then(BatchFailure::behind)
    }

    fn answer(self, fate: Result<(), &BatchFailure>) {
        match self {
            Waiting::AppendOne(reply, result, _row) => answer(reply, result, fate),
            Waiting::Append(reply, result) => answer(reply, result, fate),
            Waiting::Claim(reply, result) => answer(reply, result, fate),
            Waiting::CallUp(reply, result) => answer(reply, result, fate),
            Waiting::Settle(reply, result, claimed, settlement) => {
                let result = fate.map_err(BatchFailure::to_error).and(result);
                answer_settle(reply, result, claimed, settlement);
            }
            Waiting::Run(ran) => ran.completion.into_iter().for_each(|completion| completion(fate)),
        }
    }
}

pub(super) fn answer<T>(reply: Reply<T>, result: Result<T, StoreError>, fate: Result<(), &BatchFailure>) {
    // Who has stopped waiting does not want to know.
    let _ = reply.send(match fate {
        Ok(()) => result,
        Err(failure) => Err(failure.to_error()),
    });
}

fn answer_settle(
    reply: SettleReply,
    result: Result<Finished, StoreError>,
    claimed: Claimed,
    settlement: Box<Settlement>,
) {
    let _ = reply.send(match result {
        Ok(finished) => {
            drop(claimed); // before the answer: whoever gets it finds the place free
            Ok(finished)
        }
        Err(error) => Err((error, claimed, settlement)),
    });
}

/// Answers a command that was not carried out.
pub(super) fn refuse(command: Command, failure: &BatchFailure) {
    match command {
        Command::AppendOne { reply, .. } => answer(reply, Ok(Appended::Duplicate), Err(failure)),
        Command::Append { reply, .. } => answer(reply, Ok(Vec::new()), Err(failure)),
        Command::Claim { reply, .. } => answer(reply, Ok(0), Err(failure)),
        Command::CallUp { reply, .. } => answer(reply, Ok(Vec::new()), Err(failure)),
        Command::Settle { reply, claimed, settlement } => {
            answer_settle(reply, Err(failure.to_error()), claimed, settlement);
        }
        Command::Run { work, .. } => drop(work(Err(failure))),
        Command::Close { .. } => {} // its reply is dropped with it: closed
    }
}

/// Carries all commands out, and leaves in `pending` whom to tell.
pub(super) fn execute(
    connection: &Connection,
    commands: &mut Vec<Command>,
    pending: &mut Pending,
) -> Result<(), BatchFailure> {
    let sink = pending.sink.clone();
    let sink = sink.as_ref();
    // Those that make up nearly everything are done together, by fewer statements than there are commands.
    let (mut appends, mut settles, mut delivered) = (Vec::new(), Vec::new(), Vec::new());
    for command in commands.drain(..) {
        match command {
            Command::AppendOne { row, reply } => appends.push((row, reply)),
            Command::Settle { claimed, settlement, reply } if settle::is_plain(&claimed, &settlement) => {
                settles.push((claimed, settlement, reply));
            }
            Command::Settle { claimed, settlement, reply } if settle::is_delivered(&claimed, &settlement) => {
                delivered.push((claimed, settlement, reply));
            }
            other if is_rolled_back(connection) => refuse(other, &pending.why_rolled_back()),
            other => {
                let waiting = execute_one(connection, other, sink, pending);
                pending.waiting.push(waiting);
            }
        }
    }
    settles.sort_unstable_by_key(|(claimed, ..)| claimed.unit);
    let done: Vec<_> = settles.iter().map(|(claimed, settlement, _)| (claimed, settlement.at)).collect();
    let answers = settle::settle_plain(connection, &done);
    for ((claimed, settlement, reply), result) in settles.into_iter().zip(answers) {
        pending.waiting.push(Waiting::Settle(reply, result, claimed, settlement));
    }
    delivered.sort_unstable_by_key(|(claimed, ..)| claimed.unit);
    let done: Vec<_> = delivered.iter().map(|(claimed, settlement, _)| (claimed, &**settlement)).collect();
    let answers = settle::settle_delivered(connection, &done, pending);
    for ((claimed, settlement, reply), result) in delivered.into_iter().zip(answers) {
        pending.waiting.push(Waiting::Settle(reply, result, claimed, settlement));
    }
    appends.sort_unstable_by_key(|(row, _)| row.event.id);
    let rows: Vec<&Row> = appends.iter().map(|(row, _)| row).collect();
    let answers = append::append_each(connection, &rows, sink, pending);
    for ((row, reply), result) in appends.into_iter().zip(answers) {
        pending.waiting.push(Waiting::AppendOne(reply, result, row));
    }
    if is_rolled_back(connection) { Err(pending.why_rolled_back()) } else { Ok(()) }
}

/// Whether the engine has given the whole transaction up, which it does when the disk is full or fails. What is written after
/// that would be a transaction of its own.
pub(super) fn is_rolled_back(connection: &Connection) -> bool {
    connection.is_autocommit()
}

fn execute_one(
    connection: &Connection,
    command: Command,
    sink: Option<&ClaimSink>,
    pending: &mut Pending,
) -> Waiting {
    let claimed_before = pending.claimed.len();
    match command {
        Command::Append { rows, reply } => {
            let result = append::append(connection, &rows, sink, pending);
            if result.is_err() {
                pending.claimed.truncate(claimed_before);
            }
            Waiting::Append(reply, result)
        }
        Command::Claim { now, reply } => {
            let result = savepoint(connection, |connection| claim::claim(connection, now, sink, pending));
            if result.is_err() {
                pending.claimed.truncate(claimed_before);
            }
            Waiting::Claim(reply, result)
        }
        Command::CallUp { calls, now, reply } => {
            let result = savepoint(connection, |connection| {
                calls.iter().map(|call| claim::call_up(connection, call, now, sink, pending)).collect()
            });
            if result.is_err() {
                pending.claimed.truncate(claimed_before);
            }
            Waiting::CallUp(reply, result)
        }
        Command::Settle { claimed, settlement, reply } => {
            let result = settle::settle(connection, &claimed, &settlement, pending);
            Waiting::Settle(reply, result, claimed, settlement)
        }
        Command::Run { work, .. } => Waiting::Run(work(Ok(connection))),
        Command::AppendOne { .. } => unreachable!("appends are carried out together"),
        Command::Close { .. } => unreachable!("the batch ends before a close"),
    }
}

/// Runs a closure so that its changes are undone if it fails, and its neighbours' are not.
pub(super) fn savepoint<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
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
