//! Synchronises shared breakers and shared budgets with the other processes on the same database.

use std::sync::Arc;
use std::time::Duration;

use crate::budget::Budget;
use crate::core::Core;

use super::{sync_breakers, sync_budgets};

/// The shortest time between two reports, each for all subscriptions at once.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// How often to report without an ended call: counts age, another process may have closed a circuit, and each process shows that it is
/// alive.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Reports this process's counts and applies those of other processes, until the bus ends. Returns at once on a store that only one process owns.
pub(crate) async fn sync_shared_state(core: Arc<Core>) {
    loop {
        let subscriptions = core.subscriptions();
        let shares_any = subscriptions.iter().any(|subscription| {
            let admission = &subscription.admission;
            admission.circuit.is_shared() || admission.budget.as_ref().is_some_and(Budget::is_shared)
        });
        if !shares_any {
            core.sync_wakeup.notified().await;
            continue;
        }
        let is_alone = sync_breakers::sync(&core, subscriptions.all()).await
            || sync_budgets::sync(&core, subscriptions.all()).await;
        if is_alone {
            return;
        }
        core.clock.sleep(REPORT_INTERVAL).await;
        tokio::select! {
            () = core.sync_wakeup.notified() => {}
            () = core.clock.sleep(POLL_INTERVAL) => {}
        }
    }
}
