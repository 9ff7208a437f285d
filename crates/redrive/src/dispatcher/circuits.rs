//! Keeps the circuits that this process has in common with others up to date: tells what was counted, takes in what others have.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::core::Core;

use super::{TRY_AGAIN, report};

/// What was counted is told at most this often, for all circuits at once.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// How often to look whether there is something to tell without a call having ended: counts grow old, and a circuit that is
/// open may have been closed.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Ends at once where no other process can be there: then a circuit is this process's own.
pub(crate) async fn keep_in_touch(core: Arc<Core>) {
    loop {
        let subscriptions = core.subscriptions();
        let common: HashMap<_, _> = subscriptions
            .iter()
            .filter(|subscription| subscription.circuit.is_common())
            .map(|subscription| (&subscription.name, &subscription.circuit))
            .collect();
        if common.is_empty() {
            core.news.notified().await;
            continue;
        }
        let reports: Vec<_> = common.values().filter_map(|circuit| circuit.report()).collect();
        if !reports.is_empty() {
            let asked_under: HashMap<_, _> =
                reports.iter().map(|report| (report.subscription.clone(), report.generation)).collect();
            match core.store.share_circuits(reports).await {
                Ok(None) => return,
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
        }
        core.clock.sleep(TELL_EVERY).await;
        tokio::select! {
            () = core.news.notified() => {}
            () = core.clock.sleep(LOOK_EVERY) => {}
        }
    }
}
