//! Stands on the server itself, and notes every change of a state that nobody can have made who kept to the rules: whoever settles
//! something holds it.

use std::time::{Duration, Instant};

use super::storm::connect;

/// The first process makes the schema.
const LONGEST_START: Duration = Duration::from_secs(60);

/// So many are told.
const MOST: i64 = 5;

/// 1 is running: into it by a claim, and out of it by whoever holds it. Beside that the last delivery ends an event (5), the dead (4)
/// are sent back, and what was delivered (3) can be owed again.
const POST: &str = "
    CREATE SCHEMA guard;
    CREATE TABLE guard.seen (what text);
    CREATE FUNCTION guard.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO guard.seen VALUES (format('%s %s went from state %s to %s, though nobody held it',
        TG_TABLE_NAME, OLD.key, OLD.status, NEW.status));
      RETURN NULL;
    END $$;
    CREATE TRIGGER guard AFTER UPDATE ON storm.event FOR EACH ROW
      WHEN (OLD.status <> 1 AND NEW.status <> 1 AND NOT (OLD.status = 5 AND NEW.status IN (3, 4, 5))
            AND NOT (OLD.status = 4 AND NEW.status IN (0, 5))) EXECUTE FUNCTION guard.note();
    CREATE TRIGGER guard AFTER UPDATE ON storm.delivery FOR EACH ROW
      WHEN (OLD.status <> 1 AND NEW.status <> 1 AND NOT (OLD.status IN (3, 4) AND NEW.status IN (-1, 0)))
      EXECUTE FUNCTION guard.note()";

/// From now on.
pub(super) async fn post(server: &str) -> Result<(), String> {
    let client = connect(server).await?;
    let is_there = "SELECT to_regclass('storm.delivery') IS NOT NULL";
    let began = Instant::now();
    while !client.query_one(is_there, &[]).await.map_err(|error| error.to_string())?.get::<_, bool>(0) {
        if began.elapsed() > LONGEST_START {
            return Err("nobody has made the schema".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    client.batch_execute(POST).await.map_err(|error| error.to_string())
}

/// What there was to be seen.
pub(super) async fn seen(server: &str) -> Result<Vec<String>, String> {
    let client = connect(server).await?;
    let seen = client.query("SELECT what FROM guard.seen LIMIT $1", &[&MOST]).await;
    Ok(seen.map_err(|error| error.to_string())?.iter().map(|row| row.get(0)).collect())
}
