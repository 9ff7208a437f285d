//! Settles events in batches: those that end the same way within a few milliseconds share a request.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::outcome::Settlement;
use crate::client::{Client, Result};
use crate::subscriptions::{Ack, LeaseResults, MAX_LEASES, Nack};

/// Delay before a batch is sent again, after the retries of the client are exhausted.
const SETTLE_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Result of a settlement.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// The server stored it.
    Done,
    /// The lease had ended.
    Lost,
    /// Not known: no server answered in time.
    Unknown,
}

/// A lease that waits for its batch.
#[derive(Debug)]
pub(super) struct Pending {
    lease: String,
    settlement: Settlement,
    done: oneshot::Sender<Settled>,
}

/// Hands settlements over to [`settle_loop`].
#[derive(Debug)]
pub(super) struct Settler(mpsc::UnboundedSender<Pending>);

impl Settler {
    pub(super) fn new(sender: mpsc::UnboundedSender<Pending>) -> Self {
        Settler(sender)
    }

    /// Settles one lease with the next batch.
    pub(super) async fn settle(&self, lease: &str, settlement: Settlement) -> Settled {
        let (done, settled) = oneshot::channel();
        // The loop ends only with the worker.
        let _ = self.0.send(Pending { lease: lease.to_owned(), settlement, done });
        settled.await.unwrap_or(Settled::Unknown)
    }
}

/// The subscription whose events are settled, and the bounds of a request.
#[derive(Clone, Debug)]
pub(super) struct SettleTarget {
    pub(super) client: Client,
    pub(super) subscription: Arc<str>,
    /// Time in which settlements are collected.
    pub(super) delay: Duration,
    /// Time after which a batch is not sent again: the length of a lease.
    pub(super) timeout: Duration,
}

type Waiting = Vec<(String, oneshot::Sender<Settled>)>;

/// Collects settlements for a few milliseconds and sends them, until the worker ends.
pub(super) async fn settle_loop(target: SettleTarget, mut settlements: mpsc::UnboundedReceiver<Pending>) {
    let mut requests = JoinSet::new();
    while let Some(first) = settlements.recv().await {
        if !target.delay.is_zero() {
            target.client.clock().sleep(target.delay).await;
        }
        let mut batches: HashMap<Settlement, Waiting> = HashMap::new();
        let mut next = Some(first);
        while let Some(Pending { lease, settlement, done }) = next {
            batches.entry(settlement).or_default().push((lease, done));
            next = settlements.try_recv().ok();
        }
        for (settlement, mut waiting) in batches {
            while !waiting.is_empty() {
                let rest = waiting.split_off(waiting.len().min(MAX_LEASES));
                let batch = std::mem::replace(&mut waiting, rest);
                requests.spawn(send(target.clone(), settlement.clone(), batch));
            }
        }
        while requests.try_join_next().is_some() {}
    }
}

/// Sends one batch until the server decides, or for the length of a lease.
async fn send(target: SettleTarget, settlement: Settlement, batch: Waiting) {
    let (leases, waiting): (Vec<String>, Vec<_>) = batch.into_iter().unzip();
    let lost = tokio::select! {
        lost = settle(&target, &settlement, &leases) => lost,
        () = target.client.clock().sleep(target.timeout) => None,
    };
    for (lease, done) in leases.iter().zip(waiting) {
        let settled = match &lost {
            None => Settled::Unknown,
            Some(lost) if lost.contains(lease) => Settled::Lost,
            Some(_) => Settled::Done,
        };
        let _ = done.send(settled); // nobody waits after the end of a stop
    }
}

/// Returns the leases that were lost; `None` if that is not known.
async fn settle(
    target: &SettleTarget,
    settlement: &Settlement,
    leases: &[String],
) -> Option<HashSet<String>> {
    loop {
        let error = match request(target, settlement, leases.to_vec()).await {
            Ok(LeaseResults { lost, .. }) => return Some(lost.into_iter().collect()),
            Err(error) => error,
        };
        let (subscription, count) = (&*target.subscription, leases.len());
        if !error.is_temporary() {
            tracing::error!(subscription, leases = count, %error, "events were not settled");
            return None;
        }
        tracing::warn!(subscription, leases = count, %error, "events are not settled yet");
        target.client.clock().sleep(SETTLE_RETRY_DELAY.max(error.retry_after().unwrap_or_default())).await;
    }
}

async fn request(
    target: &SettleTarget,
    settlement: &Settlement,
    leases: Vec<String>,
) -> Result<LeaseResults> {
    let subscriptions = target.client.subscriptions();
    match settlement.clone() {
        Settlement::Ack => subscriptions.ack(&target.subscription, &Ack { leases }).await,
        Settlement::Nack { outcome, delay_ms, reason } => {
            let nack = Nack { leases, outcome: Some(outcome), delay_ms, reason };
            subscriptions.nack(&target.subscription, &nack).await
        }
    }
}
