//! Checks that the server does not lose confirmed commits: its settings, and `synchronous_commit` on every connection.

use super::Durability;
use super::session::Session;
use crate::error::StoreError;

/// Older versions lack `gen_random_uuid` and are not maintained any more.
const MIN_SERVER_VERSION: i32 = 130_000;

const SETTINGS: &str = "
    SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
           current_setting('server_encoding'), current_setting('fsync'), current_setting('full_page_writes'),
           (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'), pg_is_in_recovery()";

const IS_SYNCHRONOUS: &str = "SELECT current_setting('synchronous_commit') <> 'off'";

/// Fixes the setting for the session, so that a change of the server's configuration does not affect it.
const MAKE_SYNCHRONOUS: &str = "
    SELECT set_config('synchronous_commit', CASE s WHEN 'off' THEN 'on' ELSE s END, false)
    FROM current_setting('synchronous_commit') s";

/// Refuses a server that is too old, read-only, not UTF-8, or set up to lose commits.
pub(super) async fn check(session: &Session, durability: Durability) -> Result<(), StoreError> {
    let found = session.query_once(SETTINGS, &[]).await?;
    let Some(row) = found.first() else { return Ok(()) };
    let text = |column: usize| row.get::<_, &str>(column);
    let refuse = |why: String, advice: &str| Err(StoreError::UnsafeServer { why, advice: advice.to_owned() });
    if row.get::<_, i32>(0) < MIN_SERVER_VERSION {
        return refuse(format!("it is PostgreSQL {}", text(1)), "use version 13 or newer");
    }
    if text(2) != "UTF8" {
        return refuse(
            format!("the database has the encoding {}", text(2)),
            "create one with ENCODING 'UTF8' and name it in the address",
        );
    }
    if row.get(6) {
        return refuse("it is a standby and only reads".into(), "name the primary in the address");
    }
    if durability == Durability::Relaxed {
        return Ok(());
    }
    for (column, setting) in [(3, "fsync"), (4, "full_page_writes"), (5, "synchronous_commit")] {
        if text(column) == "off" {
            return Err(may_lose(setting));
        }
    }
    Ok(())
}

fn may_lose(setting: &str) -> StoreError {
    StoreError::UnsafeServer {
        why: format!("{setting} is off, so it can lose what it has confirmed when the power fails"),
        advice: format!(
            "set {setting} = on, or open the store with Durability::Relaxed if that loss is acceptable"
        ),
    }
}

/// Makes commits of a new connection synchronous; behind a pooler, where session settings do not last, checks that they are.
pub(super) async fn make_durable(session: &Session, poll_only: bool) -> Result<(), StoreError> {
    let statement = if poll_only { IS_SYNCHRONOUS } else { MAKE_SYNCHRONOUS };
    let found = session.query_once(statement, &[]).await?;
    if poll_only && found.first().is_some_and(|row| !row.get::<_, bool>(0)) {
        return Err(may_lose("synchronous_commit"));
    }
    Ok(())
}
