//! Appends events. An event that is due and gets a free dispatcher slot is stored as running, so it needs no claim statement.

use std::sync::LazyLock;

use rusqlite::{CachedStatement, Connection, ErrorCode, OptionalExtension as _, ToSql};

use super::status;
use super::transaction::{Uncommitted, is_rolled_back, savepoint, unless_rolled_back};
use crate::error::StoreError;
use crate::event::{EventId, EventType, NewEvent, Routing};
pub(super) use crate::sql::event_row::EventRow as Row;
use crate::sql::retry_task::RetryTask;
use crate::store::Appended;
use crate::work::{ClaimKey, Slot};

const INSERT_ONE: &str = "
    INSERT INTO event (id, type, payload, metadata, status, due_at, retry, created_at, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8) ON CONFLICT (id) DO NOTHING";

const INSERT_DELIVERY: &str = "
    INSERT INTO delivery (event_key, subscription, status, due_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5)";

const MARK_SCHEDULED: &str = "UPDATE event SET scheduled = 1 WHERE key = ?1";

/// Puts a task into the retry queue. A message that failed before keeps its row, which then shows its last failure.
const INSERT_RETRY_MESSAGE: &str = "
    INSERT INTO retry_message (event_key, message_id, original_queue, retries, next_retry_at, discarded)
    VALUES (?1, ?2, ?3, ?4, strftime('%Y-%m-%d %H:%M:%f', min(max(?5, 0), 253402300799000) / 1000.0, 'unixepoch'), ?6)
    ON CONFLICT (message_id, original_queue) DO UPDATE SET event_key = excluded.event_key, retries = excluded.retries,
    next_retry_at = excluded.next_retry_at, discarded = excluded.discarded WHERE excluded.retries >= retry_message.retries";

/// Numbers of rows in one `INSERT`. A row in a large one costs 2.2 µs, a row in a statement of its own 3.1 µs (measured).
const LARGE_INSERT_ROWS: usize = 32;
const SMALL_INSERT_ROWS: usize = 8;
static INSERT_LARGE: LazyLock<String> = LazyLock::new(|| insert_rows(LARGE_INSERT_ROWS));
static INSERT_SMALL: LazyLock<String> = LazyLock::new(|| insert_rows(SMALL_INSERT_ROWS));

/// A row, and its slot if the event is claimed while it is stored.
struct Placed<'a> {
    row: &'a Row,
    state: i16,
    slot: Option<Slot>,
}

impl<'a> Placed<'a> {
    fn new(row: &'a Row, uncommitted: &Uncommitted) -> Self {
        let is_whole = row.is_whole();
        let slot = if is_whole && row.is_due() { uncommitted.take_slot() } else { None };
        let state = match (&row.to, &slot) {
            (Routing::None, _) => status::DONE,
            _ if !is_whole => status::DELIVERING,
            (_, Some(_)) => status::RUNNING,
            (_, None) => status::PENDING,
        };
        Placed { row, state, slot }
    }

    /// Records the claim or the due time of a row that was stored under this key.
    fn stored(self, key: i64, uncommitted: &mut Uncommitted) {
        if self.is_tracked_as_whole() {
            uncommitted.stored(self.row, None, ClaimKey::Event(key), self.slot);
        }
    }

    /// Returns whether the event itself, and not its deliveries, is the unit of work: pending or claimed.
    fn is_tracked_as_whole(&self) -> bool {
        matches!(self.state, status::RUNNING | status::PENDING)
    }
}

/// Appends the events of one batch publish. The caller undoes all of them if one fails, as it does where another event has the id of
/// one of several.
pub(super) fn append(
    connection: &Connection,
    rows: &[Row],
    uncommitted: &mut Uncommitted,
) -> Result<Vec<Appended>, StoreError> {
    let append_row = |row: &Row| {
        let appended = append_one(connection, Placed::new(row, uncommitted), uncommitted)?;
        let event = &row.event;
        if rows.len() > 1
            && appended == Appended::Duplicate
            && is_taken(connection, event.id, &event.event_type, &event.payload)?
        {
            return Err(StoreError::IdTaken { id: event.id });
        }
        Ok(appended)
    };
    rows.iter().map(append_row).collect()
}

/// Returns whether another type or payload is stored under this id.
pub(super) fn is_taken(
    connection: &Connection,
    id: EventId,
    event_type: &EventType,
    payload: &str,
) -> Result<bool, StoreError> {
    let mut same = connection.prepare_cached("SELECT type = ?2 AND payload = ?3 FROM event WHERE id = ?1")?;
    let values = rusqlite::params![id.as_uuid().as_bytes(), event_type.as_str(), payload];
    Ok(same.query_row(values, |row| row.get(0)).optional()? == Some(false))
}

/// Appends events of different publishers, so that each succeeds or fails by itself. The rows are sorted by id, as the index is.
pub(super) fn append_each(
    connection: &Connection,
    rows: &[&Row],
    uncommitted: &mut Uncommitted,
) -> Vec<Result<Appended, StoreError>> {
    let mut answers = Vec::with_capacity(rows.len());
    let mut next_key = None;
    for chunk in chunks(rows) {
        let placed: Vec<_> = chunk.iter().map(|row| Placed::new(row, uncommitted)).collect();
        let is_group = chunk.len() > 1
            && !chunk.iter().any(|row| needs_more_statements(row))
            && !is_rolled_back(connection);
        let mut failure = None;
        match is_group.then(|| insert_rows_at(connection, &placed, &mut next_key)) {
            Some(Ok(Some(first))) => {
                for (key, placed) in (first..).zip(placed) {
                    placed.stored(key, uncommitted);
                    answers.push(Ok(Appended::New));
                }
                continue;
            }
            Some(Err(error)) if is_rolled_back(connection) => failure = Some(error),
            // Inserting the rows one by one shows which of them fails.
            Some(Err(error)) => {
                tracing::debug!(target: "redrive::store", %error, "a group of rows was not stored");
            }
            // An id exists already, a row is a schedule or has rows in other tables, or there is only one: insert the rows one by one.
            Some(Ok(None)) | None => {}
        }
        next_key = None;
        for placed in placed {
            answers.push(unless_rolled_back(connection, &mut failure, || {
                if needs_more_statements(placed.row) {
                    // All of its statements or none: the other events of the batch are committed anyway.
                    uncommitted.savepoint(connection, |connection, uncommitted| {
                        append_one(connection, placed, uncommitted)
                    })
                } else {
                    append_one(connection, placed, uncommitted)
                }
            }));
        }
    }
    answers
}

/// Returns whether an event takes further statements after its insert.
fn needs_more_statements(row: &Row) -> bool {
    row.is_scheduled || row.task.is_some()
}

/// Splits rows into chunks for as few statements as possible.
fn chunks<'a, 'r>(mut rows: &'a [&'r Row]) -> impl Iterator<Item = &'a [&'r Row]> {
    std::iter::from_fn(move || {
        let size = match rows.len() {
            0 => return None,
            LARGE_INSERT_ROWS.. => LARGE_INSERT_ROWS,
            SMALL_INSERT_ROWS.. => SMALL_INSERT_ROWS,
            _ => 1,
        };
        let (chunk, rest) = rows.split_at(size);
        rows = rest;
        Some(chunk)
    })
}

/// Returns the statement that inserts `count` rows. Each row has nine parameters; the last is also the time of the update.
fn insert_rows(count: usize) -> String {
    let row = |row: usize| {
        let values: String = (1..=9).map(|column| format!("?{}, ", row * 9 + column)).collect();
        format!("({values}?{})", row * 9 + 9)
    };
    format!(
        "INSERT INTO event (key, id, type, payload, metadata, status, due_at, retry, created_at, updated_at) VALUES {}",
        (0..count).map(row).collect::<Vec<_>>().join(", ")
    )
}

/// Inserts all rows with one statement and returns the key of the first, or `None` if one of the ids exists already.
fn insert_rows_at(
    connection: &Connection,
    rows: &[Placed<'_>],
    next_key: &mut Option<i64>,
) -> Result<Option<i64>, StoreError> {
    let first = match *next_key {
        Some(key) => key,
        None => connection
            .prepare_cached("SELECT coalesce(max(key), 0) + 1 FROM event")?
            .query_row([], |row| row.get(0))?,
    };
    let mut insert = connection.prepare_cached(if rows.len() == LARGE_INSERT_ROWS {
        &INSERT_LARGE
    } else {
        &INSERT_SMALL
    })?;
    let mut column = 1;
    for (key, placed) in (first..).zip(rows) {
        insert.raw_bind_parameter(column, key)?;
        column = bind(&mut insert, column + 1, placed)?;
    }
    match insert.raw_execute() {
        Ok(_) => {
            *next_key = Some(first + i64::try_from(rows.len()).unwrap_or(0));
            Ok(Some(first))
        }
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Binds the eight values of a row and returns the number of the next parameter.
fn bind(insert: &mut CachedStatement<'_>, first: usize, placed: &Placed<'_>) -> rusqlite::Result<usize> {
    let (row, event) = (placed.row, &placed.row.event);
    let due_at = placed.is_tracked_as_whole().then(|| row.due_at.as_millis());
    let values: [&dyn ToSql; 8] = [
        event.id.as_uuid().as_bytes(),
        &event.event_type.as_str(),
        &&*event.payload,
        &row.metadata,
        &placed.state,
        &due_at,
        &row.retry,
        &event.created_at.as_millis(),
    ];
    for (parameter, value) in (first..).zip(values) {
        insert.raw_bind_parameter(parameter, value)?;
    }
    Ok(first + values.len())
}

fn append_one(
    connection: &Connection,
    placed: Placed<'_>,
    uncommitted: &mut Uncommitted,
) -> Result<Appended, StoreError> {
    let mut insert = connection.prepare_cached(INSERT_ONE)?;
    bind(&mut insert, 1, &placed)?;
    if insert.raw_execute()? == 0 {
        return Ok(Appended::Duplicate);
    }
    let event_key = connection.last_insert_rowid();
    let row = placed.row;
    if row.is_scheduled {
        connection.prepare_cached(MARK_SCHEDULED)?.execute([event_key])?;
    }
    if let Some(RetryTask { message_id, original_queue, retries, discarded }) = &row.task {
        let due_at = row.due_at.as_millis();
        let task = rusqlite::params![event_key, message_id, original_queue, retries, due_at, discarded];
        connection.prepare_cached(INSERT_RETRY_MESSAGE)?.execute(task)?;
    }
    for subscription in row.to.subscriptions() {
        let slot = if row.is_due() { uncommitted.take_slot() } else { None };
        let state = if slot.is_some() { status::RUNNING } else { status::PENDING };
        connection.prepare_cached(INSERT_DELIVERY)?.execute(rusqlite::params![
            event_key,
            subscription.as_str(),
            state,
            row.due_at.as_millis(),
            row.event.created_at.as_millis()
        ])?;
        let key = ClaimKey::Delivery { delivery: connection.last_insert_rowid(), event: event_key };
        uncommitted.stored(row, Some(subscription), key, slot);
    }
    placed.stored(event_key, uncommitted);
    Ok(Appended::New)
}

/// Appends events inside the caller's own transaction on the same file (transactional outbox). They are dispatched after its commit.
///
/// The caller's connection decides how durable the commit is, not the store: only with `PRAGMA synchronous = FULL` (or `EXTRA`) is
/// the transaction on stable storage when `commit` returns. `FULL` is SQLite's default unless it was built otherwise. With `NORMAL`, as is
/// often advised for a write-ahead log, a power loss may undo the last commits together with their events.
///
/// ```no_run
/// # use redrive_store::{EventId, EventType, NewEvent, sqlite::append_in};
/// # fn publish(connection: &mut rusqlite::Connection, event: NewEvent) -> Result<(), Box<dyn std::error::Error>> {
/// connection.pragma_update(None, "synchronous", "FULL")?; // once for each connection, outside of a transaction
/// let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
/// transaction.execute("UPDATE account SET balance = balance - 1 WHERE id = 7", [])?;
/// append_in(&transaction, &[event])?;
/// transaction.commit()?;
/// # Ok(()) }
/// ```
pub fn append_in(
    transaction: &rusqlite::Transaction<'_>,
    events: &[NewEvent],
) -> Result<Vec<Appended>, StoreError> {
    // The limit of the bus is not known here; SQLite cannot hold more than this.
    NewEvent::check_all(events, i32::MAX as usize)?;
    let rows: Vec<Row> = events.iter().cloned().map(Row::from).collect();
    savepoint(transaction, |connection| append(connection, &rows, &mut Uncommitted::default()))
}
