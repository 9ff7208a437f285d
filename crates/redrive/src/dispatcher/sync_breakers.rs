//! Reports this process's counts for shared breakers and applies those of the other processes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::core::Core;
use crate::subscription::Subscription;

use super::{STORE_RETRY_DELAY, report};

/// Reports once; returns whether the store belongs to this process alone.
pub(super) async fn sync(core: &Core, subscriptions: &[Arc<Subscription>]) -> bool {
    let shared: HashMap<_, _> = subscriptions
        .iter()
        .map(|subscription| (&subscription.name, &subscription.admission.circuit))
        .filter(|(_, circuit)| circuit.is_shared())
        .collect();
    let reports: Vec<_> = shared.values().filter_map(|circuit| circuit.report()).collect();
    if reports.is_empty() {
        return false;
    }
    let reported_in: HashMap<_, _> =
        reports.iter().map(|report| (report.subscription.clone(), report.generation)).collect();
    match core.store.share_circuits(reports).await {
        Ok(None) => return true,
        Ok(Some(views)) => {
            for view in &views {
                let known = shared.get(&view.subscription).zip(reported_in.get(&view.subscription));
                if let Some((circuit, reported_in)) = known {
                    circuit.apply(core.store.as_ref(), *reported_in, view).await;
                }
            }
        }
        Err(error) => {
            report::<()>(Err(error), "report this process's counts for a shared breaker");
            shared.values().for_each(|circuit| circuit.report_failed());
            core.clock.sleep(STORE_RETRY_DELAY).await;
        }
    }
    false
}
