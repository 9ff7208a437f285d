//! Tells the others that this process is there for the budgets it has in common with them, and hears how many they are.

use std::collections::HashMap;
use std::sync::Arc;

use crate::core::Core;
use crate::subscription::Subscription;

use super::{TRY_AGAIN, report};

/// Says whether no other process can be there.
pub(super) async fn tell(core: &Core, subscriptions: &[Arc<Subscription>]) -> bool {
    let now = core.clock.now();
    let budgets: HashMap<_, _> = subscriptions
        .iter()
        .filter_map(|subscription| Some((&subscription.name, subscription.budget.as_ref()?)))
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
                    budget.learn(view.others, core.clock.now());
                }
            }
        }
        Err(error) => {
            report::<()>(Err(error), "tell the other processes that this one shares a budget");
            budgets.values().for_each(|budget| budget.unheard());
            core.clock.sleep(TRY_AGAIN).await;
        }
    }
    false
}
