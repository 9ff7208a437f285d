//! Storing events. What is due at once and finds room in flight is stored as running already: one statement less.
//!
//! However many publishers wait, and whatever they bring, it is one statement: it is a transaction of its own, so all of it
//! is stored or nothing, and it takes one round trip.
//!
//! If the connection is lost before the answer comes, nobody knows whether it was stored. The same statement is then sent
//! once more: what was stored before is found by its id, waited for if it is still on its way, and known as our own by the
//! token in it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use redrive_retry::Timestamp;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::session::Session;
use super::value::Value;
use super::{failure, status};
use crate::error::StoreError;
use crate::event::{NewEvent, StoredEvent, SubscriptionName, To};
use crate::store::Appended;
use crate::work::{ClaimSink, Claimed, Fence, Slot, UnitKey};

/// Running only if the process is still known, and nobody can declare it dead before this is committed: else it waits like
/// anything else.
macro_rules! insert {
    ($($rest:literal),*) => {
        concat!(
            "WITH me AS (SELECT key FROM redrive.process WHERE key = $1 AND void_until < $2 FOR KEY SHARE),
             fresh AS (
               INSERT INTO redrive.event (id, type, status, due_at, ready_at, owner, token, created_at, updated_at)
               SELECT u.id, u.type, s.status, CASE WHEN s.status < 3 THEN u.due_at END,
                      CASE WHEN s.status = 0 THEN greatest(u.due_at, 0) END, $1, $2, u.created_at, u.created_at
               FROM unnest($3::uuid[], $4::text[], $5::smallint[], $6::bigint[], $7::bigint[])
                    AS u(id, type, wanted, due_at, created_at),
               LATERAL (SELECT CASE WHEN u.wanted = 1 AND NOT EXISTS (SELECT 1 FROM me) THEN 0::smallint
                                    ELSE u.wanted END AS status) s
               ON CONFLICT (id) DO NOTHING RETURNING key, id, status),
             bodies AS (
               INSERT INTO redrive.payload (event_key, payload, metadata, retry)
               SELECT f.key, b.payload, b.metadata, b.retry
               FROM fresh f JOIN unnest($3::uuid[], $8::text[], $9::text[], $10::text[])
                    AS b(id, payload, metadata, retry) ON b.id = f.id)",
            $($rest),*
        )
    };
}

const INSERT: &str = insert!(" SELECT key, id, status FROM fresh");

/// The same for ids that are new, as nearly all are. The keys are given beforehand, each table is filled from its own columns,
/// and the answer is one row: nothing is joined, kept aside or written on trial. One id that is there already refuses all of it.
///
/// Functions that return several rows go in step where they stand side by side, and unlike in `FROM` nothing is kept of them.
const INSERT_NEW: &str = "
    WITH me AS (SELECT key FROM redrive.process WHERE key = $1 AND void_until < $2 FOR KEY SHARE),
    new AS MATERIALIZED (
      SELECT array_agg(nextval('redrive.event_key_seq')) AS keys, EXISTS (SELECT 1 FROM me) AS is_known
      FROM generate_series(1, cardinality($3::uuid[]))),
    events AS (
      INSERT INTO redrive.event (key, id, type, status, due_at, ready_at, owner, token, created_at, updated_at)
      SELECT key, id, type, CASE WHEN wanted = 1 AND NOT is_known THEN 0::smallint ELSE wanted END, CASE WHEN wanted < 3 THEN due_at END,
             CASE WHEN wanted = 0 OR wanted = 1 AND NOT is_known THEN greatest(due_at, 0) END,
             $1, $2, created_at, created_at
      FROM (SELECT is_known, unnest(keys) AS key, unnest($3::uuid[]) AS id, unnest($4::text[]) AS type,
                   unnest($5::smallint[]) AS wanted, unnest($6::bigint[]) AS due_at, unnest($7::bigint[]) AS created_at
            FROM new) rows),
    bodies AS (
      INSERT INTO redrive.payload (event_key, payload, metadata, retry)
      SELECT unnest(keys), unnest($8::text[]), unnest($9::text[]), unnest($10::text[]) FROM new)
    SELECT keys, is_known FROM new";

const INSERT_ADDRESSED: &str = insert!(
    ", owed AS (
         INSERT INTO redrive.delivery (event_key, subscription, status, due_at, ready_at, owner, token, updated_at)
         SELECT f.key, d.subscription, s.status, d.due_at, CASE WHEN s.status = 0 THEN greatest(d.due_at, 0) END,
                $1, $2, d.created_at
         FROM unnest($11::uuid[], $12::text[], $13::smallint[], $14::bigint[], $15::bigint[]) WITH ORDINALITY
              AS d(id, subscription, wanted, due_at, created_at, place) JOIN fresh f ON f.id = d.id,
         LATERAL (SELECT CASE WHEN d.wanted = 1 AND NOT EXISTS (SELECT 1 FROM me) THEN 0::smallint
                              ELSE d.wanted END AS status) s
         ORDER BY d.place RETURNING key, event_key, subscription, status)
       SELECT key, id, status, NULL::bigint, NULL::text FROM fresh
       UNION ALL
       SELECT o.key, f.id, o.status, o.event_key, o.subscription FROM owed o JOIN fresh f ON f.key = o.event_key"
);

/// What of these was stored under this token, which nobody else uses.
const FIND: &str = "
    SELECT key, id, status, NULL::bigint, NULL::text FROM redrive.event WHERE id = ANY($1::uuid[]) AND token = $2
    UNION ALL
    SELECT d.key, e.id, d.status, d.event_key, d.subscription
    FROM redrive.event e JOIN redrive.delivery d ON d.event_key = e.key AND d.token = $2
    WHERE e.id = ANY($1::uuid[]) AND e.token = $2";

/// The most bytes in one statement; more of them are a transaction.
const LARGEST_STATEMENT: usize = 32 << 20;

/// An event ready to be written. What can be prepared is prepared before its turn.
#[derive(Debug)]
pub(super) struct Row {
    event: Arc<StoredEvent>,
    /// Each is named once.
    to: To,
    due_at: Timestamp,
    metadata: Option<String>,
    retry: Option<String>,
}

impl Row {
    fn is_due(&self) -> bool {
        self.due_at <= self.event.created_at
    }

    /// Whether it is handled as one.
    fn is_whole(&self) -> bool {
        self.to != To::Nobody && self.to.addressees().is_empty()
    }

    /// About so many bytes.
    pub(super) fn size(&self) -> usize {
        self.event.payload.len() + self.metadata.as_ref().map_or(0, String::len) + 256
    }
}

impl From<NewEvent> for Row {
    fn from(new: NewEvent) -> Self {
        let NewEvent { id, event_type, payload, metadata, created_at, due_at, retry, mut to } = new;
        if let To::Each(names) = &mut to {
            let mut seen = HashSet::new();
            names.retain(|name| seen.insert(name.clone()));
        }
        Row {
            metadata: (!metadata.is_empty()).then(|| json(&metadata)),
            retry: retry.as_ref().map(json),
            event: Arc::new(StoredEvent { id, event_type, payload, metadata, created_at, retry }),
            to,
            due_at,
        }
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("maps of text and numbers always serialise")
}

/// Whether events can be stored at all.
pub(super) fn check(events: &[NewEvent], max_payload: usize) -> Result<(), StoreError> {
    NewEvent::check_all(events, max_payload)?;
    if events.iter().any(|event| event.payload.contains('\0')) { Err(StoreError::Nul) } else { Ok(()) }
}

/// Which rows have the id of one before them.
fn seconds(rows: &[Row]) -> Vec<bool> {
    if rows.is_sorted_by(|one, next| one.event.id < next.event.id) {
        return vec![false; rows.len()]; // as ids that were made one after the other are
    }
    let mut ids = HashSet::with_capacity(rows.len());
    rows.iter().map(|row| !ids.insert(row.event.id)).collect()
}

/// Rows with their places among the work in flight, for those that begin at once.
#[derive(Debug)]
pub(super) struct Batch {
    rows: Vec<Row>,
    /// Of the event, if it is tracked as one; empty for the second of one id.
    events: Vec<Option<Slot>>,
    /// Of the single subscriptions: which row, whom, and the place.
    deliveries: Vec<(usize, SubscriptionName, Option<Slot>)>,
    /// The second of one id in one batch is a duplicate of the first.
    is_second: Vec<bool>,
    fence: Fence,
    is_registered: bool,
}

impl Batch {
    /// Takes places in the sink, as many as there are. Called while nobody can be detached.
    pub(super) fn place(rows: Vec<Row>, sink: Option<&ClaimSink>, owner: Option<i64>, token: i64) -> Self {
        let is_second = seconds(&rows);
        let sink = sink.filter(|_| owner.is_some());
        let (mut events, mut deliveries) = (Vec::with_capacity(rows.len()), Vec::new());
        for (place, row) in rows.iter().enumerate() {
            let sink = sink.filter(|_| row.is_due() && !is_second[place]);
            events.push(sink.filter(|_| row.is_whole()).and_then(ClaimSink::take));
            if !is_second[place] {
                deliveries.extend(
                    row.to
                        .addressees()
                        .iter()
                        .map(|name| (place, name.clone(), sink.and_then(ClaimSink::take))),
                );
            }
        }
        let fence = Fence { owner: owner.unwrap_or(0), token };
        Batch { rows, events, deliveries, is_second, fence, is_registered: owner.is_some() }
    }

    /// The rows without their places.
    pub(super) fn into_rows(self) -> Vec<Row> {
        self.rows
    }

    pub(super) fn token(&self) -> i64 {
        self.fence.token
    }

    /// Whether it is stored by one statement, which is a transaction by itself.
    pub(super) fn is_one_statement(&self) -> bool {
        self.parts().len() <= 1
    }

    /// Stores all of them, or none.
    pub(super) async fn store(&self, session: &Session) -> Result<Stored, Error> {
        let mut stored = Stored::nothing(self);
        let mut parts = self.parts();
        if parts.len() <= 1 {
            if let Some(part) = parts.pop() {
                self.store_alone(session, part, &mut stored).await?;
            }
            return Ok(stored);
        }
        session.begin().await?;
        for part in parts {
            if let Err(error) = self.store_part(session, part, &mut stored).await {
                session.roll_back().await;
                return Err(error);
            }
        }
        session.commit().await?;
        Ok(stored)
    }

    /// What fits into one statement.
    fn parts(&self) -> Vec<std::ops::Range<usize>> {
        let (mut parts, mut first, mut bytes) = (Vec::new(), 0, 0);
        for (place, row) in self.rows.iter().enumerate() {
            if bytes + row.size() > LARGEST_STATEMENT && place > first {
                parts.push(first..place);
                (first, bytes) = (place, 0);
            }
            bytes += row.size();
        }
        if first < self.rows.len() {
            parts.push(first..self.rows.len());
        }
        parts
    }

    /// What is a statement, and a transaction, of its own: if it is refused, nothing of it was done, and it can be tried in
    /// another way.
    async fn store_alone(
        &self,
        session: &Session,
        part: std::ops::Range<usize>,
        stored: &mut Stored,
    ) -> Result<(), Error> {
        if self.deliveries.is_empty() && session.expects_new_ids() {
            let columns = Columns::new(self, &part);
            match session.query(INSERT_NEW, &columns.values()).await {
                Ok(found) => {
                    found.iter().for_each(|row| stored.add_new(self, &part, row));
                    return Ok(());
                }
                Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => session.saw_old_id(),
                Err(error) => return Err(error),
            }
        }
        self.store_part(session, part, stored).await
    }

    async fn store_part(
        &self,
        session: &Session,
        part: std::ops::Range<usize>,
        stored: &mut Stored,
    ) -> Result<(), Error> {
        let columns = Columns::new(self, &part);
        let found = session.query(columns.statement(), &columns.values()).await?;
        stored.add(self, &found);
        Ok(())
    }

    fn id(&self, place: usize) -> Uuid {
        *self.rows[place].event.id.as_uuid()
    }

    /// The places of those that are stored; the second of one id is not.
    fn firsts(&self, part: std::ops::Range<usize>) -> impl Iterator<Item = usize> + '_ {
        part.filter(|place| !self.is_second[*place])
    }

    fn wanted(&self, place: usize) -> i16 {
        let row = &self.rows[place];
        match (&row.to, &self.events[place]) {
            (To::Nobody, _) => status::DONE,
            _ if !row.is_whole() => status::DELIVERING,
            (_, Some(_)) => status::RUNNING,
            (_, None) => status::PENDING,
        }
    }

    /// The same again, after an answer was lost: what is there under our token was stored by us.
    pub(super) async fn store_again(&self, session: &Session) -> Result<Stored, Error> {
        let mut stored = self.store(session).await?;
        let missing: Vec<Uuid> = (0..self.rows.len())
            .filter(|place| stored.events[*place].is_none() && !self.is_second[*place])
            .map(|place| self.id(place))
            .collect();
        if !missing.is_empty() {
            let found = session.query(FIND, &[&missing, &self.fence.token]).await?;
            stored.add(self, &found);
        }
        Ok(stored)
    }

    /// What happens next to each, now that it is committed.
    pub(super) fn stored(self, stored: &Stored) -> Outcome {
        let Batch { rows, events, deliveries, fence, .. } = self;
        let mut outcome = Outcome { answers: Vec::with_capacity(rows.len()), ..Outcome::default() };
        for ((row, slot), found) in rows.iter().zip(events).zip(&stored.events) {
            let Some((key, state)) = *found else {
                outcome.answers.push(Appended::Duplicate);
                continue;
            };
            outcome.answers.push(Appended::New);
            match slot.filter(|_| state == status::RUNNING) {
                Some(slot) => {
                    let first = Claimed::first(Arc::clone(&row.event), None, UnitKey::Event(key), slot);
                    outcome.claimed.push(Claimed { fence, ..first });
                }
                None if state == status::PENDING => outcome.wait(row),
                None => {}
            }
        }
        for (place, name, slot) in deliveries {
            let row = &rows[place];
            let event = stored.events[place].map(|(key, _)| key);
            let found = event.and_then(|event| stored.deliveries.get(&(event, name.as_str().to_owned())));
            let (Some(event), Some((key, state))) = (event, found.copied()) else { continue };
            match slot.filter(|_| state == status::RUNNING) {
                Some(slot) => {
                    let unit = UnitKey::Delivery { delivery: key, event };
                    let first = Claimed::first(Arc::clone(&row.event), Some(name.clone()), unit, slot);
                    outcome.claimed.push(Claimed { fence, ..first });
                }
                None if state == status::PENDING => outcome.wait(row),
                None => {}
            }
        }
        outcome
    }
}

/// The values of some rows, by column.
struct Columns<'a> {
    owner: Option<i64>,
    token: i64,
    ids: Vec<Uuid>,
    types: Vec<&'a str>,
    wanted: Vec<i16>,
    due: Vec<i64>,
    created: Vec<i64>,
    payloads: Vec<&'a str>,
    metadata: Vec<Option<&'a str>>,
    retries: Vec<Option<&'a str>>,
    owed_ids: Vec<Uuid>,
    owed_names: Vec<&'a str>,
    owed_wanted: Vec<i16>,
    owed_due: Vec<i64>,
    owed_created: Vec<i64>,
}

impl<'a> Columns<'a> {
    fn new(batch: &'a Batch, part: &std::ops::Range<usize>) -> Self {
        let places: Vec<usize> = batch.firsts(part.clone()).collect();
        let rows = || places.iter().map(|place| &batch.rows[*place]);
        let owed = || batch.deliveries.iter().filter(|(place, ..)| part.contains(place));
        let owed_rows = || owed().map(|(place, ..)| &batch.rows[*place]);
        Columns {
            owner: batch.is_registered.then_some(batch.fence.owner),
            token: batch.fence.token,
            ids: rows().map(|row| *row.event.id.as_uuid()).collect(),
            types: rows().map(|row| row.event.event_type.as_str()).collect(),
            wanted: places.iter().map(|place| batch.wanted(*place)).collect(),
            due: rows().map(|row| row.due_at.as_millis()).collect(),
            created: rows().map(|row| row.event.created_at.as_millis()).collect(),
            payloads: rows().map(|row| &*row.event.payload).collect(),
            metadata: rows().map(|row| row.metadata.as_deref()).collect(),
            retries: rows().map(|row| row.retry.as_deref()).collect(),
            owed_ids: owed_rows().map(|row| *row.event.id.as_uuid()).collect(),
            owed_names: owed().map(|(_, name, _)| name.as_str()).collect(),
            owed_wanted: owed()
                .map(|(.., slot)| if slot.is_some() { status::RUNNING } else { status::PENDING })
                .collect(),
            owed_due: owed_rows().map(|row| row.due_at.as_millis()).collect(),
            owed_created: owed_rows().map(|row| row.event.created_at.as_millis()).collect(),
        }
    }

    fn statement(&self) -> &'static str {
        if self.owed_ids.is_empty() { INSERT } else { INSERT_ADDRESSED }
    }

    fn values(&self) -> Vec<&dyn Value> {
        let mut values: Vec<&dyn Value> = vec![
            &self.owner,
            &self.token,
            &self.ids,
            &self.types,
            &self.wanted,
            &self.due,
            &self.created,
            &self.payloads,
            &self.metadata,
            &self.retries,
        ];
        if !self.owed_ids.is_empty() {
            values.extend([
                &self.owed_ids as &dyn Value,
                &self.owed_names,
                &self.owed_wanted,
                &self.owed_due,
                &self.owed_created,
            ]);
        }
        values
    }
}

/// What the database says is there: keys, and how it stands.
#[derive(Debug)]
pub(super) struct Stored {
    /// In the order of the rows; empty for what is not ours.
    events: Vec<Option<(i64, i16)>>,
    deliveries: HashMap<(i64, String), (i64, i16)>,
}

impl Stored {
    fn nothing(batch: &Batch) -> Self {
        Stored { events: vec![None; batch.rows.len()], deliveries: HashMap::new() }
    }

    /// All of a part, from the answer to [`INSERT_NEW`].
    fn add_new(&mut self, batch: &Batch, part: &std::ops::Range<usize>, row: &tokio_postgres::Row) {
        let (keys, is_known): (Vec<i64>, bool) = (row.get(0), row.get(1));
        for (place, key) in batch.firsts(part.clone()).zip(keys) {
            let status = match batch.wanted(place) {
                status::RUNNING if !is_known => status::PENDING,
                wanted => wanted,
            };
            self.events[place] = Some((key, status));
        }
    }

    fn add(&mut self, batch: &Batch, found: &[tokio_postgres::Row]) {
        let places: HashMap<Uuid, usize> =
            batch.firsts(0..batch.rows.len()).map(|place| (batch.id(place), place)).collect();
        for row in found {
            let entry: (i64, i16) = (row.get(0), row.get(2));
            match if row.len() > 3 { row.get::<_, Option<i64>>(3) } else { None } {
                None => {
                    if let Some(place) = places.get(&row.get::<_, Uuid>(1)) {
                        self.events[*place] = Some(entry);
                    }
                }
                Some(event) => drop(self.deliveries.insert((event, row.get(4)), entry)),
            }
        }
    }
}

/// What became of a batch.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// In the order of the rows.
    pub(super) answers: Vec<Appended>,
    pub(super) claimed: Vec<Claimed>,
    /// When the first of those that wait is due.
    pub(super) earliest_due: Option<Timestamp>,
    /// Whether one of them could be handled now, by whoever has room.
    pub(super) is_due: bool,
}

impl Outcome {
    fn wait(&mut self, row: &Row) {
        self.earliest_due = Some(self.earliest_due.map_or(row.due_at, |earliest| earliest.min(row.due_at)));
        self.is_due |= row.is_due();
    }
}

/// Stores events inside a transaction of the caller's own, on the same database. They are handled once it is committed; who
/// dispatches hears of it at once.
///
/// ```no_run
/// # use redrive_store::{NewEvent, postgres::append_in};
/// # async fn publish(client: &mut tokio_postgres::Client, event: NewEvent) -> Result<(), Box<dyn std::error::Error>> {
/// let transaction = client.transaction().await?;
/// transaction.execute("UPDATE account SET balance = balance - 1 WHERE id = 7", &[]).await?;
/// append_in(&transaction, "redrive", &[event]).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
pub async fn append_in(
    transaction: &tokio_postgres::Transaction<'_>,
    schema: &str,
    events: &[NewEvent],
) -> Result<Vec<Appended>, StoreError> {
    let names = super::names::Names::new(schema)?;
    // How large a payload may be is known to the bus only; here it is what one statement can hold.
    check(events, i32::MAX as usize)?;
    let rows: Vec<Row> = events.iter().cloned().map(Row::from).collect();
    let batch = Batch::place(rows, None, None, 0);
    let mut stored = Stored::nothing(&batch);
    for part in batch.parts() {
        let columns = Columns::new(&batch, &part);
        let values = columns.values();
        let values: Vec<_> = values.iter().map(|value| (value.as_sql(), value.kind())).collect();
        let found = transaction
            .query_typed(&names.statement(columns.statement()), &values)
            .await
            .map_err(failure::explain)?;
        stored.add(&batch, &found);
    }
    let outcome = batch.stored(&stored);
    if outcome.earliest_due.is_some() {
        // The server says it once for each transaction, however often it is told.
        let notify = format!("NOTIFY {}", names.channel());
        transaction.batch_execute(&notify).await.map_err(failure::explain)?;
    }
    Ok(outcome.answers)
}
