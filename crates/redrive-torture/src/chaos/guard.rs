//! Database trigger that records every state change without a claim: only the holder of a claim may settle it.

use std::time::{Duration, Instant};

use super::storm::connect;

/// Time for the first process to create the schema.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum changes that are reported.
const MAX_REPORTED: i64 = 5;

/// State 1 is running: a claim leads into it, and its holder out of it. Beside that, the last delivery ends an event (5),
/// dead ones (4) are redriven, the claim of the first redriven delivery (6) begins the event again, and delivered ones (3) can be
/// owed again.
const POST: &str = "
    CREATE SCHEMA guard;
    CREATE TABLE guard.seen (what text);
    CREATE FUNCTION guard.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO guard.seen VALUES (format('%s %s went from state %s to %s, without a claim',
        TG_TABLE_NAME, OLD.key, OLD.status, NEW.status));
      RETURN NULL;
    END $$;
    CREATE TRIGGER guard AFTER UPDATE ON storm.event FOR EACH ROW
      WHEN (OLD.status <> 1 AND NEW.status <> 1 AND NOT (OLD.status = 5 AND NEW.status IN (3, 4, 5))
            AND NOT (OLD.status = 4 AND NEW.status IN (0, 5, 6)) AND NOT (OLD.status = 6 AND NEW.status IN (3, 4, 5))) EXECUTE FUNCTION guard.note();
    CREATE TRIGGER guard AFTER UPDATE ON storm.delivery FOR EACH ROW
      WHEN (OLD.status <> 1 AND NEW.status <> 1 AND NOT (OLD.status IN (3, 4) AND NEW.status IN (-1, 0)))
      EXECUTE FUNCTION guard.note()";

/// Installs the trigger.
pub(super) async fn post(server: &str) -> Result<(), String> {
    let client = connect(server).await?;
    let is_there = "SELECT to_regclass('storm.delivery') IS NOT NULL";
    let began = Instant::now();
    while !client.query_one(is_there, &[]).await.map_err(|error| error.to_string())?.get::<_, bool>(0) {
        if began.elapsed() > START_TIMEOUT {
            return Err("no process has created the schema".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    client.batch_execute(POST).await.map_err(|error| error.to_string())
}

/// Reads the recorded changes.
pub(super) async fn seen(server: &str) -> Result<Vec<String>, String> {
    let client = connect(server).await?;
    let seen = client.query("SELECT what FROM guard.seen LIMIT $1", &[&MAX_REPORTED]).await;
    Ok(seen.map_err(|error| error.to_string())?.iter().map(|row| row.get(0)).collect())
}
