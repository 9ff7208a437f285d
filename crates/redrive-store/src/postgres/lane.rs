//! The connections that store and settle. What waits becomes one statement on the next one that is free.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::append::{Batch, Outcome, Row, Stored};
use super::failure::{Fate, fate};
use super::queue::{Queue, Shut};
use super::session::Session;
use super::{Shared, failure, settle};
use crate::error::StoreError;
use crate::store::{Appended, Finished};
use crate::work::{Claimed, Settlement};

/// The most commands that are taken at once.
const BATCH: usize = 512;

/// No more rows and bytes of different publishers are put into one statement.
const MOST_ROWS: usize = 1024;
const MOST_BYTES: usize = 8 << 20;

/// The pause before a statement that got into another's way is sent again.
const PAUSE: Duration = Duration::from_millis(5);

/// What a lane is asked to do.
pub(super) enum Command {
    Append(Append),
    Settle(Settle),
}

/// Events of one publisher: all or none.
pub(super) struct Append {
    pub(super) rows: Vec<Row>,
    pub(super) since: Instant,
    pub(super) reply: oneshot::Sender<Result<Vec<Appended>, StoreError>>,
}

/// The end of a claim.
pub(super) struct Settle {
    pub(super) claimed: Claimed,
    pub(super) settlement: Box<Settlement>,
    /// Whether it was sent before, and the answer lost.
    pub(super) is_again: bool,
    pub(super) reply: oneshot::Sender<Result<Finished, NotSettled>>,
}

/// A claim that could not be ended comes back, so that it can be tried again.
pub(super) type NotSettled = (StoreError, Claimed, Box<Settlement>);

/// The queue, and who works it off.
#[derive(Debug)]
pub(super) struct Lanes {
    queue: Arc<Queue<Command>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Lanes {
    pub(super) fn start(shared: &Arc<Shared>, count: usize, room: usize) -> Self {
        let queue = Arc::new(Queue::new(room));
        let tasks =
            (0..count.max(1)).map(|_| tokio::spawn(run(Arc::clone(shared), Arc::clone(&queue)))).collect();
        Lanes { queue, tasks: Mutex::new(tasks) }
    }

    pub(super) async fn send(&self, command: Command) -> Result<(), StoreError> {
        self.queue.send(command).await.map_err(|Shut| StoreError::Closed)
    }

    /// Takes nothing more in.
    pub(super) fn shut(&self) {
        self.queue.shut();
    }

    /// Waits until everything is finished that was taken in.
    pub(super) async fn finish(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            let _ = task.await; // one that panicked has said so itself
        }
    }
}

async fn run(shared: Arc<Shared>, queue: Arc<Queue<Command>>) {
    let mut session = None;
    loop {
        let commands = queue.take(BATCH).await;
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
        let patience = shared.options.patience;
        let deadline =
            appends.iter().map(|append| append.since).min().unwrap_or_else(Instant::now) + patience;
        if let Err(error) = shared.lane_session(&mut session, deadline).await {
            refuse(appends, settles, error);
            continue;
        }
        let mut groups = groups(appends).into_iter();
        let mut first = None;
        if let Some(group) = groups.next() {
            first = Some(Placed::new(&shared, group).await);
        }
        let Some(connected) = session.as_ref() else { continue };
        // What takes a transaction of several statements has the connection for itself: a settlement in the middle of it would
        // be undone with it, and would take it with it as something that need not be on disk.
        if first.as_ref().is_some_and(|placed| !placed.batch.is_one_statement()) {
            settle_all(&shared, connected, std::mem::take(&mut settles)).await;
        }
        // The two kinds go to the server together.
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

type AppendReply = oneshot::Sender<Result<Vec<Appended>, StoreError>>;

/// What several publishers want to store, by one statement.
struct Group {
    rows: Vec<Row>,
    /// How many of the rows belong to whom.
    publishers: Vec<(usize, AppendReply)>,
    since: Instant,
}

/// As few as possible, and none too large.
fn groups(appends: Vec<Append>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut bytes = 0;
    for Append { rows, since, reply } in appends {
        let size: usize = rows.iter().map(Row::size).sum();
        match groups.last_mut() {
            Some(group) if group.rows.len() + rows.len() <= MOST_ROWS && bytes + size <= MOST_BYTES => {
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

/// A group with its places among the work in flight.
struct Placed {
    batch: Batch,
    sink: Option<crate::work::ClaimSink>,
    publishers: Vec<(usize, AppendReply)>,
    since: Instant,
}

impl Placed {
    async fn new(shared: &Shared, group: Group) -> Self {
        let Group { rows, publishers, since } = group;
        // Who is not registered cannot hold anything; the events wait then.
        let owner = if shared.sink().is_some() { shared.owner().await.ok() } else { None };
        let token = shared.holdings.send();
        let (batch, sink) = shared.with_sink(|sink| (Batch::place(rows, sink, owner, token), sink.cloned()));
        Placed { batch, sink, publishers, since }
    }

    async fn store(self, shared: &Shared, session: &mut Option<Session>) {
        let stored = match shared.lane_session(session, self.since + shared.options.patience).await {
            Ok(session) => self.batch.store(session).await,
            Err(error) => return self.refuse(shared, error),
        };
        self.conclude(shared, session, stored).await;
    }

    /// Tells everybody how it went; and if that is not known, finds it out.
    async fn conclude(
        self,
        shared: &Shared,
        session: &mut Option<Session>,
        mut stored: Result<Stored, tokio_postgres::Error>,
    ) {
        let mut deadline = self.since + shared.options.patience;
        let mut unknown: Option<String> = None;
        loop {
            let error = match stored {
                Ok(stored) => return self.stored(shared, &stored),
                Err(error) => error,
            };
            match fate(&error) {
                Fate::Refused => {
                    return match unknown {
                        Some(why) => self.refuse(shared, StoreError::Unknown { why }),
                        None if self.publishers.len() == 1 => self.refuse(shared, failure::explain(error)),
                        None => Box::pin(self.store_each(shared, session)).await,
                    };
                }
                Fate::Undone if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
                Fate::Undone => return self.refuse(shared, StoreError::Busy),
                Fate::Lost => {
                    if unknown.is_none() {
                        deadline = Instant::now() + shared.options.patience;
                    }
                    unknown = Some(failure::said(&error));
                    *session = None;
                }
            }
            stored = match shared.lane_session(session, deadline).await {
                Ok(session) if unknown.is_some() => self.batch.store_again(session).await,
                Ok(session) => self.batch.store(session).await,
                Err(error) => {
                    let error = unknown.map_or(error, |why| StoreError::Unknown { why });
                    return self.refuse(shared, error);
                }
            };
        }
    }

    /// Each publisher by itself: then it shows who was refused.
    async fn store_each(self, shared: &Shared, session: &mut Option<Session>) {
        let Placed { batch, publishers, since, .. } = self;
        shared.holdings.receive(batch.token(), []);
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
        shared.holdings.receive(token, claimed.iter().map(|claimed| claimed.unit));
        if let Some(sink) = sink {
            shared.hand_over(&sink, claimed);
        }
        if let Some(at) = earliest_due {
            shared.waits(at);
        }
        if is_due {
            shared.herald.say();
        }
        let mut answers = answers.into_iter();
        for (count, reply) in publishers {
            // Who has stopped waiting does not want to know.
            let _ = reply.send(Ok(answers.by_ref().take(count).collect()));
        }
    }

    fn refuse(self, shared: &Shared, error: StoreError) {
        if matches!(error, StoreError::Unknown { .. }) {
            shared.holdings.lose(self.batch.token()); // what of it was stored as running is found out
        } else {
            shared.holdings.receive(self.batch.token(), []);
        }
        drop(self.batch); // gives its places back before anybody hears of it
        let errors = for_each(error, self.publishers.len());
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
        Err(error) if fate(&error) == Fate::Refused && settles.len() > 1 => {
            // Each by itself: then it shows which one was refused.
            for settle in settles {
                Box::pin(settle_all(shared, session, vec![settle])).await;
            }
        }
        Err(error) => {
            let errors = for_each(shared.explain(error), settles.len());
            for (settle, error) in settles.into_iter().zip(errors) {
                give_back(settle, error);
            }
        }
    }
}

async fn conclude(shared: &Shared, session: &Session, settle: Settle, mut finished: Finished) {
    if settle.is_again && finished == Finished::NotYet {
        match settle::how_it_ended(session, &settle.claimed).await {
            Ok(before) => finished = before,
            Err(error) => return give_back(settle, shared.explain(error)),
        }
    }
    let Settle { claimed, settlement, reply, .. } = settle;
    shared.holdings.give_up(claimed.unit, claimed.fence);
    if let Some(at) = settle::due_again(&settlement) {
        shared.waits(at);
        if at <= settlement.at {
            shared.herald.say(); // it may be owed to somebody elsewhere
        }
    }
    drop(claimed); // before the answer: whoever gets it finds the place free
    let _ = reply.send(Ok(finished));
}

fn give_back(settle: Settle, error: StoreError) {
    let _ = settle.reply.send(Err((error, settle.claimed, settle.settlement)));
}

/// Without a connection nothing was sent.
fn refuse(appends: Vec<Append>, settles: Vec<Settle>, error: StoreError) {
    let mut errors = for_each(error, appends.len() + settles.len());
    for (append, error) in appends.into_iter().zip(errors.by_ref()) {
        let _ = append.reply.send(Err(error));
    }
    for (settle, error) in settles.into_iter().zip(errors) {
        give_back(settle, error);
    }
}

/// One error for all whom it concerns: for the first as it is, for the others in the same words.
fn for_each(error: StoreError, count: usize) -> impl Iterator<Item = StoreError> {
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
        // Several share an error only where the connection is the reason.
        other => StoreError::Unreachable { server: "the server".into(), why: other.to_string() },
    }
}
