//! Shared circuit breakers: their state, and the counts that each process reports. All times are the database's.
//!
//! A process reports the totals of its window, not increments, so a repeated or lost report does no harm.

use redrive_retry::Timestamp;
use redrive_retry::breaker::CallCounts;
use tokio_postgres::Row;

use super::Shared;
use super::process::millis;
use crate::circuit::{CircuitReport, CircuitState, CircuitView, MAX_NODES_PER_CIRCUIT};
use crate::error::StoreError;
use crate::event::SubscriptionName;

/// Stores the counts of this process, and reads those of other processes: one round trip for all circuits.
const SHARE: &str = "
    WITH now AS MATERIALIZED (SELECT redrive.now_ms() AS ms),
    u AS MATERIALIZED (
      SELECT * FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
        AS u(subscription, generation, succeeded, failed, window_ms)),
    reported AS (
      INSERT INTO redrive.circuit_count AS n (subscription, node, generation, succeeded, failed, at)
      SELECT u.subscription, $1, u.generation, u.succeeded, u.failed, now.ms FROM u, now
      ON CONFLICT (subscription, node) DO UPDATE SET generation = excluded.generation,
        succeeded = excluded.succeeded, failed = excluded.failed, at = excluded.at)
    SELECT u.subscription, coalesce(c.generation, 0), c.until, c.probe_until, coalesce(c.openings, 0),
           o.succeeded, o.failed
    FROM u CROSS JOIN now LEFT JOIN redrive.circuit c ON c.subscription = u.subscription
    CROSS JOIN LATERAL (
      SELECT array_agg(CASE WHEN n.generation = coalesce(c.generation, 0) THEN n.succeeded ELSE 0 END) AS succeeded,
             array_agg(CASE WHEN n.generation = coalesce(c.generation, 0) THEN n.failed ELSE 0 END) AS failed
      FROM (SELECT * FROM redrive.circuit_count n
            WHERE n.subscription = u.subscription AND n.node <> $1 AND n.at > now.ms - u.window_ms
            ORDER BY n.at DESC LIMIT $7) n) o";

/// Compare-and-swap: changes the state only if it has the expected generation.
const CHANGE: &str = "
    INSERT INTO redrive.circuit AS c (subscription, generation, until, probe_until, openings)
    VALUES ($1, $2 + 1, $3, $4, $5)
    ON CONFLICT (subscription) DO UPDATE SET generation = excluded.generation, until = excluded.until,
      probe_until = excluded.probe_until, openings = excluded.openings
    WHERE c.generation = $2 RETURNING c.generation";

/// Deletes the counts of processes that have been gone for a day. A living process reports every hour.
pub(super) const PRUNE: &str = "
    WITH gone AS (DELETE FROM redrive.circuit_count WHERE at < redrive.now_ms() - 86400000 RETURNING 1)
    SELECT count(*) FROM gone";

/// Reports the counts of this process. Returns the state of each circuit and the counts of other processes.
pub(super) async fn share(
    shared: &Shared,
    reports: Vec<CircuitReport>,
) -> Result<Vec<CircuitView>, StoreError> {
    let column = |value: fn(&CircuitReport) -> i64| -> Vec<i64> { reports.iter().map(value).collect() };
    let names: Vec<String> = reports.iter().map(|report| report.subscription.as_str().to_owned()).collect();
    let generations = column(|report| report.generation);
    let succeeded = column(|report| i64::from(report.counts.succeeded));
    let failed = column(|report| i64::from(report.counts.failed));
    let windows = column(|report| millis(report.window));
    let session = shared.pool.get().await?;
    let found = session
        .query(
            SHARE,
            &[&shared.boot, &names, &generations, &succeeded, &failed, &windows, &MAX_NODES_PER_CIRCUIT],
        )
        .await?;
    found.iter().map(view).collect()
}

fn view(row: &Row) -> Result<CircuitView, StoreError> {
    let time = |column: usize| row.get::<_, Option<i64>>(column).map(Timestamp::from_millis);
    let counts = |column: usize| row.get::<_, Option<Vec<i64>>>(column).unwrap_or_default();
    let small = |count: i64| u32::try_from(count.max(0)).unwrap_or(u32::MAX);
    let others = counts(5).into_iter().zip(counts(6));
    Ok(CircuitView {
        subscription: SubscriptionName::new(row.get::<_, &str>(0))?,
        state: CircuitState {
            generation: row.get(1),
            until: time(2),
            probe_until: time(3),
            openings: small(row.get(4)),
        },
        others: others
            .map(|(succeeded, failed)| CallCounts { succeeded: small(succeeded), failed: small(failed) })
            .collect(),
    })
}

/// Changes the state. Returns the new generation, or `None` if another process has changed it first.
pub(super) async fn change(
    shared: &Shared,
    name: &SubscriptionName,
    change: CircuitState,
) -> Result<Option<i64>, StoreError> {
    let (until, probe) =
        (change.until.map(Timestamp::as_millis), change.probe_until.map(Timestamp::as_millis));
    let openings = i64::from(change.openings);
    let session = shared.pool.get().await?;
    let found = session
        .query(CHANGE, &[&name.as_str(), &change.generation, &until, &probe, &openings])
        .await
        .map_err(|error| shared.explain(error))?;
    Ok(found.first().map(|row| row.get(0)))
}
