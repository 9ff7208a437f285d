//! A batch: the commands of one transaction and their execution. Their replies wait in [`Uncommitted`] for the commit.

use rusqlite::Connection;

use super::append::{self, Row};
use super::settle;
use super::transaction::{
    BatchFailure, Completion, Reply, SettleReply, Uncommitted, answer, answer_settle, is_rolled_back,
    savepoint,
};
use crate::error::StoreError;
use crate::store::Appended;
use crate::work::{Claimed, Settlement};

/// A request to the writer. Frequent ones are typed; the rest is a closure.
pub(super) enum Command {
    AppendOne { row: Row, reply: Reply<Appended> },
    Settle { claimed: Claimed, settlement: Box<Settlement>, reply: SettleReply },
    Run { work: Work, sync: bool },
    Close { reply: Reply<()> },
}

impl Command {
    /// Makes a command that runs a closure in a savepoint and replies with its result. A failure undoes its changes and its claims.
    pub(super) fn run<T: Send + 'static>(
        sync: bool,
        reply: Reply<T>,
        work: impl FnOnce(&Connection, &mut Uncommitted) -> Result<T, StoreError> + Send + 'static,
    ) -> Self {
        let work: Work = Box::new(move |transaction| match transaction {
            Ok((connection, uncommitted)) => {
                let result = uncommitted.savepoint(connection, work);
                if let Err(error) = &result {
                    uncommitted.note_failure(error);
                }
                Some(Box::new(move |outcome| answer(reply, result, outcome)))
            }
            Err(failure) => {
                answer(reply, Err(StoreError::Closed), Err(failure));
                None
            }
        });
        Command::Run { work, sync }
    }

    /// Makes a command that runs a closure in a savepoint, for no caller. If its changes are not committed, `lost` gets the reason.
    pub(super) fn detached(
        work: impl FnOnce(&Connection) -> Result<(), StoreError> + Send + 'static,
        lost: impl FnOnce(StoreError) + Send + 'static,
    ) -> Self {
        let work: Work = Box::new(move |transaction| match transaction {
            Ok((connection, uncommitted)) => {
                let result = savepoint(connection, work);
                if let Err(error) = &result {
                    uncommitted.note_failure(error);
                }
                Some(Box::new(move |outcome| {
                    if let Err(error) = outcome.map_err(BatchFailure::to_error).and(result) {
                        lost(error);
                    }
                }))
            }
            Err(failure) => {
                lost(failure.to_error());
                None
            }
        });
        Command::Run { work, sync: false }
    }

    /// Returns whether the reply promises that the change is on stable storage.
    pub(super) fn needs_sync(&self) -> bool {
        !matches!(self, Command::Settle { .. } | Command::Run { sync: false, .. })
    }

    /// Returns whether the reply is urgent. Only the settlement of a successful delivery is not: its handler has returned, and the next
    /// delivery of the subscription is in flight already.
    pub(super) fn latency_sensitive(&self) -> bool {
        !matches!(self, Command::Settle { claimed, settlement, .. } if settle::is_delivered(claimed, settlement))
    }
}

/// A closure that runs inside the transaction, or gets the failure that prevented it. Returns how to reply, if a caller waits.
pub(super) type Work =
    Box<dyn FnOnce(Result<(&Connection, &mut Uncommitted), &BatchFailure>) -> Option<Completion> + Send>;

/// Replies to a command that was not executed.
pub(super) fn refuse(command: Command, failure: &BatchFailure) {
    match command {
        Command::AppendOne { reply, .. } => answer(reply, Ok(Appended::Duplicate), Err(failure)),
        Command::Settle { reply, claimed, settlement } => {
            answer_settle(reply, Err(failure.to_error()), claimed, settlement);
        }
        Command::Run { work, .. } => drop(work(Err(failure))),
        Command::Close { .. } => {} // a dropped reply means closed
    }
}

/// Executes all commands inside the open transaction and leaves their answers in `uncommitted`.
pub(super) fn execute(
    connection: &Connection,
    commands: &mut Vec<Command>,
    uncommitted: &mut Uncommitted,
) -> Result<(), BatchFailure> {
    // The most frequent commands are executed together, with fewer statements than commands.
    let (mut appends, mut settles, mut delivered) = (Vec::new(), Vec::new(), Vec::new());
    for command in commands.drain(..) {
        match command {
            Command::AppendOne { row, reply } => appends.push((row, reply)),
            Command::Settle { claimed, settlement, reply } if claimed.is_bare_success(&settlement) => {
                settles.push((claimed, settlement, reply));
            }
            Command::Settle { claimed, settlement, reply } if settle::is_delivered(&claimed, &settlement) => {
                delivered.push((claimed, settlement, reply));
            }
            other if is_rolled_back(connection) => refuse(other, &uncommitted.rollback_reason()),
            Command::Settle { claimed, settlement, reply } => {
                // Splitting a delivery off depends on whether an earlier delivery to the same subscription is done.
                if !settlement.split_off.is_empty() {
                    settle_together(connection, &mut delivered, uncommitted, settle::settle_delivered);
                }
                let result = savepoint(connection, |connection| {
                    settle::settle(connection, &claimed, &settlement, uncommitted)
                });
                uncommitted.settled((claimed, settlement, reply), result);
            }
            Command::Run { work, .. } => {
                let completion = work(Ok((connection, uncommitted)));
                uncommitted.ran(completion);
            }
            Command::Close { .. } => unreachable!("the batch ends before a close"),
        }
    }
    settle_together(connection, &mut settles, uncommitted, settle::settle_bare_successes);
    settle_together(connection, &mut delivered, uncommitted, settle::settle_delivered);
    appends.sort_unstable_by_key(|(row, _)| row.event.id);
    let rows: Vec<&Row> = appends.iter().map(|(row, _)| row).collect();
    let answers = append::append_each(connection, &rows, uncommitted);
    for (appended, result) in appends.into_iter().zip(answers) {
        uncommitted.appended(appended, result);
    }
    if is_rolled_back(connection) { Err(uncommitted.rollback_reason()) } else { Ok(()) }
}

/// Settles the claims collected so far, in the order of their keys.
fn settle_together(
    connection: &Connection,
    claims: &mut Vec<(Claimed, Box<Settlement>, SettleReply)>,
    uncommitted: &mut Uncommitted,
    settle: settle::SettleMany,
) {
    claims.sort_unstable_by_key(|(claimed, ..)| claimed.key);
    let done: Vec<_> = claims.iter().map(|(claimed, settlement, _)| (claimed, &**settlement)).collect();
    let answers = settle(connection, &done, uncommitted);
    for (settled, result) in claims.drain(..).zip(answers) {
        uncommitted.settled(settled, result);
    }
}
