//! Shared retry budgets: counts the processes that share a subscription's budget. All times are the database's.

use super::Shared;
use super::process::millis;
use crate::budget::{BudgetReport, BudgetView};
use crate::error::StoreError;
use crate::event::SubscriptionName;

/// Stores this process's report, and counts the other processes: one round trip for all budgets.
const SHARE: &str = "
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

/// Deletes the reports of processes that have been gone for a day.
pub(super) const PRUNE: &str = "
    WITH gone AS (DELETE FROM redrive.budget_share WHERE at < redrive.now_ms() - 86400000 RETURNING 1)
    SELECT count(*) FROM gone";

/// Reports this process's use of its budgets. Returns the number of other processes for each.
pub(super) async fn share(
    shared: &Shared,
    reports: Vec<BudgetReport>,
) -> Result<Vec<BudgetView>, StoreError> {
    let names: Vec<String> = reports.iter().map(|report| report.subscription.as_str().to_owned()).collect();
    let left: Vec<i64> = reports.iter().map(|report| i64::from(report.retries_left)).collect();
    let windows: Vec<i64> = reports.iter().map(|report| millis(report.window)).collect();
    let session = shared.pool.get().await?;
    let found = session.query(SHARE, &[&shared.boot, &names, &left, &windows]).await?;
    found
        .iter()
        .map(|row| {
            let subscription = SubscriptionName::new(row.get::<_, &str>(0))?;
            let others = u32::try_from(row.get::<_, i64>(1)).unwrap_or(u32::MAX);
            Ok(BudgetView { subscription, others })
        })
        .collect()
}
