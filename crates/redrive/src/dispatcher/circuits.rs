//! Keeps the circuits that this process has in common with others up to date: tells what was counted, takes in what others have.

use std::collections::HashMap;
use std::sync::Arc;

use crate::core::Core;
use crate::subscription::Subscription;

use super::{TRY_AGAIN, report};

/// Says whether no other process can be there: then a circuit is this process's own.
pub(super) async fn tell(core: &Core, subscriptions: &[Arc<Subscription>]) -> bool {
    let common: HashMap<_, _> = subscriptions
        .iter()
        .filter(|subscription| subscription.circuit.is_common())
        .map(|subscription| (&subscription.name, &subscription.circuit))
        .collect();
    let reports: Vec<_> = common.values().filter_map(|circuit| circuit.report()).collect();
    if reports.is_empty() {
        return false;
    }
    let asked_under: HashMap<_, _> =
        reports.iter().map(|report| (report.subscription.clone(), report.generation)).collect();
    match core.store.share_circuits(reports).await {
        Ok(None) => return true,
        Ok(Some(views)) => {
            for view in &views {
                let known = common.get(&view.subscription).zip(asked_under.get(&view.subscription));
                if let Some((circuit, asked_under)) = known {
                    circuit.learn(core.store.as_ref(), *asked_under, view).await;
                }
            }
        }
        Err(error) => {
            report::<()>(Err(error), "tell the other processes how calls have ended");
            common.values().for_each(|circuit| circuit.unheard());
            core.clock.sleep(TRY_AGAIN).await;
        }
    }
    false
}
