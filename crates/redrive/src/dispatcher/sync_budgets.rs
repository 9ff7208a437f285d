//! Reports this process's share of shared retry budgets and learns how many processes divide them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::core::Core;
use crate::subscription::Subscription;

use super::{STORE_RETRY_DELAY, report};

/// Reports once; returns whether the store belongs to this process alone.
pub(super) async fn sync(core: &Core, subscriptions: &[Arc<Subscription>]) -> bool {
    let now = core.clock.now();
    let budgets: HashMap<_, _> = subscriptions
        .iter()
        .filter_map(|subscription| Some((&subscription.name, subscription.admission.budget.as_ref()?)))
        .collect();
    let reports: Vec<_> = budgets.iter().filter_map(|(name, budget)| budget.report(name, now)).collect();
    if reports.is_empty() {
        return false;
    }
    match core.store.share_budgets(reports).await {
        Ok(None) => return true,
        Ok(Some(views)) => {
            for view in &views {
                if let Some(budget) = budgets.get(&view.subscription) {
                    budget.apply(view.others, core.clock.now());
                }
            }
        }
        Err(error) => {
            report::<()>(Err(error), "report this process's share of a retry budget");
            budgets.values().for_each(|budget| budget.report_failed());
            core.clock.sleep(STORE_RETRY_DELAY).await;
        }
    }
    false
}
