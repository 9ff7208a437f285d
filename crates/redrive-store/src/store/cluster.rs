//! Sharing subscriptions, circuit breakers and retry budgets between processes.

use std::sync::Arc;

use super::{Sealed, StoreFuture};
use crate::budget::{BudgetReport, BudgetView};
use crate::circuit::{CircuitReport, CircuitState, CircuitView};
use crate::event::SubscriptionName;
use crate::query::{RemoteSubscription, SubscriptionRow};

/// Records subscriptions, and shares breakers and budgets between the processes of one store. The default methods are those of
/// a store that one process owns.
///
/// Sealed: implemented by this crate's stores only; the API is not stable.
#[allow(private_bounds)] // the private supertrait is the seal
pub trait Cluster: Sealed {
    /// Returns whether several processes dispatch from this store.
    fn is_shared(&self) -> bool {
        false
    }

    /// Records a subscription, or its new pattern.
    fn register(&self, subscription: SubscriptionRow) -> StoreFuture<'_, ()>;

    /// Removes a subscription and returns whether it was on record. Its open deliveries stay.
    fn unregister(&self, name: SubscriptionName) -> StoreFuture<'_, bool>;

    /// Lists the subscriptions on record.
    fn subscriptions(&self) -> StoreFuture<'_, Vec<SubscriptionRow>>;

    /// Resolves when every other process has seen the subscriptions of this one.
    fn subscriptions_propagated(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Lists subscriptions that other living processes have registered and this one has not, at most half a second old. A
    /// matching event has to be delivered to them before it is done.
    fn remote_subscriptions(&self) -> StoreFuture<'_, Arc<[RemoteSubscription]>> {
        Box::pin(async { Ok(Arc::default()) })
    }

    /// Publishes the outcome counts of this process for shared breakers and returns the state of each; `None` where one process
    /// owns the store. Counts are absolute, so that repeating a report does no harm.
    fn share_circuits(&self, reports: Vec<CircuitReport>) -> StoreFuture<'_, Option<Vec<CircuitView>>> {
        let _ = reports;
        Box::pin(async { Ok(None) })
    }

    /// Changes a shared breaker of the change's generation and returns the new generation; `None` if another process was first.
    fn change_circuit(&self, name: SubscriptionName, change: CircuitState) -> StoreFuture<'_, Option<i64>> {
        let _ = (name, change);
        Box::pin(async { Ok(None) })
    }

    /// Publishes that this process uses shared budgets and returns how many processes share each; `None` in a store of one process.
    fn share_budgets(&self, reports: Vec<BudgetReport>) -> StoreFuture<'_, Option<Vec<BudgetView>>> {
        let _ = reports;
        Box::pin(async { Ok(None) })
    }
}
