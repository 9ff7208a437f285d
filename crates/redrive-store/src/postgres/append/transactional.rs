//! Transactional publish: events stored inside the caller's own transaction.

use super::super::names::Names;
use super::super::session::BARRIER;
use super::columns::Columns;
use super::{Batch, Row, Stored, check};
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::store::Appended;

/// Stores events inside a transaction of the caller, on the same database (transactional outbox). The commit notifies the
/// dispatching processes, which then handle the events.
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
    for part in batch.parts() {
        let columns = Columns::new(&batch, &part);
        let values = columns.values();
        let values: Vec<_> = values.iter().map(|value| (value.as_sql(), value.kind())).collect();
        let found = transaction.query_typed(&names.statement(columns.statement()), &values).await?;
        stored.add(&batch, &found);
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
