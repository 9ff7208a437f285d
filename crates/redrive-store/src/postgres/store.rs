//! The store traits on PostgreSQL, except `Cluster` and `Documents`: each method delegates to the module that implements it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redrive_retry::{Clock, Timestamp};
use tokio::sync::oneshot;

use super::listen::ListenConnection;
use super::recover::{self, Search};
use super::write_batcher::{Append, Command};
use super::{PostgresStore, append, claim, dlq, leader_tasks, leases, lock, maintenance, read, replay};
use crate::dead_letter::{DeadLetter, DlqFilter, DlqGroup, DlqPage, Redrive};
use crate::error::StoreError;
use crate::event::{EventContent, EventId, NewEvent, SubscriptionName};
use crate::query::{
    AttemptFilter, AuditLine, Depth, EventDetail, EventFilter, EventPage, PayloadOmitted, Stats,
    SubscriptionAttempt, WaitingWork,
};
use crate::store::{
    Appended, BacklogClaimed, BacklogRequest, DeadLetters, EventStore, Finished, Leases, Replayed, Sealed,
    Store, StoreFuture, WorkQueue,
};
use crate::work::{ClaimSink, Claimed, DueHint, Recovered, Settlement};

impl Sealed for PostgresStore {}

impl Store for PostgresStore {
    fn clock(&self) -> Clock {
        self.shared.time.clone()
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let _one_at_a_time = self.closing.lock().await;
            if self.shared.is_closed.load(Ordering::Acquire) {
                return Ok(());
            }
            // Executes the queued commands first, then refuses new ones.
            self.write_batcher.finish().await;
            self.background_writes.finish().await;
            self.shared.is_closed.store(true, Ordering::Release);
            self.shared.claim_session.lock().await.take();
            if let Err(error) = self.shared.leave().await {
                // Nothing is lost: the leader takes the claims over when the lease has expired.
                tracing::warn!(target: "redrive::store", %error, "the store was closed without unregistering this process");
            }
            self.shared.heartbeat_session.lock().await.take();
            self.shared.leader_session.lock().await.take();
            for task in &self.background {
                task.abort();
            }
            *self.shared.listener.lock().await = ListenConnection::default(); // releases the liveness lock
            self.shared.pool.close();
            Ok(())
        })
    }
}

impl EventStore for PostgresStore {
    fn append(&self, events: Vec<NewEvent>) -> StoreFuture<'_, Vec<Appended>> {
        Box::pin(async move {
            append::check(&events, self.shared.options.max_payload)?;
            if events.is_empty() {
                return Ok(Vec::new());
            }
            let _busy = self.shared.options.clock.busy();
            let rows = events.into_iter().map(append::Row::from).collect();
            let (reply, answer) = oneshot::channel();
            self.write_batcher
                .queue
                .send(Command::Append(Append { rows, since: Instant::now(), reply }))
                .await?;
            answer.await.unwrap_or(Err(StoreError::Closed))
        })
    }

    fn taken_ids(&self, wanted: Vec<EventContent>) -> StoreFuture<'_, Vec<EventId>> {
        Box::pin(self.read(async move |session| read::taken_ids(session, &wanted).await))
    }

    fn event(&self, id: EventId) -> StoreFuture<'_, EventDetail> {
        Box::pin(self.read(async move |session| read::event(session, id).await))
    }

    fn events(&self, filter: EventFilter, page: EventPage) -> StoreFuture<'_, Vec<EventDetail>> {
        Box::pin(self.read(async move |session| read::events(session, &filter, page).await))
    }

    fn event_summaries(
        &self,
        filter: EventFilter,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<EventDetail<PayloadOmitted>>> {
        Box::pin(self.read(async move |session| read::events(session, &filter, page).await))
    }

    fn attempts_of(
        &self,
        name: SubscriptionName,
        filter: AttemptFilter,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<SubscriptionAttempt>> {
        Box::pin(self.read(async move |session| read::attempts_of(session, &name, filter, page).await))
    }

    fn audit_lines(&self, after: Option<i64>, limit: u32) -> StoreFuture<'_, Vec<AuditLine>> {
        Box::pin(PostgresStore::audit_lines(self, after, limit))
    }

    fn depth(&self) -> StoreFuture<'_, Depth> {
        let names = Arc::clone(&self.shared.connector.names);
        Box::pin(self.read(async move |session| maintenance::depth(session, names.schema()).await))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        let names = Arc::clone(&self.shared.connector.names);
        Box::pin(self.read(async move |session| maintenance::stats(session, names.schema()).await))
    }

    fn waiting(&self, now: Timestamp, overdue_before: Timestamp) -> StoreFuture<'_, WaitingWork> {
        Box::pin(self.read(async move |session| maintenance::waiting(session, now, overdue_before).await))
    }

    fn purge_done(&self, finished_before: Timestamp, limit: u32) -> StoreFuture<'_, u64> {
        Box::pin(self.run(move |shared| async move {
            let session = shared.pool.get().await?;
            maintenance::purge_done(&session, finished_before, limit).await
        }))
    }
}

impl WorkQueue for PostgresStore {
    fn attach(&self, sink: Option<ClaimSink>) {
        *lock(&self.shared.sink) = sink;
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

    fn poll_interval(&self) -> Option<Duration> {
        Some(self.shared.options.poll_interval)
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

    fn defer_to_backlog(&self, names: Vec<SubscriptionName>, now: Timestamp) -> StoreFuture<'_, Vec<usize>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.read(async move |session| claim::defer_to_backlog(&shared, session, &names, now).await))
    }

    fn claim_backlog(
        &self,
        requests: Vec<BacklogRequest>,
        now: Timestamp,
    ) -> StoreFuture<'_, Vec<BacklogClaimed>> {
        Box::pin(self.run(move |shared| async move { claim::claim_backlog(&shared, &requests, now).await }))
    }

    fn settle(&self, claimed: Claimed, settlement: Settlement) -> StoreFuture<'_, Finished> {
        Box::pin(self.settle_until_done(claimed, Box::new(settlement)))
    }

    fn claim_leased(
        &self,
        leases: Leases,
        now: Timestamp,
        sink: ClaimSink,
    ) -> StoreFuture<'_, Vec<Option<Claimed>>> {
        Box::pin(
            self.run(move |shared| async move { leases::claim_leased(&shared, &leases, now, &sink).await }),
        )
    }

    fn extend_leases(&self, leases: Leases, now: Timestamp, until: Timestamp) -> StoreFuture<'_, Vec<bool>> {
        Box::pin(async move {
            let extended = self
                .read(async move |session| leases::extend_leases(session, &leases, now, until).await)
                .await?;
            self.shared.due.pull_forward(until); // a lease may end earlier than before
            Ok(extended)
        })
    }

    fn heartbeat(&self) -> StoreFuture<'_, Option<Duration>> {
        Box::pin(self.run(|shared| async move {
            shared.heartbeat().await?;
            Ok(Some(shared.heartbeat_interval()))
        }))
    }

    fn recover(&self, now: Timestamp) -> StoreFuture<'_, Vec<Recovered>> {
        Box::pin(
            self.run(move |shared| async move { recover::recover(&shared, now, Search::AtTheStart).await }),
        )
    }

    fn maintain(&self, now: Timestamp, retention: Option<Duration>) -> StoreFuture<'_, Duration> {
        Box::pin(self.run(move |shared| async move { leader_tasks::maintain(&shared, now, retention).await }))
    }
}

impl DeadLetters for PostgresStore {
    fn dead_letters(&self, filter: DlqFilter, page: DlqPage) -> StoreFuture<'_, Vec<DeadLetter>> {
        Box::pin(self.read(async move |session| dlq::list(session, &filter, page).await))
    }

    fn dead_letter_summaries(
        &self,
        filter: DlqFilter,
        page: DlqPage,
    ) -> StoreFuture<'_, Vec<DeadLetter<PayloadOmitted>>> {
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
                shared.make_due(redrive.at, async |session| dlq::redrive(session, id, &redrive).await).await
            })
            .await
        })
    }

    fn redrive_matching(&self, id: EventId, filter: DlqFilter, at: Timestamp) -> StoreFuture<'_, ()> {
        Box::pin(self.run(move |shared| async move {
            shared.make_due(at, async |session| dlq::redrive_matching(session, id, &filter, at).await).await
        }))
    }

    fn replay(&self, id: EventId, to: SubscriptionName, at: Timestamp) -> StoreFuture<'_, Replayed> {
        Box::pin(self.run(move |shared| async move {
            shared.make_due(at, async |session| replay::replay(session, id, &to, at).await).await
        }))
    }

    fn purge_dead(&self, published_until: Timestamp) -> StoreFuture<'_, u64> {
        Box::pin(self.purge_all(move |shared| async move {
            let session = shared.pool.get().await?;
            dlq::purge(&session, published_until).await
        }))
    }
}
