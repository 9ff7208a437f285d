//! What the trait asks for, and who does it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use redrive_retry::{CircuitState, Clock, Timestamp};
use tokio::sync::oneshot;

use super::lane::{Append, Command};
use super::recover::{self, Search};
use super::{
    PostgresStore, append, budget, circuit, claim, dlq, elsewhere, maintenance, read, replay, subscribe,
    upkeep,
};
use crate::budget::{BudgetReport, BudgetView};
use crate::circuit::{CircuitReport, CircuitView};
use crate::dead_letter::{DeadLetter, DlqFilter, DlqGroup, DlqPage, Redrive};
use crate::error::StoreError;
use crate::event::{EventId, NewEvent, SubscriptionName};
use crate::query::{
    Depth, EventDetail, EventFilter, EventPage, Stats, SubscribedElsewhere, SubscriptionAttempt,
    SubscriptionRow, Unread,
};
use crate::store::{Appended, Call, CalledUp, Finished, Replayed, Store, StoreFuture};
use crate::work::{ClaimSink, Claimed, DueHint, Recovered, Settlement};

impl Store for PostgresStore {
    fn clock(&self) -> Clock {
        self.shared.time.clone()
    }

    fn attach(&self, sink: Option<ClaimSink>) {
        *self.shared.sink.lock().unwrap_or_else(PoisonError::into_inner) = sink;
    }

    fn append(&self, events: Vec<NewEvent>) -> StoreFuture<'_, Vec<Appended>> {
        Box::pin(async move {
            append::check(&events, self.shared.options.max_payload)?;
            if events.is_empty() {
                return Ok(Vec::new());
            }
            let _busy = self.shared.options.clock.busy();
            let rows = events.into_iter().map(append::Row::from).collect();
            let (reply, answer) = oneshot::channel();
            self.lanes.send(Command::Append(Append { rows, since: Instant::now(), reply })).await?;
            answer.await.unwrap_or(Err(StoreError::Closed))
        })
    }

    fn claim(&self, now: Timestamp) -> StoreFuture<'_, usize> {
        Box::pin(self.run(move |shared| async move { claim::claim(&shared, now).await }))
    }

    fn claim_suspect(&self, now: Timestamp, sink: ClaimSink) -> StoreFuture<'_, Option<Claimed>> {
        Box::pin(self.run(move |shared| async move { claim::claim_suspect(&shared, now, &sink).await }))
    }

    fn has_suspects(&self, now: Timestamp) -> StoreFuture<'_, bool> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.read(async move |session| claim::has_suspects(&shared, session, now).await))
    }

    fn due_hint(&self) -> Arc<DueHint> {
        Arc::clone(&self.shared.due)
    }

    fn look_again(&self) -> Option<Duration> {
        Some(self.shared.options.look_again)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn refresh_due(&self) -> StoreFuture<'_, Option<Timestamp>> {
        Box::pin(async move {
            let shared = Arc::clone(&self.shared);
            let due = self.read(async move |session| claim::next_due(&shared, session).await).await?;
            if let Some(at) = due {
                self.shared.due.pull_forward(at);
            }
            Ok(due)
        })
    }

    fn hold(&self, names: Vec<SubscriptionName>, now: Timestamp) -> StoreFuture<'_, Vec<usize>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.read(async move |session| claim::hold(&shared, session, &names, now).await))
    }

    fn call_up(&self, calls: Vec<Call>, now: Timestamp) -> StoreFuture<'_, Vec<CalledUp>> {
        Box::pin(self.run(move |shared| async move { claim::call_up(&shared, &calls, now).await }))
    }

    fn settle(&self, claimed: Claimed, settlement: Settlement) -> StoreFuture<'_, Finished> {
        Box::pin(self.settle_until_done(claimed, Box::new(settlement)))
    }

    fn heartbeat(&self) -> StoreFuture<'_, Option<Duration>> {
        Box::pin(self.run(|shared| async move {
            shared.beat().await?;
            Ok(Some(shared.beat_every()))
        }))
    }

    fn recover(&self, now: Timestamp) -> StoreFuture<'_, Vec<Recovered>> {
        Box::pin(
            self.run(move |shared| async move { recover::recover(&shared, now, Search::AtTheStart).await }),
        )
    }

    fn maintain(&self, now: Timestamp, retention: Option<Duration>) -> StoreFuture<'_, Duration> {
        Box::pin(self.run(move |shared| async move { upkeep::maintain(&shared, now, retention).await }))
    }

    fn share_circuits(&self, reports: Vec<CircuitReport>) -> StoreFuture<'_, Option<Vec<CircuitView>>> {
        Box::pin(self.run(|shared| async move { circuit::share(&shared, reports).await.map(Some) }))
    }

    fn change_circuit(&self, name: SubscriptionName, change: CircuitState) -> StoreFuture<'_, Option<i64>> {
        Box::pin(self.run(move |shared| async move { circuit::change(&shared, &name, change).await }))
    }

    fn share_budgets(&self, reports: Vec<BudgetReport>) -> StoreFuture<'_, Option<Vec<BudgetView>>> {
        Box::pin(self.run(|shared| async move { budget::share(&shared, reports).await.map(Some) }))
    }

    fn register(&self, subscription: SubscriptionRow) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            // Known first: what somebody wants counts as long as its process is.
            self.run(|shared| async move { shared.owner().await }).await?;
            let boot = self.shared.boot;
            self.read(async move |session| subscribe::register(session, boot, &subscription).await).await
        })
    }

    fn unregister(&self, name: SubscriptionName) -> StoreFuture<'_, bool> {
        let boot = self.shared.boot;
        Box::pin(self.read(async move |session| subscribe::unregister(session, boot, &name).await))
    }

    fn all_have_heard(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.run(|shared| async move { elsewhere::all_have_heard(&shared).await }))
    }

    fn subscribed_elsewhere(&self) -> StoreFuture<'_, Arc<[SubscribedElsewhere]>> {
        Box::pin(self.run(|shared| async move { Ok(elsewhere::look(&shared).await?.subscribed) }))
    }

    fn subscriptions(&self) -> StoreFuture<'_, Vec<SubscriptionRow>> {
        Box::pin(self.read(subscribe::list))
    }

    fn event(&self, id: EventId) -> StoreFuture<'_, EventDetail> {
        Box::pin(self.read(async move |session| read::event(session, id).await))
    }

    fn events(&self, filter: EventFilter, page: EventPage) -> StoreFuture<'_, Vec<EventDetail>> {
        Box::pin(self.read(async move |session| read::events(session, &filter, page).await))
    }

    fn events_in_short(
        &self,
        filter: EventFilter,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<EventDetail<Unread>>> {
        Box::pin(self.read(async move |session| read::events(session, &filter, page).await))
    }

    fn attempts_of(
        &self,
        name: SubscriptionName,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<SubscriptionAttempt>> {
        Box::pin(self.read(async move |session| read::attempts_of(session, &name, page).await))
    }

    fn depth(&self) -> StoreFuture<'_, Depth> {
        let names = Arc::clone(&self.shared.names);
        Box::pin(self.read(async move |session| maintenance::depth(session, names.schema()).await))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        let names = Arc::clone(&self.shared.names);
        Box::pin(self.read(async move |session| maintenance::stats(session, names.schema()).await))
    }

    fn dead_letters(&self, filter: DlqFilter, page: DlqPage) -> StoreFuture<'_, Vec<DeadLetter>> {
        Box::pin(self.read(async move |session| dlq::list(session, &filter, page).await))
    }

    fn dead_letters_in_short(
        &self,
        filter: DlqFilter,
        page: DlqPage,
    ) -> StoreFuture<'_, Vec<DeadLetter<Unread>>> {
        Box::pin(self.read(async move |session| dlq::list(session, &filter, page).await))
    }

    fn dead_letter(&self, id: EventId) -> StoreFuture<'_, Vec<DeadLetter>> {
        Box::pin(self.read(async move |session| dlq::get(session, id).await))
    }

    fn dead_groups(&self, filter: DlqFilter) -> StoreFuture<'_, Vec<DlqGroup>> {
        Box::pin(self.read(async move |session| dlq::groups(session, &filter).await))
    }

    fn redrive(&self, id: EventId, redrive: Redrive) -> StoreFuture<'_, ()> {
        let limit = self.shared.options.max_payload;
        Box::pin(async move {
            if let Some(payload) = &redrive.payload {
                if payload.len() > limit {
                    return Err(StoreError::PayloadTooLarge { bytes: payload.len(), limit });
                }
                if payload.contains('\0') {
                    return Err(StoreError::Nul);
                }
            }
            self.run(move |shared| async move {
                let session = shared.pool.get().await?;
                dlq::redrive(&session, id, &redrive).await?;
                shared.waits(redrive.at);
                shared.herald.say();
                Ok(())
            })
            .await
        })
    }

    fn redrive_matching(&self, id: EventId, filter: DlqFilter, at: Timestamp) -> StoreFuture<'_, ()> {
        Box::pin(self.run(move |shared| async move {
            let session = shared.pool.get().await?;
            dlq::redrive_matching(&session, id, &filter, at).await?;
            shared.waits(at);
            shared.herald.say();
            Ok(())
        }))
    }

    fn replay(&self, id: EventId, to: SubscriptionName, at: Timestamp) -> StoreFuture<'_, Replayed> {
        Box::pin(self.run(move |shared| async move {
            let session = shared.pool.get().await?;
            let replayed = replay::replay(&session, id, &to, at).await?;
            shared.waits(at);
            shared.herald.say();
            Ok(replayed)
        }))
    }

    fn purge_dead(&self, published_until: Timestamp) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let mut purged = 0;
            loop {
                let part = self
                    .run(move |shared| async move {
                        let session = shared.pool.get().await?;
                        dlq::purge(&session, published_until).await
                    })
                    .await?;
                purged += part;
                if part == 0 {
                    return Ok(purged);
                }
            }
        })
    }

    fn purge_done(&self, finished_before: Timestamp, limit: u32) -> StoreFuture<'_, u64> {
        Box::pin(self.run(move |shared| async move {
            let session = shared.pool.get().await?;
            maintenance::purge_done(&session, finished_before, limit).await
        }))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let _one_at_a_time = self.closing.lock().await;
            if self.shared.is_closed.load(Ordering::Acquire) {
                return Ok(());
            }
            // What was sent is finished first; then nobody gets anything any more.
            self.lanes.shut();
            self.lanes.finish().await;
            self.aside.shut();
            self.aside.finish().await;
            self.shared.is_closed.store(true, Ordering::Release);
            self.shared.claimer.lock().await.take();
            if let Err(error) = self.shared.leave().await {
                // Nothing is lost by it: whatever is still held is taken over when the lease has run out.
                tracing::warn!(target: "redrive::store", %error, "closed without a goodbye");
            }
            self.shared.keeper.lock().await.take();
            self.shared.steward.lock().await.take();
            for task in &self.background {
                task.abort();
            }
            self.shared.watch.close().await;
            self.shared.pool.close();
            Ok(())
        })
    }
}
