//! Publish an event inside the program's own transaction: `cargo run -p redrive-examples --example transactional_publish`
//!
//! The program's tables are in the event database, so one transaction commits its change and the event.

#![allow(clippy::print_stdout)] // an example shows what it does

use redrive::retry::BoxError;
use redrive::store::sqlite;
use redrive::{Event, EventBus};
use rusqlite::{Connection, TransactionBehavior};
use serde_json::json;
use tokio::sync::mpsc;

/// Withdraws money and publishes an event in one transaction.
fn withdraw(connection: &mut Connection, bus: &EventBus, cents: i64) -> Result<(), BoxError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute("UPDATE account SET cents = cents - ?1", [cents])?;
    let event = bus.publish("account.debited", &json!({ "cents": cents })).into_event()?;
    sqlite::append_in(&transaction, &[event])?;
    let left: i64 = transaction.query_row("SELECT cents FROM account", [], |row| row.get(0))?;
    if left < 0 {
        return Err("not that much is left".into()); // rolls back the transaction with its event
    }
    transaction.commit()?;
    bus.wake(); // without it the bus finds the event within half a second
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("bank.db");
    let bus = EventBus::open(&file).await?;
    let (handled, mut arrived) = mpsc::unbounded_channel();
    bus.subscribe("account.*", move |event: Event| {
        let sent = handled.send(event.payload().to_owned());
        async move { sent }
    })
    .name("statement")
    .register()?;
    bus.start().await?;

    let mut connection = Connection::open(&file)?;
    connection.execute_batch("CREATE TABLE account (cents INTEGER); INSERT INTO account VALUES (1000)")?;
    withdraw(&mut connection, &bus, 300)?;
    let refused = withdraw(&mut connection, &bus, 5000).expect_err("the balance is too low");
    println!("refused: {refused}");
    withdraw(&mut connection, &bus, 200)?;

    // Events are handled concurrently, in any order.
    let mut handled = [arrived.recv().await.unwrap_or_default(), arrived.recv().await.unwrap_or_default()];
    handled.sort();
    assert_eq!(handled, [r#"{"cents":200}"#, r#"{"cents":300}"#]);
    let (left, events): (i64, i64) =
        connection.query_row("SELECT cents, (SELECT count(*) FROM events) FROM account", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    println!("{left} cents left, {events} events");
    assert_eq!((left, events), (500, 2));
    bus.shutdown().await?;
    Ok(())
}
