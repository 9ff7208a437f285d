//! Batches appends and settlements: a free connection takes all queued commands and sends them as one statement of each kind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::append::{Batch, Inserted, Outcome, Row, Stored};
use super::failure::{ErrorClass, classify};
use super::queue::Queue;
use super::session::Session;
use super::{Shared, failure, settle};
use crate::error::StoreError;
use crate::store::{Appended, Finished};
use crate::work::{Claimed, Settlement};

/// The maximum number of commands in one batch.
const MAX_COMMANDS: usize = 512;

/// Limits of one insert that holds the events of several publishers.
const MAX_ROWS: usize = 1024;
const MAX_BYTES: usize = 8 << 20;

/// The delay before a statement is retried after a deadlock or serialization failure.
const CONFLICT_RETRY_DELAY: Duration = Duration::from_millis(5);

/// A queued write.
pub(super) enum Command {
    Append(Append),
    Settle(Settle),
}

/// The events of one publish, stored atomically.
pub(super) struct Append {
    pub(super) rows: Vec<Row>,
    /// When the caller began to wait; `outage_timeout` counts from here.
    pub(super) since: Instant,
    pub(super) reply: AppendReply,
}

type AppendReply = oneshot::Sender<Result<Vec<Appended>, StoreError>>;

/// The settlement of a claim.
pub(super) struct Settle {
    pub(super) claimed: Claimed,
    pub(super) settlement: Box<Settlement>,
    /// Whether it was sent before, with an unknown outcome.
    pub(super) was_resent: bool,
    pub(super) reply: oneshot::Sender<Result<Finished, NotSettled>>,
}

/// A settlement that failed, with everything needed to retry it.
pub(super) type NotSettled = (StoreError, Claimed, Box<Settlement>);

/// Executes queued commands on one connection until the queue is shut and empty.
pub(super) async fn run(shared: Arc<Shared>, queue: Arc<Queue<Command>>) {
    let mut session = None;
    loop {
        let commands = queue.take(MAX_COMMANDS).await;
        if commands.is_empty() {
            return;
        }
        let (mut appends, mut settles) = (Vec::new(), Vec::new());
        for command in commands {
            match command {
                Command::Append(append) => appends.push(append),
                Command::Settle(settle) => settles.push(settle),
            }
        }
        let outage_timeout = shared.options.outage_timeout;
        let deadline =
            appends.iter().map(|append| append.since).min().unwrap_or_else(Instant::now) + outage_timeout;
        if let Err(error) = shared.session_until(&mut session, deadline).await {
            refuse(appends, settles, error);
            continue;
        }
        let mut groups = groups(appends).into_iter();
        let mut first = None;
        if let Some(group) = groups.next() {
            first = Some(Placed::new(&shared, group).await);
        }
        let Some(connected) = session.as_ref() else { continue };
        // A transaction of several statements needs the connection for itself: a pipelined settlement would become part of
        // it, be rolled back with it, and make its commit asynchronous.
        if first.as_ref().is_some_and(|placed| !placed.batch.is_one_statement()) {
            settle_all(&shared, connected, std::mem::take(&mut settles)).await;
        }
        // Pipelined: inserts and settlements are sent together.
        let (stored, ()) = tokio::join!(
            biased;
            async {
                match &first {
                    Some(placed) => Some(placed.batch.store(connected).await),
                    None => None,
                }
            },
            settle_all(&shared, connected, settles)
        );
        if let (Some(placed), Some(stored)) = (first, stored) {
            placed.conclude(&shared, &mut session, stored).await;
        }
        for group in groups {
            Placed::new(&shared, group).await.store(&shared, &mut session).await;
        }
    }
}

/// The events of several publishers that one statement stores.
struct Group {
    rows: Vec<Row>,
    /// The number of rows of each publisher, in order.
    publishers: Vec<(usize, AppendReply)>,
    since: Instant,
}

/// Merges publishes into as few groups as the limits allow.
fn groups(appends: Vec<Append>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut bytes = 0;
    for Append { rows, since, reply } in appends {
        let size: usize = rows.iter().map(Row::size).sum();
        match groups.last_mut() {
            Some(group) if group.rows.len() + rows.len() <= MAX_ROWS && bytes + size <= MAX_BYTES => {
                group.publishers.push((rows.len(), reply));
                group.rows.extend(rows);
                bytes += size;
            }
            _ => {
                groups.push(Group { publishers: vec![(rows.len(), reply)], rows, since });
                bytes = size;
            }
        }
    }
    groups
}

/// A group with in-flight slots for its due events.
struct Placed {
    batch: Batch,
    sink: Option<crate::work::ClaimSink>,
    publishers: Vec<(usize, AppendReply)>,
    since: Instant,
}

impl Placed {
    async fn new(shared: &Shared, group: Group) -> Self {
        let Group { rows, publishers, since } = group;
        // A process that is not registered cannot own claims; its events are stored as pending.
        let owner = if shared.sink().is_some() { shared.owner().await.ok() } else { None };
        let token = shared.owned_claims.begin_claim();
        let mut first = 0;
        let ranges = publishers.iter().map(|(count, _)| {
            first += count;
            first - count..first
        });
        let batches: Vec<_> = ranges.filter(|range| range.len() > 1).collect();
        let (batch, sink) =
            shared.with_sink(|sink| (Batch::place(rows, batches, sink, owner, token), sink.cloned()));
        Placed { batch, sink, publishers, since }
    }

    async fn store(self, shared: &Shared, session: &mut Option<Session>) {
        let stored = match shared.session_until(session, self.since + shared.options.outage_timeout).await {
            Ok(session) => self.batch.store(session).await,
            Err(error) => return self.refuse(shared, error),
        };
        self.conclude(shared, session, stored).await;
    }

    /// Answers the publishers. Retries first if the outcome is unknown or the statement had a conflict.
    async fn conclude(
        self,
        shared: &Shared,
        session: &mut Option<Session>,
        mut stored: Result<Inserted, tokio_postgres::Error>,
    ) {
        let mut deadline = self.since + shared.options.outage_timeout;
        let mut unknown: Option<String> = None;
        loop {
            let error = match stored {
                Ok(Inserted::Stored(stored)) => return self.stored(shared, &stored),
                Ok(Inserted::IdTaken(id)) if self.publishers.len() == 1 => {
                    return self.refuse(shared, StoreError::IdTaken { id });
                }
                Ok(Inserted::IdTaken(_)) => return Box::pin(self.store_each(shared, session)).await,
                Ok(Inserted::NeedsTransaction) => {
                    stored = match shared.session_until(session, deadline).await {
                        Ok(session) => self.batch.store_in_transaction(session).await,
                        Err(error) => return self.refuse(shared, error),
                    };
                    continue;
                }
                Err(error) => error,
            };
            match classify(&error) {
                ErrorClass::Rejected => {
                    return match unknown {
                        Some(why) => self.refuse(shared, StoreError::Unknown { why }),
                        None if self.publishers.len() == 1 => self.refuse(shared, error.into()),
                        None => Box::pin(self.store_each(shared, session)).await,
                    };
                }
                ErrorClass::Conflict if Instant::now() < deadline => {
                    tokio::time::sleep(CONFLICT_RETRY_DELAY).await;
                }
                ErrorClass::Conflict => return self.refuse(shared, StoreError::Busy),
                ErrorClass::ConnectionLost => {
                    if unknown.is_none() {
                        deadline = Instant::now() + shared.options.outage_timeout;
                    }
                    unknown = Some(failure::full_message(&error));
                    *session = None;
                }
            }
            stored = match shared.session_until(session, deadline).await {
                Ok(session) if unknown.is_some() => self.batch.store_again(session).await,
                Ok(session) => self.batch.store(session).await,
                Err(error) => {
                    let error = unknown.map_or(error, |why| StoreError::Unknown { why });
                    return self.refuse(shared, error);
                }
            };
        }
    }

    /// Stores each publisher's events separately, so that only the rejected ones fail.
    async fn store_each(self, shared: &Shared, session: &mut Option<Session>) {
        let Placed { batch, publishers, since, .. } = self;
        shared.owned_claims.finish_claim(batch.token(), []);
        let mut rows = batch.into_rows().into_iter();
        for (count, reply) in publishers {
            let rows = rows.by_ref().take(count).collect();
            let group = Group { rows, publishers: vec![(count, reply)], since };
            Placed::new(shared, group).await.store(shared, session).await;
        }
    }

    fn stored(self, shared: &Shared, stored: &Stored) {
        let Placed { batch, sink, publishers, .. } = self;
        let token = batch.token();
        let Outcome { answers, claimed, earliest_due, is_due } = batch.stored(stored);
        shared.owned_claims.finish_claim(token, claimed.iter().map(|claimed| claimed.key));
        if let Some(sink) = sink {
            shared.hand_over(&sink, claimed);
        }
        if let Some(at) = earliest_due {
            shared.note_due(at);
        }
        if is_due {
            shared.notify_requested.notify_one();
        }
        let mut answers = answers.into_iter();
        for (count, reply) in publishers {
            // Fails if the publisher has stopped waiting.
            let _ = reply.send(Ok(answers.by_ref().take(count).collect()));
        }
    }

    fn refuse(self, shared: &Shared, error: StoreError) {
        if matches!(error, StoreError::Unknown { .. }) {
            shared.owned_claims.lose_answer(self.batch.token()); // reconciliation finds what it stored as running
        } else {
            shared.owned_claims.finish_claim(self.batch.token(), []);
        }
        drop(self.batch); // frees its slots before the publishers get their answers
        let errors = repeat(error, self.publishers.len());
        for ((_, reply), error) in self.publishers.into_iter().zip(errors) {
            let _ = reply.send(Err(error));
        }
    }
}

async fn settle_all(shared: &Shared, session: &Session, settles: Vec<Settle>) {
    if settles.is_empty() {
        return;
    }
    let ends: Vec<_> = settles.iter().map(|settle| (&settle.claimed, &*settle.settlement)).collect();
    match settle::settle(session, &ends).await {
        Ok(answers) => {
            for (settle, finished) in settles.into_iter().zip(answers) {
                conclude(shared, session, settle, finished).await;
            }
        }
        Err(error) if classify(&error) == ErrorClass::Rejected && settles.len() > 1 => {
            // One by one, so that only the rejected one fails.
            for settle in settles {
                Box::pin(settle_all(shared, session, vec![settle])).await;
            }
        }
        Err(error) => {
            let errors = repeat(shared.explain(error), settles.len());
            for (settle, error) in settles.into_iter().zip(errors) {
                return_claim(settle, error);
            }
        }
    }
}

async fn conclude(shared: &Shared, session: &Session, settle: Settle, mut finished: Finished) {
    if settle.was_resent && finished == Finished::Fenced {
        match settle::how_it_ended(session, &settle.claimed).await {
            Ok(before) => finished = before,
            Err(error) => return return_claim(settle, shared.explain(error)),
        }
    }
    let Settle { claimed, settlement, reply, .. } = settle;
    shared.owned_claims.remove(claimed.key, claimed.fence);
    if let Some(at) = settlement.due_again() {
        shared.note_due(at);
        if at <= settlement.at {
            shared.notify_requested.notify_one(); // it may belong to a remote subscription
        }
    }
    drop(claimed); // frees the slot before the answer
    let _ = reply.send(Ok(finished));
}

fn return_claim(settle: Settle, error: StoreError) {
    let _ = settle.reply.send(Err((error, settle.claimed, settle.settlement)));
}

/// Fails all commands of a batch that was not sent for lack of a connection.
fn refuse(appends: Vec<Append>, settles: Vec<Settle>, error: StoreError) {
    let mut errors = repeat(error, appends.len() + settles.len());
    for (append, error) in appends.into_iter().zip(errors.by_ref()) {
        let _ = append.reply.send(Err(error));
    }
    for (settle, error) in settles.into_iter().zip(errors) {
        return_claim(settle, error);
    }
}

/// Returns the error `count` times: once as it is, then copies with the same message.
fn repeat(error: StoreError, count: usize) -> impl Iterator<Item = StoreError> {
    let copies: Vec<_> = (1..count).map(|_| copy(&error)).collect();
    std::iter::once(error).chain(copies)
}

fn copy(error: &StoreError) -> StoreError {
    match error {
        StoreError::Unreachable { server, why } => {
            StoreError::Unreachable { server: server.clone(), why: why.clone() }
        }
        StoreError::Unknown { why } => StoreError::Unknown { why: why.clone() },
        StoreError::Lost { why } => StoreError::Lost { why: why.clone() },
        StoreError::Login { server, user, why } => {
            StoreError::Login { server: server.clone(), user: user.clone(), why: why.clone() }
        }
        StoreError::NoSuchDatabase { server, why } => {
            StoreError::NoSuchDatabase { server: server.clone(), why: why.clone() }
        }
        StoreError::Untrusted { server, why } => {
            StoreError::Untrusted { server: server.clone(), why: why.clone() }
        }
        StoreError::Forbidden { why } => StoreError::Forbidden { why: why.clone() },
        StoreError::DiskFull => StoreError::DiskFull,
        StoreError::Busy => StoreError::Busy,
        // Commands share only errors of the connection.
        other => StoreError::Unreachable { server: "the server".into(), why: other.to_string() },
    }
}
