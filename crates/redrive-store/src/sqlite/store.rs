//! The traits [`Store`], [`EventStore`] and [`WorkQueue`] on SQLite: each method becomes a command of the writer, or a query on a
//! read-only connection. The other traits are implemented beside their statements in `dlq`, `subscribe` and `document`.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redrive_retry::{Clock, Timestamp};

use super::append::{self, Row};
use super::batch::Command;
use super::{SqliteStore, claim, maintenance, read, recover, schema};
use crate::error::StoreError;
use crate::event::{EventId, NewEvent, SubscriptionName};
use crate::query::{Depth, EventDetail, EventFilter, EventPage, PayloadOmitted, Stats, SubscriptionAttempt};
use crate::store::{
    Appended, BacklogClaimed, BacklogRequest, CLEANUP_BATCH_ROWS, CLEANUP_INTERVAL, EventStore, Finished,
    Sealed, Store, StoreFuture, WorkQueue, retention_cutoff,
};
use crate::work::{ClaimSink, Claimed, DueHint, Recovered, Settlement};

/// Interval at which to poll for events that another process stored in the file.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

impl Sealed for SqliteStore {}

impl Store for SqliteStore {
    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            // The last connection to close checkpoints the log; that has to be the writer.
            self.readers.close().await;
            let closed = self.writer.close().await;
            self.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
            closed
        })
    }
}

impl EventStore for SqliteStore {
    fn append(&self, events: Vec<NewEvent>) -> StoreFuture<'_, Vec<Appended>> {
        let limit = self.max_payload;
        Box::pin(async move {
            NewEvent::check_all(&events, limit)?;
            let mut rows: Vec<Row> = events.into_iter().map(Row::from).collect();
            match rows.pop() {
                None => Ok(Vec::new()),
                Some(row) if rows.is_empty() && row.to.subscriptions().is_empty() => {
                    // Kept until the reply, so that this thread frees the memory and not the writer.
                    let _event = Arc::clone(&row.event);
                    let appended = self.writer.call(|reply| Command::AppendOne { row, reply }).await?;
                    Ok(vec![appended])
                }
                Some(row) => {
                    rows.push(row);
                    self.writer
                        .run_claiming(true, move |connection, pending| {
                            append::append(connection, &rows, pending)
                        })
                        .await
                }
            }
        })
    }

    fn event(&self, id: EventId) -> StoreFuture<'_, EventDetail> {
        Box::pin(self.read(move |connection| read::event(connection, id)))
    }

    fn events(&self, filter: EventFilter, page: EventPage) -> StoreFuture<'_, Vec<EventDetail>> {
        Box::pin(self.read(move |connection| read::events(connection, &filter, page)))
    }

    fn event_summaries(
        &self,
        filter: EventFilter,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<EventDetail<PayloadOmitted>>> {
        Box::pin(self.read(move |connection| read::events(connection, &filter, page)))
    }

    fn attempts_of(
        &self,
        name: SubscriptionName,
        page: EventPage,
    ) -> StoreFuture<'_, Vec<SubscriptionAttempt>> {
        Box::pin(self.read(move |connection| read::attempts_of(connection, &name, page)))
    }

    fn depth(&self) -> StoreFuture<'_, Depth> {
        let path = self.path.clone();
        Box::pin(self.read(move |connection| maintenance::depth(connection, &path)))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        let path = self.path.clone();
        Box::pin(self.read(move |connection| maintenance::stats(connection, &path)))
    }

    fn purge_done(&self, finished_before: Timestamp, limit: u32) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            // A reader searches; the writer only deletes.
            let keys = self
                .read(move |connection| maintenance::finished(connection, finished_before, limit))
                .await?;
            if keys.is_empty() {
                return Ok(0);
            }
            self.writer.run(move |connection| maintenance::purge_done(connection, &keys)).await
        })
    }
}

impl WorkQueue for SqliteStore {
    fn attach(&self, sink: Option<ClaimSink>) {
        self.writer.attach(sink);
    }

    fn claim(&self, now: Timestamp) -> StoreFuture<'_, usize> {
        Box::pin(
            self.writer
                .run_claiming(false, move |connection, pending| claim::claim(connection, now, pending)),
        )
    }

    fn claim_suspect(&self, now: Timestamp, sink: ClaimSink) -> StoreFuture<'_, Option<Claimed>> {
        Box::pin(self.writer.run_unsynced(move |connection| claim::claim_suspect(connection, now, &sink)))
    }

    fn has_suspects(&self, now: Timestamp) -> StoreFuture<'_, bool> {
        Box::pin(self.read(move |connection| claim::has_suspects(connection, now)))
    }

    fn due_hint(&self) -> Arc<DueHint> {
        self.writer.due_hint()
    }

    fn poll_interval(&self) -> Option<Duration> {
        (!schema::is_memory(&self.path)).then_some(POLL_INTERVAL)
    }

    fn refresh_due(&self) -> StoreFuture<'_, Option<Timestamp>> {
        Box::pin(async move {
            let due = self.read(claim::next_due).await?;
            if let Some(at) = due {
                self.writer.due_hint().pull_forward(at);
            }
            Ok(due)
        })
    }

    fn defer_to_backlog(&self, names: Vec<SubscriptionName>, now: Timestamp) -> StoreFuture<'_, Vec<usize>> {
        Box::pin(self.writer.run_unsynced(move |connection| claim::defer_to_backlog(connection, &names, now)))
    }

    fn claim_backlog(
        &self,
        requests: Vec<BacklogRequest>,
        now: Timestamp,
    ) -> StoreFuture<'_, Vec<BacklogClaimed>> {
        Box::pin(self.writer.run_claiming(false, move |connection, pending| {
            requests.iter().map(|request| claim::claim_backlog(connection, request, now, pending)).collect()
        }))
    }

    fn settle(&self, claimed: Claimed, settlement: Settlement) -> StoreFuture<'_, Finished> {
        Box::pin(self.writer.settle(claimed, Box::new(settlement)))
    }

    fn heartbeat(&self) -> StoreFuture<'_, Option<Duration>> {
        // The operating system releases the owner lock when the process dies, so no lease is needed.
        Box::pin(async move { if self.writer.is_closed() { Err(StoreError::Closed) } else { Ok(None) } })
    }

    fn recover(&self, now: Timestamp) -> StoreFuture<'_, Vec<Recovered>> {
        Box::pin(self.writer.run(move |connection| recover::recover(connection, now)))
    }

    fn maintain(&self, now: Timestamp, retention: Option<Duration>) -> StoreFuture<'_, Duration> {
        Box::pin(async move {
            // In small batches, so that publishers are served in between.
            while let Some(retention) = retention {
                let purged = self.purge_done(retention_cutoff(now, retention), CLEANUP_BATCH_ROWS).await?;
                if purged < u64::from(CLEANUP_BATCH_ROWS) {
                    break;
                }
            }
            while self.reap_keys(CLEANUP_BATCH_ROWS as usize).await? >= CLEANUP_BATCH_ROWS as usize {}
            Ok(CLEANUP_INTERVAL)
        })
    }
}
