//! Keeps what this process has in common with others up to date: circuits and budgets.

use std::sync::Arc;
use std::time::Duration;

use crate::budget::Budget;
use crate::core::Core;

use super::{budgets, circuits};

/// Something is told at most this often, of one kind for all subscriptions at once.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// How often to look whether there is something to tell without a call having ended: counts grow old, a circuit that is open may
/// have been closed, and others want to hear now and then that this process is there.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Ends at once where no other process can be there: then everything is this process's own.
pub(crate) async fn keep_in_touch(core: Arc<Core>) {
    loop {
        let subscriptions = core.subscriptions();
        let has_something = subscriptions.iter().any(|subscription| {
            subscription.circuit.is_common() || subscription.budget.as_ref().is_some_and(Budget::is_common)
        });
        if !has_something {
            core.news.notified().await;
            continue;
        }
        let is_alone = circuits::tell(&core, subscriptions.all()).await
            || budgets::tell(&core, subscriptions.all()).await;
        if is_alone {
            return;
        }
        core.clock.sleep(TELL_EVERY).await;
        tokio::select! {
            () = core.news.notified() => {}
            () = core.clock.sleep(LOOK_EVERY) => {}
        }
    }
}
