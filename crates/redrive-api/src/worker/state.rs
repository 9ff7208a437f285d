//! What the parts of a running worker share: settings, phase, counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redrive_retry::Failure;
use tokio::sync::{mpsc, watch};

use super::handler::BoxHandler;
use super::leases::{ExtendTarget, Leases};
use super::settler::{Pending, SettleTarget, Settler};
use crate::client::{Client, Result};
use crate::subscriptions::{LeasedEvent, PutSubscription};

/// Computes the shortest wait before the next attempt.
pub(super) type RetryDelay = Arc<dyn Fn(&LeasedEvent, &Failure) -> Option<Duration> + Send + Sync>;

/// Settings of a worker.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) concurrency: usize,
    pub(super) lease: Duration,
    pub(super) wait: Duration,
    pub(super) timeout: Option<Duration>,
    pub(super) ack_delay: Duration,
    pub(super) stop_timeout: Duration,
    pub(super) create: Option<PutSubscription>,
    pub(super) retry_delay: Option<RetryDelay>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            concurrency: 16,
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(20),
            timeout: None,
            ack_delay: Duration::from_millis(5),
            stop_timeout: Duration::from_secs(30),
            create: None,
            retry_delay: None,
        }
    }
}

/// Phase of a worker. It only advances.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The subscription is being created.
    Starting,
    /// Events are pulled and handled.
    Running,
    /// Nothing is pulled any more; running handlers go on.
    Stopping,
    /// The futures of handlers are dropped.
    Abandoning,
    /// Everything is settled, or the worker cannot go on.
    Ended,
}

/// Counts of a worker since its start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Acked events.
    pub handled: u64,
    /// Failed attempts that the server recorded.
    pub failed: u64,
    /// Snoozed and released events.
    pub snoozed: u64,
    /// Events whose lease had ended before they were settled: they are delivered again.
    pub lost: u64,
    /// Handlers that run now.
    pub running: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) handled: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) snoozed: AtomicU64,
    pub(super) lost: AtomicU64,
    running: AtomicU64,
}

/// State of one worker.
pub(super) struct State {
    pub(super) client: Client,
    /// Pulls and extends: the worker repeats these requests itself.
    pub(super) once: Client,
    pub(super) subscription: Arc<str>,
    pub(super) handler: BoxHandler,
    pub(super) settings: Settings,
    pub(super) counts: Counts,
    pub(super) leases: Arc<Leases>,
    pub(super) settler: Settler,
    phase: watch::Sender<Phase>,
}

impl State {
    pub(super) fn new(
        client: Client,
        subscription: String,
        handler: BoxHandler,
        settings: Settings,
        settlements: mpsc::UnboundedSender<Pending>,
    ) -> Self {
        let leases = Arc::new(Leases::new(client.clock().clone(), settings.lease));
        State {
            once: client.clone().without_retries(),
            client,
            subscription: subscription.into(),
            handler,
            settings,
            counts: Counts::default(),
            leases,
            settler: Settler::new(settlements),
            phase: watch::Sender::new(Phase::Starting),
        }
    }

    /// Target of acks and nacks.
    pub(super) fn settle_target(&self) -> SettleTarget {
        let (client, subscription) = (self.client.clone(), Arc::clone(&self.subscription));
        let Settings { ack_delay, lease, .. } = self.settings;
        SettleTarget { client, subscription, delay: ack_delay, timeout: lease }
    }

    /// Target of extensions.
    pub(super) fn extend_target(&self) -> ExtendTarget {
        ExtendTarget { client: self.once.clone(), subscription: Arc::clone(&self.subscription) }
    }

    /// Creates or changes the subscription.
    pub(super) async fn put(&self, subscription: &PutSubscription) -> Result<()> {
        self.client.subscriptions().put(&self.subscription, subscription).await.map(drop)
    }

    fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let advances = *phase < to;
            *phase = (*phase).max(to);
            advances
        });
    }

    pub(super) fn mark_ready(&self) {
        self.advance(Phase::Running);
    }

    /// Stops pulling.
    pub(super) fn stop(&self) {
        self.advance(Phase::Stopping);
    }

    /// Drops the futures of running handlers.
    pub(super) fn abandon(&self) {
        self.advance(Phase::Abandoning);
    }

    /// Marks the worker as ended when the guard is dropped.
    pub(super) fn mark_ended_on_drop(self: &Arc<Self>) -> impl Drop + use<> {
        struct Ended(Arc<State>);
        impl Drop for Ended {
            fn drop(&mut self) {
                self.0.advance(Phase::Ended);
            }
        }
        Ended(Arc::clone(self))
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.phase.borrow() >= Phase::Stopping
    }

    /// Waits until the worker has reached a phase.
    async fn reached(&self, at_least: Phase) {
        // The sender is in `self`, so the channel is open.
        let _ = self.phase.subscribe().wait_for(|phase| *phase >= at_least).await;
    }

    /// Waits until the subscription exists, or the worker has stopped.
    pub(super) async fn ready(&self) {
        self.reached(Phase::Running).await;
    }

    /// Waits until the worker is stopped.
    pub(super) async fn stopping(&self) {
        self.reached(Phase::Stopping).await;
    }

    /// Waits until a stop has waited long enough for running handlers.
    pub(super) async fn abandoning(&self) {
        self.reached(Phase::Abandoning).await;
    }

    /// Counts a running handler until the guard is dropped.
    pub(super) fn count_running(self: &Arc<Self>) -> impl Drop + use<> {
        struct Running(Arc<State>);
        impl Drop for Running {
            fn drop(&mut self) {
                self.0.counts.running.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.counts.running.fetch_add(1, Ordering::Relaxed);
        Running(Arc::clone(self))
    }

    pub(super) fn stats(&self) -> WorkerStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { handled, failed, snoozed, lost, running } = &self.counts;
        WorkerStats {
            handled: read(handled),
            failed: read(failed),
            snoozed: read(snoozed),
            lost: read(lost),
            running: read(running),
        }
    }
}
