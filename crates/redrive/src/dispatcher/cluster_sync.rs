//! Synchronises shared breakers and shared budgets with the other processes on the same database.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::budget::Budget;
use crate::core::Core;
use crate::subscriptions::Subscriptions;

use super::back_off;

/// The shortest time between two reports, each for all subscriptions at once.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Interval of reports without an ended call: counts age, another process may have closed a circuit, and each process shows that it is
/// alive.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Reports this process's counts and applies those of other processes, until the bus ends. Ends after the first report on a store that
/// only one process owns.
pub(crate) async fn sync_shared_state(core: Arc<Core>) {
    loop {
        let subscriptions = core.subscriptions();
        let shares_any = subscriptions.all().iter().any(|subscription| {
            let admission = &subscription.admission;
            admission.circuit.is_shared() || admission.budget.as_ref().is_some_and(Budget::is_shared)
        });
        if !shares_any {
            core.sync_wakeup.notified().await;
            continue;
        }
        if sync_breakers(&core, &subscriptions).await || sync_budgets(&core, &subscriptions).await {
            return;
        }
        core.clock.sleep(REPORT_INTERVAL).await;
        tokio::select! {
            () = core.sync_wakeup.notified() => {}
            () = core.clock.sleep(POLL_INTERVAL) => {}
        }
    }
}

/// Exchanges counts for shared breakers with the other processes. Returns whether the store belongs to this process alone.
async fn sync_breakers(core: &Core, subscriptions: &Subscriptions) -> bool {
    let (reported, reports): (HashMap<_, _>, Vec<_>) = subscriptions
        .all()
        .iter()
        .filter_map(|subscription| {
            let circuit = &subscription.admission.circuit;
            let report = circuit.report()?;
            Some(((&subscription.name, (circuit, report.generation)), report))
        })
        .unzip();
    if reports.is_empty() {
        return false;
    }
    match core.store.share_circuits(reports).await {
        Ok(None) => return true,
        Ok(Some(views)) => {
            for view in &views {
                if let Some((circuit, generation)) = reported.get(&view.subscription) {
                    circuit.apply(core.store.as_ref(), *generation, view).await;
                }
            }
        }
        Err(error) => {
            reported.values().for_each(|(circuit, _)| circuit.report_failed());
            back_off(core, error, "report this process's counts for a shared breaker").await;
        }
    }
    false
}

/// Reports this process's share of shared retry budgets and learns how many processes divide them. Returns whether the store belongs to
/// this process alone.
async fn sync_budgets(core: &Core, subscriptions: &Subscriptions) -> bool {
    let now = core.clock.now();
    let (reported, reports): (HashMap<_, _>, Vec<_>) = subscriptions
        .all()
        .iter()
        .filter_map(|subscription| {
            let (name, budget) = (&subscription.name, subscription.admission.budget.as_ref()?);
            Some(((name, budget), budget.report(name, now)?))
        })
        .unzip();
    if reports.is_empty() {
        return false;
    }
    match core.store.share_budgets(reports).await {
        Ok(None) => return true,
        Ok(Some(views)) => {
            for view in &views {
                if let Some(budget) = reported.get(&view.subscription) {
                    budget.apply(view.others, core.clock.now());
                }
            }
        }
        Err(error) => {
            reported.values().for_each(|budget| budget.report_failed());
            back_off(core, error, "report this process's share of a retry budget").await;
        }
    }
    false
}
