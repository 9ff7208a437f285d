//! For Redrive's own crates: settings of webhook and broker subscriptions. No stable interface.

use crate::subscribe::Subscribe;

/// Settings of subscriptions whose handlers call another process.
pub trait SubscribeExt: Sized {
    /// Declares that the handler only calls another process, and so cannot crash this one: a crash suspect runs beside others.
    fn remote_effect(self) -> Self;

    /// Receives no new events, only deliveries that exist already or are replayed: for a subscription that is being removed.
    fn drain_only(self) -> Self;

    /// Does not take over throttling and used tokens of the replaced subscription, because another receiver has the name now.
    fn reset_limits(self) -> Self;
}

impl SubscribeExt for Subscribe<'_> {
    fn remote_effect(self) -> Self {
        Subscribe { is_remote_effect: true, ..self }
    }

    fn drain_only(self) -> Self {
        Subscribe { drains_only: true, ..self }
    }

    fn reset_limits(self) -> Self {
        Subscribe { resets_limits: true, ..self }
    }
}
