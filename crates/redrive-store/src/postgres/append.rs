//! Stores a batch of events with one statement: one transaction, one round trip, all or nothing.
//!
//! An event that is due at once and gets an in-flight slot is stored as running, which saves its claim.
//!
//! If the connection is lost before the answer arrives, the outcome is unknown. The batch then sends the statement again:
//! the unique id finds an event that the first statement stored (and waits for it if it is not committed yet), and the claim
//! token in its row identifies it as this batch's own.

mod columns;
mod transactional;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use redrive_retry::Timestamp;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use self::columns::Columns;
use super::session::Session;
use super::{read, status};
use crate::error::StoreError;
use crate::event::{EventId, NewEvent, Routing, SubscriptionName};
pub(super) use crate::sql::event_row::EventRow as Row;
use crate::store::Appended;
use crate::work::{ClaimKey, ClaimSink, Claimed, Fence, Slot};

pub use self::transactional::append_in;

/// Finds the events and deliveries that were stored under one claim token. Tokens are unique.
const FIND: &str = "
    SELECT key, id, status, NULL::text FROM redrive.event WHERE id = ANY($1::uuid[]) AND token = $2
    UNION ALL
    SELECT d.key, e.id, d.status, d.subscription
    FROM redrive.event e JOIN redrive.delivery d ON d.event_key = e.key AND d.token = $2
    WHERE e.id = ANY($1::uuid[]) AND e.token = $2";

/// A larger batch is split into several statements in one transaction.
const MAX_STATEMENT_BYTES: usize = 32 << 20;

/// Checks the limits of events, and that no payload contains NUL, which PostgreSQL cannot store.
pub(super) fn check(events: &[NewEvent], max_payload: usize) -> Result<(), StoreError> {
    NewEvent::check_all(events, max_payload)?;
    if events.iter().any(|event| event.payload.contains('\0')) { Err(StoreError::Nul) } else { Ok(()) }
}

/// Marks the rows whose id occurs earlier in the batch.
fn repeated_ids(rows: &[Row]) -> Vec<bool> {
    if rows.is_sorted_by(|one, next| one.event.id < next.event.id) {
        return vec![false; rows.len()]; // time-ordered ids
    }
    let mut ids = HashSet::with_capacity(rows.len());
    rows.iter().map(|row| !ids.insert(row.event.id)).collect()
}

/// Returns a repeated id that stands for different events, one of them of a publish of several.
fn ambiguous_id(rows: &[Row], is_repeated: &[bool], batches: &[Range<usize>]) -> Option<EventId> {
    let mut repeated = (0..rows.len()).filter(|index| is_repeated[*index]).peekable();
    if batches.is_empty() || repeated.peek().is_none() {
        return None;
    }
    let firsts: HashMap<EventId, usize> = (0..rows.len())
        .filter(|index| !is_repeated[*index])
        .map(|index| (rows[index].event.id, index))
        .collect();
    let is_of_batch = |index: &usize| batches.iter().any(|batch| batch.contains(index));
    let content = |index: usize| (&rows[index].event.event_type, &rows[index].event.payload);
    repeated.find_map(|index| {
        let id = rows[index].event.id;
        let first = firsts.get(&id)?;
        ((is_of_batch(&index) || is_of_batch(first)) && content(index) != content(*first)).then_some(id)
    })
}

/// Rows, with in-flight slots for those that start at once.
#[derive(Debug)]
pub(super) struct Batch {
    rows: Vec<Row>,
    /// The slot of each row's event, if the event is tracked as a whole. `None` for a repeated id.
    events: Vec<Option<Slot>>,
    /// Deliveries: index of the row, subscription, slot.
    deliveries: Vec<(usize, SubscriptionName, Option<Slot>)>,
    /// Whether a row repeats the id of an earlier row of the batch, and so is a duplicate.
    is_repeated: Vec<bool>,
    /// The rows of publishes of several events: stored all or none of each publish, so that an id of another event refuses it.
    batches: Vec<Range<usize>>,
    /// An id of such a publish that another publish uses for another event: they cannot share a statement.
    ambiguous: Option<EventId>,
    fence: Fence,
    is_registered: bool,
}

impl Batch {
    /// Makes a batch, with in-flight slots for its due events and deliveries while the sink has free ones. The caller holds the
    /// sink's lock.
    ///
    /// `batches` are the rows of publishes of several events.
    pub(super) fn place(
        rows: Vec<Row>,
        batches: Vec<Range<usize>>,
        sink: Option<&ClaimSink>,
        owner: Option<i64>,
        token: i64,
    ) -> Self {
        let is_repeated = repeated_ids(&rows);
        let sink = sink.filter(|_| owner.is_some());
        let (mut events, mut deliveries) = (Vec::with_capacity(rows.len()), Vec::new());
        for (index, row) in rows.iter().enumerate() {
            let sink = sink.filter(|_| row.is_due() && !is_repeated[index]);
            events.push(sink.filter(|_| row.is_whole()).and_then(ClaimSink::take));
            if !is_repeated[index] {
                deliveries.extend(
                    row.to
                        .subscriptions()
                        .iter()
                        .map(|name| (index, name.clone(), sink.and_then(ClaimSink::take))),
                );
            }
        }
        let fence = Fence { owner: owner.unwrap_or(0), token };
        let ambiguous = ambiguous_id(&rows, &is_repeated, &batches);
        let is_registered = owner.is_some();
        Batch { rows, events, deliveries, is_repeated, batches, ambiguous, fence, is_registered }
    }

    /// Returns the rows and frees their slots.
    pub(super) fn into_rows(self) -> Vec<Row> {
        self.rows
    }

    pub(super) fn token(&self) -> i64 {
        self.fence.token
    }

    /// Whether one statement stores the batch, so that no explicit transaction is needed.
    pub(super) fn is_one_statement(&self) -> bool {
        self.parts().len() <= 1
    }

    /// Stores all events, or none, by one statement if it can. Ids that existed before are answered behind a barrier.
    pub(super) async fn store(&self, session: &Session) -> Result<Inserted, Error> {
        if let Some(id) = self.ambiguous {
            return Ok(Inserted::IdTaken(id));
        }
        let mut parts = self.parts();
        if parts.len() > 1 {
            return self.store_in_transaction(session).await;
        }
        let mut stored = Stored::nothing(self);
        if let Some(part) = parts.pop()
            && !self.store_alone(session, part, &mut stored).await?
        {
            return Ok(Inserted::NeedsTransaction);
        }
        self.behind_barrier(session, stored).await
    }

    /// Stores all events, or none, in a transaction, which is rolled back if an event of a batch has the id of another one.
    pub(super) async fn store_in_transaction(&self, session: &Session) -> Result<Inserted, Error> {
        let work = async {
            let mut stored = Stored::nothing(self);
            for part in self.parts() {
                self.store_columns(session, &Columns::new(self, &part), &mut stored).await?;
            }
            match self.taken_id(session, &stored).await? {
                Some(id) => Err(Undone::Taken(id)),
                None => Ok(stored),
            }
        };
        match session.transaction(work).await {
            Ok(stored) => self.behind_barrier(session, stored).await,
            Err(Undone::Taken(id)) => Ok(Inserted::IdTaken(id)),
            Err(Undone::Failed(error)) => Err(error),
        }
    }

    async fn behind_barrier(&self, session: &Session, stored: Stored) -> Result<Inserted, Error> {
        if self.existed(&stored).next().is_some() {
            session.barrier().await?;
        }
        Ok(Inserted::Stored(stored))
    }

    /// Returns the id of a batch's event under which another event was stored before.
    async fn taken_id(&self, session: &Session, stored: &Stored) -> Result<Option<EventId>, Error> {
        // By id: the first row with an id of a batch may be of another publish.
        let rows = self.batches.iter().flat_map(Range::clone);
        let ids: HashSet<EventId> = rows.map(|index| self.rows[index].event.id).collect();
        let existed: Vec<usize> =
            self.existed(stored).filter(|index| ids.contains(&self.rows[*index].event.id)).collect();
        if existed.is_empty() {
            return Ok(None);
        }
        let events = existed.iter().map(|index| &self.rows[*index].event);
        let contents = events.map(|event| (event.id, event.event_type.as_str(), &*event.payload));
        Ok(read::taken_among(session, contents).await?.first().copied())
    }

    /// Splits the rows into ranges that fit into one statement.
    fn parts(&self) -> Vec<Range<usize>> {
        let (mut parts, mut first, mut bytes) = (Vec::new(), 0, 0);
        for (index, row) in self.rows.iter().enumerate() {
            if bytes + row.size() > MAX_STATEMENT_BYTES && index > first {
                parts.push(first..index);
                (first, bytes) = (index, 0);
            }
            bytes += row.size();
        }
        if first < self.rows.len() {
            parts.push(first..self.rows.len());
        }
        parts
    }

    /// Stores a range in a transaction of one statement: the fast one for new ids, and after a unique violation the general one.
    /// Returns `false`, with nothing stored, if an id may exist already and decide about a whole batch.
    async fn store_alone(
        &self,
        session: &Session,
        part: Range<usize>,
        stored: &mut Stored,
    ) -> Result<bool, Error> {
        let columns = Columns::new(self, &part);
        if let Some(statement) = columns.fast_statement()
            && session.expects_new_ids()
        {
            match session.query(statement, &columns.parameters()).await {
                Ok(found) => {
                    found.iter().for_each(|row| stored.add_new(self, &part, row));
                    return Ok(true);
                }
                Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                    session.saw_old_id();
                    if !self.batches.is_empty() {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        if self.batches.is_empty() {
            self.store_columns(session, &columns, stored).await?;
            return Ok(true);
        }
        match session.query(columns.statement_of_new(), &columns.parameters()).await {
            Ok(found) => {
                stored.add(self, &found);
                Ok(self.existed(stored).next().is_none())
            }
            Err(error) if error.code() == Some(&SqlState::DIVISION_BY_ZERO) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn store_columns(
        &self,
        session: &Session,
        columns: &Columns<'_>,
        stored: &mut Stored,
    ) -> Result<(), Error> {
        let found = session.query(columns.statement(), &columns.parameters()).await?;
        stored.add(self, &found);
        Ok(())
    }

    fn id(&self, index: usize) -> Uuid {
        *self.rows[index].event.id.as_uuid()
    }

    /// The indexes of the rows to store: all but repeated ids.
    fn firsts(&self, part: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        part.filter(|index| !self.is_repeated[*index])
    }

    /// The indexes of the rows whose ids existed before their insert.
    fn existed(&self, stored: &Stored) -> impl Iterator<Item = usize> {
        self.firsts(0..self.rows.len()).filter(|index| stored.events[*index].is_none())
    }

    /// The status that an event gets if this process is still registered.
    fn wanted(&self, index: usize) -> i16 {
        let row = &self.rows[index];
        match (&row.to, &self.events[index]) {
            (Routing::None, _) => status::DONE,
            _ if !row.is_whole() => status::DELIVERING,
            (_, Some(_)) => status::RUNNING,
            (_, None) => status::PENDING,
        }
    }

    /// Stores the batch after the answer to the first statement was lost. Rows under this batch's token are its own.
    pub(super) async fn store_again(&self, session: &Session) -> Result<Inserted, Error> {
        let mut inserted = self.store(session).await?;
        if matches!(inserted, Inserted::NeedsTransaction) {
            inserted = self.store_in_transaction(session).await?;
        }
        let Inserted::Stored(mut stored) = inserted else { return Ok(inserted) };
        let missing: Vec<Uuid> = self.existed(&stored).map(|index| self.id(index)).collect();
        if !missing.is_empty() {
            let found = session.query(FIND, &[&missing, &self.fence.token]).await?;
            stored.add(self, &found);
        }
        Ok(Inserted::Stored(stored))
    }

    /// Maps the committed rows to the answers for the publishers and the claims for the dispatcher.
    pub(super) fn stored(self, stored: &Stored) -> Outcome {
        let Batch { rows, events, deliveries, fence, .. } = self;
        let mut outcome = Outcome { answers: Vec::with_capacity(rows.len()), ..Outcome::default() };
        for ((row, slot), found) in rows.iter().zip(events).zip(&stored.events) {
            let Some((key, state)) = *found else {
                outcome.answers.push(Appended::Duplicate);
                continue;
            };
            outcome.answers.push(Appended::New);
            let claim = |slot| Claimed::first(Arc::clone(&row.event), None, ClaimKey::Event(key), slot);
            outcome.add(row, state, slot.map(|slot| Claimed { fence, ..claim(slot) }));
        }
        for ((index, name, slot), found) in deliveries.into_iter().zip(&stored.deliveries) {
            let (row, event) = (&rows[index], stored.events[index].map(|(key, _)| key));
            let (Some(event), Some((key, state))) = (event, *found) else { continue };
            let key = ClaimKey::Delivery { delivery: key, event };
            let claim = |slot| Claimed::first(Arc::clone(&row.event), Some(name), key, slot);
            outcome.add(row, state, slot.map(|slot| Claimed { fence, ..claim(slot) }));
        }
        outcome
    }
}

/// The status that a delivery gets if this process is still registered.
fn wanted(slot: Option<&Slot>) -> i16 {
    if slot.is_some() { status::RUNNING } else { status::PENDING }
}

/// Result of storing a batch.
#[derive(Debug)]
pub(super) enum Inserted {
    Stored(Stored),
    /// Nothing was stored: an id may exist already, and a transaction has to decide.
    NeedsTransaction,
    /// Nothing was stored: another event has this id of a publish of several events.
    IdTaken(EventId),
}

/// Cause of the rollback of a transaction.
enum Undone {
    Taken(EventId),
    Failed(Error),
}

impl From<Error> for Undone {
    fn from(error: Error) -> Self {
        Undone::Failed(error)
    }
}

/// Keys and statuses of the rows that a batch has stored.
#[derive(Debug)]
pub(super) struct Stored {
    /// In the order of the rows. `None` if the id existed before.
    events: Vec<Option<(i64, i16)>>,
    /// In the order of the batch's deliveries.
    deliveries: Vec<Option<(i64, i16)>>,
}

impl Stored {
    fn nothing(batch: &Batch) -> Self {
        Stored { events: vec![None; batch.rows.len()], deliveries: vec![None; batch.deliveries.len()] }
    }

    /// Adds a range from the answer to a fast insert, which stores all rows.
    fn add_new(&mut self, batch: &Batch, part: &Range<usize>, row: &tokio_postgres::Row) {
        let (keys, is_known): (Vec<i64>, bool) = (row.get(0), row.get(1));
        let status = |wanted| if wanted == status::RUNNING && !is_known { status::PENDING } else { wanted };
        for (index, key) in batch.firsts(part.clone()).zip(keys) {
            self.events[index] = Some((key, status(batch.wanted(index))));
        }
        let delivery_keys: Option<Vec<i64>> = row.get(2);
        let mut delivery_keys = delivery_keys.unwrap_or_default().into_iter();
        for ((index, _, slot), stored) in batch.deliveries.iter().zip(&mut self.deliveries) {
            if part.contains(index) {
                *stored = delivery_keys.next().map(|key| (key, status(wanted(slot.as_ref()))));
            }
        }
    }

    /// Adds the stored events and deliveries from the answer to any other insert, or to [`FIND`].
    fn add(&mut self, batch: &Batch, found: &[tokio_postgres::Row]) {
        let events: HashMap<Uuid, usize> =
            batch.firsts(0..batch.rows.len()).map(|index| (batch.id(index), index)).collect();
        let deliveries = batch.deliveries.iter().enumerate();
        let deliveries: HashMap<(Uuid, &str), usize> =
            deliveries.map(|(place, (index, name, _))| ((batch.id(*index), name.as_str()), place)).collect();
        for row in found {
            let (id, entry): (Uuid, (i64, i16)) = (row.get(1), (row.get(0), row.get(2)));
            let subscription: Option<&str> = if row.len() > 3 { row.get(3) } else { None };
            let stored = match subscription {
                None => events.get(&id).map(|index| &mut self.events[*index]),
                Some(name) => deliveries.get(&(id, name)).map(|place| &mut self.deliveries[*place]),
            };
            if let Some(stored) = stored {
                *stored = Some(entry);
            }
        }
    }
}

/// The result of a committed batch.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// In the order of the rows.
    pub(super) answers: Vec<Appended>,
    pub(super) claimed: Vec<Claimed>,
    /// The earliest due time of the events and deliveries that were stored without a claim.
    pub(super) earliest_due: Option<Timestamp>,
    /// Whether one of them is due now, so that another process may claim it.
    pub(super) is_due: bool,
}

impl Outcome {
    /// Adds a stored event or delivery. Its slot is freed unless it was stored as running.
    fn add(&mut self, row: &Row, state: i16, claimed: Option<Claimed>) {
        if state == status::RUNNING {
            self.claimed.extend(claimed);
        } else if state == status::PENDING {
            self.earliest_due = self.earliest_due.into_iter().chain([row.due_at]).min();
            self.is_due |= row.is_due();
        }
    }
}
