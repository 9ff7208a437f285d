//! Shares subscriptions, circuit breakers and retry budgets between processes. All times are the database's.
//!
//! A subscription on record has a name and a pattern, never a handler. A report of a circuit breaker has
//! the totals of a process's window, not increments, so a repeated or lost report does no harm.

use std::sync::Arc;

use redrive_retry::Timestamp;
use redrive_retry::internal::CallCounts;
use tokio_postgres::Row;

use super::value::millis;
use super::{PostgresStore, remote_subscriptions, rows};
use crate::budget::{BudgetReport, BudgetView};
use crate::circuit::{CircuitReport, CircuitState, CircuitView, MAX_NODES_PER_CIRCUIT};
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::query::{RemoteSubscription, SubscriptionRow};
use crate::store::{Cluster, StoreFuture};

/// Ignores a conflict of name or id: two processes may register one subscription at the same time.
const REGISTER: &str = "
    INSERT INTO redrive.subscriptions (id, name, event_type, created_at) VALUES ($1, $2, $3, $4)
    ON CONFLICT DO NOTHING";

/// Changes the pattern of an existing name, which keeps its id.
const CHANGE_PATTERN: &str =
    "UPDATE redrive.subscriptions SET event_type = $2 WHERE name = $1 AND event_type <> $2";

const UNREGISTER: &str = "DELETE FROM redrive.subscriptions WHERE name = $1 RETURNING 1";

/// Makes the backlog of one subscription due, unless a living process has registered it. The literal is that of the index.
const RELEASE_BACKLOG: &str = "
    WITH released AS (
      UPDATE redrive.delivery SET due_at = $2, updated_at = $2,
        ready_at = CASE WHEN status = -1 THEN -1 ELSE greatest($2, 0) END
      WHERE ready_at = 9000000000000000 AND subscription = $1 AND NOT EXISTS (
        SELECT 1 FROM redrive.subscriber s JOIN redrive.process p ON p.boot = s.boot WHERE s.name = $1) RETURNING 1)
    SELECT count(*) FROM released";

/// Makes the backlogs of removed subscriptions due: those that are not on record, and that no living process has registered. Reads
/// one entry of the index for each other subscription, however long its backlog is.
pub(super) const RELEASE_REMOVED: &str = "
    WITH RECURSIVE backlog AS (
      SELECT min(subscription) AS name FROM redrive.delivery WHERE ready_at = 9000000000000000
      UNION ALL
      SELECT (SELECT min(d.subscription) FROM redrive.delivery d
              WHERE d.ready_at = 9000000000000000 AND d.subscription > backlog.name)
      FROM backlog WHERE name IS NOT NULL),
    removed AS MATERIALIZED (
      SELECT name FROM backlog WHERE NOT EXISTS (SELECT 1 FROM redrive.subscriptions r WHERE r.name = backlog.name)
      AND NOT EXISTS (
        SELECT 1 FROM redrive.subscriber s JOIN redrive.process p ON p.boot = s.boot WHERE s.name = backlog.name)),
    released AS (
      UPDATE redrive.delivery d SET due_at = $1, updated_at = $1,
        ready_at = CASE WHEN d.status = -1 THEN -1 ELSE greatest($1, 0) END
      FROM removed WHERE d.ready_at = 9000000000000000 AND d.subscription = removed.name RETURNING 1)
    SELECT count(*) FROM released";

const LIST: &str = "SELECT id, name, event_type, created_at FROM redrive.subscriptions ORDER BY key";

/// Stores the counts of this process, and reads those of other processes: one round trip for all circuits.
const SHARE_CIRCUITS: &str = "
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
const CHANGE_CIRCUIT: &str = "
    INSERT INTO redrive.circuit AS c (subscription, generation, until, probe_until, openings)
    VALUES ($1, $2 + 1, $3, $4, $5)
    ON CONFLICT (subscription) DO UPDATE SET generation = excluded.generation, until = excluded.until,
      probe_until = excluded.probe_until, openings = excluded.openings
    WHERE c.generation = $2 RETURNING c.generation";

/// Stores this process's report, and counts the other processes: one round trip for all budgets.
const SHARE_BUDGETS: &str = "
    WITH now AS MATERIALIZED (SELECT redrive.now_ms() AS ms),
    u AS MATERIALIZED (
      SELECT * FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS u(subscription, retries_left, window_ms)),
    reported AS (
      INSERT INTO redrive.budget_share AS p (subscription, node, retries_left, at)
      SELECT u.subscription, $1, u.retries_left, now.ms FROM u, now
      ON CONFLICT (subscription, node) DO UPDATE SET retries_left = excluded.retries_left, at = excluded.at)
    SELECT u.subscription,
           (SELECT count(*) FROM redrive.budget_share p
            WHERE p.subscription = u.subscription AND p.node <> $1 AND p.at > now.ms - u.window_ms)
    FROM u, now";

/// Delete the reports of processes that have been gone for a day. A living process reports every hour.
pub(super) const PRUNE_REPORTS: [&str; 2] = [
    "DELETE FROM redrive.circuit_count WHERE at < redrive.now_ms() - 86400000",
    "DELETE FROM redrive.budget_share WHERE at < redrive.now_ms() - 86400000",
];

impl Cluster for PostgresStore {
    fn is_shared(&self) -> bool {
        true
    }

    fn register(&self, subscription: SubscriptionRow) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            // Registers the process first: a subscription counts while its process is registered.
            self.run(|shared| async move { shared.owner().await }).await?;
            let SubscriptionRow { id, name, event_type, created_at } = subscription;
            let boot = self.shared.boot;
            self.read(async move |session| {
                let name = name.as_str();
                session.query(REGISTER, &[&id, &name, &event_type, &created_at.to_string()]).await?;
                session.query(CHANGE_PATTERN, &[&name, &event_type]).await?;
                // Writes in any case, so its commit is the barrier for what the first two have found.
                session.execute(remote_subscriptions::ANNOUNCE, &[&boot, &name, &event_type]).await
            })
            .await
        })
    }

    fn unregister(&self, name: SubscriptionName, now: Timestamp) -> StoreFuture<'_, bool> {
        let boot = self.shared.boot;
        Box::pin(async move {
            let removed = self.read(async move |session| {
                let name = name.as_str();
                let removal = session.transaction(async {
                    session.execute(remote_subscriptions::WITHDRAW, &[&boot, &name]).await?;
                    let released = session.count(RELEASE_BACKLOG, &[&name, &now.as_millis()]).await?;
                    let was_on_record = session.query_first(UNREGISTER, &[&name]).await?.is_some();
                    Ok::<_, StoreError>((was_on_record, released))
                });
                let (was_on_record, released) = removal.await?;
                if !was_on_record {
                    session.barrier().await?; // an earlier call, whose answer was lost, may have removed it
                }
                Ok((was_on_record, released))
            });
            let (was_on_record, released) = removed.await?;
            remote_subscriptions::forget(&self.shared).await;
            if released > 0 {
                self.shared.note_due(now);
                self.shared.notify_requested.notify_one();
            }
            Ok(was_on_record)
        })
    }

    fn subscriptions(&self) -> StoreFuture<'_, Vec<SubscriptionRow>> {
        Box::pin(self.read(async |session| {
            let found = session.query(LIST, &[]).await?;
            let subscription = |row: &Row| SubscriptionRow {
                id: row.get(0),
                name: rows::subscription(row, 1),
                event_type: row.get(2),
                created_at: row.get::<_, &str>(3).parse().unwrap_or_default(),
            };
            Ok(found.iter().map(subscription).collect())
        }))
    }

    fn subscriptions_propagated(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.run(remote_subscriptions::subscriptions_propagated))
    }

    fn remote_subscriptions(&self) -> StoreFuture<'_, Arc<[RemoteSubscription]>> {
        Box::pin(
            self.run(|shared| async move { Ok(remote_subscriptions::current(&shared).await?.subscribed) }),
        )
    }

    fn recorded_subscriptions(&self) -> StoreFuture<'_, Arc<[RemoteSubscription]>> {
        Box::pin(self.run(|shared| async move { remote_subscriptions::on_record(&shared).await }))
    }

    fn share_circuits(&self, reports: Vec<CircuitReport>) -> StoreFuture<'_, Option<Vec<CircuitView>>> {
        let column = |value: fn(&CircuitReport) -> i64| -> Vec<i64> { reports.iter().map(value).collect() };
        let names: Vec<String> = reports.iter().map(|report| report.subscription.to_string()).collect();
        let generations = column(|report| report.generation);
        let succeeded = column(|report| i64::from(report.counts.succeeded));
        let failed = column(|report| i64::from(report.counts.failed));
        let windows = column(|report| millis(report.window));
        Box::pin(self.run(move |shared| async move {
            let (boot, max_nodes) = (&shared.boot, &MAX_NODES_PER_CIRCUIT);
            let session = shared.pool.get().await?;
            let found = session
                .query(
                    SHARE_CIRCUITS,
                    &[boot, &names, &generations, &succeeded, &failed, &windows, max_nodes],
                )
                .await?;
            found.iter().map(circuit).collect::<Result<_, _>>().map(Some)
        }))
    }

    fn change_circuit(&self, name: SubscriptionName, change: CircuitState) -> StoreFuture<'_, Option<i64>> {
        Box::pin(self.run(move |shared| async move {
            let CircuitState { generation, until, probe_until, openings } = change;
            let (until, probe) = (until.map(Timestamp::as_millis), probe_until.map(Timestamp::as_millis));
            let session = shared.pool.get().await?;
            let changed = session
                .query_first(
                    CHANGE_CIRCUIT,
                    &[&name.as_str(), &generation, &until, &probe, &i64::from(openings)],
                )
                .await
                .map_err(|error| shared.explain(error))?;
            Ok(changed.map(|row| row.get(0)))
        }))
    }

    fn share_budgets(&self, reports: Vec<BudgetReport>) -> StoreFuture<'_, Option<Vec<BudgetView>>> {
        let names: Vec<String> = reports.iter().map(|report| report.subscription.to_string()).collect();
        let left: Vec<i64> = reports.iter().map(|report| i64::from(report.retries_left)).collect();
        let windows: Vec<i64> = reports.iter().map(|report| millis(report.window)).collect();
        Box::pin(self.run(move |shared| async move {
            let session = shared.pool.get().await?;
            let found = session.query(SHARE_BUDGETS, &[&shared.boot, &names, &left, &windows]).await?;
            let view = |row: &Row| {
                let subscription = SubscriptionName::new(row.get::<_, &str>(0))?;
                let others = u32::try_from(row.get::<_, i64>(1)).unwrap_or(u32::MAX);
                Ok(BudgetView { subscription, others })
            };
            found.iter().map(view).collect::<Result<_, _>>().map(Some)
        }))
    }
}

/// Reads the state of a circuit and the counts of other processes. Columns: as in [`SHARE_CIRCUITS`].
fn circuit(row: &Row) -> Result<CircuitView, StoreError> {
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
