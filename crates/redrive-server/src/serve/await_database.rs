//! Waits for a database that is away, or whose disk is full, when a service starts.

use std::time::Duration;

use tokio::time::Instant;

use super::signal::Stop;
use crate::database::Database;
use crate::failure::Failure;

/// Bounds of the wait before the next attempt; it doubles with each one.
const MIN_WAIT: Duration = Duration::from_millis(100);
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Minimum time between two log lines with the same cause.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Repeats the work until the database is available; `None` if a signal stops the service meanwhile.
pub(crate) async fn await_database<T>(
    db: &Database,
    stop: &mut Stop,
    mut work: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let (began, mut wait) = (Instant::now(), MIN_WAIT);
    let mut logged: Option<(Instant, String)> = None;
    loop {
        let why = match work().await {
            Ok(done) => {
                if logged.is_some() {
                    let waited = began.elapsed();
                    tracing::info!(target: "redrive::database", database = %db, ?waited, "the database is available");
                }
                return Ok(Some(done));
            }
            Err(Failure::Unavailable(why)) => why,
            Err(failure) => return Err(failure),
        };
        if logged.as_ref().is_none_or(|(at, before)| at.elapsed() >= LOG_INTERVAL || *before != why) {
            tracing::warn!(
                target: "redrive::database", database = %db, error = why,
                "the database is not available: waiting for it, and trying again at least every {MAX_WAIT:?}"
            );
            logged = Some((Instant::now(), why));
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.recv() => {
                tracing::info!(target: "redrive::database", database = %db, "stopped while waiting for the database");
                return Ok(None);
            }
        }
        wait = (wait * 2).min(MAX_WAIT);
    }
}
