//! Transactional publish: events stored inside the caller's own transaction.

use uuid::Uuid;

use super::super::names::Names;
use super::super::read::TAKEN_IDS;
use super::super::rows;
use super::super::session::BARRIER;
use super::super::value::Value;
use super::columns::Columns;
use super::{Batch, Row, Stored, check};
use crate::error::StoreError;
use crate::event::{EventId, NewEvent};
use crate::store::Appended;

/// Stores events inside a transaction of the caller, on the same database (transactional outbox). The commit notifies the
/// dispatching processes, which then handle the events.
///
/// Several events are stored all or none: if another event has one of the ids, it fails with [`StoreError::IdTaken`], and the
/// transaction stays usable.
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
    let names = Names::new(schema)?;
    // The payload limit is an option of the bus; here the limit is the size of a statement.
    check(events, i32::MAX as usize)?;
    let rows: Vec<Row> = events.iter().cloned().map(Row::from).collect();
    let batch = Batch::place(rows, Vec::new(), None, None, 0);
    let mut stored = Stored::nothing(&batch);
    let is_batch = events.len() > 1;
    if is_batch {
        transaction.batch_execute("SAVEPOINT redrive_append").await?;
    }
    for part in batch.parts() {
        let columns = Columns::new(&batch, &part);
        let values: Vec<_> =
            columns.parameters().into_iter().map(|value| (value.as_sql(), value.kind())).collect();
        let found = transaction.query_typed(&names.statement(columns.statement()), &values).await?;
        stored.add(&batch, &found);
    }
    if is_batch {
        if let Some(id) = taken_id(transaction, &names, &batch, &stored).await? {
            transaction.batch_execute("ROLLBACK TO SAVEPOINT redrive_append").await?;
            return Err(StoreError::IdTaken { id });
        }
        transaction.batch_execute("RELEASE SAVEPOINT redrive_append").await?;
    }
    if batch.existed(&stored).next().is_some() {
        transaction.batch_execute(BARRIER).await?; // the caller's commit waits for it
    }
    let outcome = batch.stored(&stored);
    if outcome.earliest_due.is_some() {
        // The server sends one notification for each transaction, however often NOTIFY is called.
        let notify = format!("NOTIFY {}", names.channel());
        transaction.batch_execute(&notify).await?;
    }
    Ok(outcome.answers)
}

/// Returns an id under which another event was stored before.
async fn taken_id(
    transaction: &tokio_postgres::Transaction<'_>,
    names: &Names,
    batch: &Batch,
    stored: &Stored,
) -> Result<Option<EventId>, StoreError> {
    let existed: Vec<&Row> = batch.existed(stored).map(|index| &batch.rows[index]).collect();
    if existed.is_empty() {
        return Ok(None);
    }
    let ids: Vec<Uuid> = existed.iter().map(|row| *row.event.id.as_uuid()).collect();
    let types: Vec<&str> = existed.iter().map(|row| row.event.event_type.as_str()).collect();
    let payloads: Vec<&str> = existed.iter().map(|row| &*row.event.payload).collect();
    let values: [&dyn Value; 3] = [&ids, &types, &payloads];
    let values: Vec<_> = values.iter().map(|value| (value.as_sql(), value.kind())).collect();
    let found = transaction.query_typed(&names.statement(TAKEN_IDS), &values).await?;
    Ok(found.first().map(|row| rows::event_id(row, 0)))
}
