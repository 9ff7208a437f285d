//! Events and dead letters as the commands read and move them: in a database that is opened beside whoever dispatches from it, or in
//! that of a running server. Both sides give the same types, so what is printed is written once.

mod server;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use redrive::{
    DeadLetter, DlqCursor, DlqFilter, DlqGroup, DlqInspector, DlqPage, EventDetail, EventFilter, EventId,
    EventPage, RetryReport, Store, StoreError, Timestamp, Unread,
};
use serde_json::value::RawValue;

use self::server::Server;
use crate::database::Database;
use crate::failure::Failure;
use crate::place::ServerArgs;

/// Where events are kept.
pub(crate) enum Ledger {
    /// With how to name it in a command.
    Database(Arc<dyn Store>, String),
    Server(Server),
}

/// Some of a list, and where the rest of it begins.
pub(crate) struct Part<T, C> {
    pub(crate) items: Vec<T>,
    pub(crate) next: Option<C>,
}

impl Ledger {
    /// The server, if one is named, or the database, which must be there.
    pub(crate) async fn open(server: &ServerArgs, db: &Database) -> Result<Self, Failure> {
        match server.remote()? {
            Some(place) => Ok(Ledger::Server(Server::new(place))),
            None => Ok(Ledger::Database(db.open().await?, db.flag())),
        }
    }

    /// How to name it in a command that the user may copy.
    pub(crate) fn flag(&self) -> String {
        match self {
            Ledger::Database(_, flag) => flag.clone(),
            Ledger::Server(server) => server.flag(),
        }
    }

    /// Events, newest first.
    pub(crate) async fn events(
        &self,
        filter: EventFilter,
        limit: u32,
        after: Option<i64>,
    ) -> Result<Part<EventDetail, i64>, Failure> {
        match self {
            Ledger::Database(store, _) => {
                // One more than asked for says whether there is more.
                let found = store.events(filter, EventPage { limit: limit.saturating_add(1), after }).await?;
                Ok(Part::cut(found, limit, |event| event.cursor))
            }
            Ledger::Server(server) => server.events(&filter, limit, after).await,
        }
    }

    /// The same without payloads: enough for lines.
    pub(crate) async fn events_in_short(
        &self,
        filter: EventFilter,
        limit: u32,
        after: Option<i64>,
    ) -> Result<Part<EventDetail<Unread>, i64>, Failure> {
        match self {
            Ledger::Database(store, _) => {
                let page = EventPage { limit: limit.saturating_add(1), after };
                let found = store.events_in_short(filter, page).await?;
                Ok(Part::cut(found, limit, |event| event.cursor))
            }
            Ledger::Server(server) => server.events_in_short(&filter, limit, after).await,
        }
    }

    /// One event.
    pub(crate) async fn event(&self, id: EventId) -> Result<EventDetail, Failure> {
        match self {
            Ledger::Database(store, _) => Ok(store.event(id).await?),
            Ledger::Server(server) => server.event(id).await,
        }
    }

    /// Dead events, newest first.
    pub(crate) async fn dead_letters(
        &self,
        filter: &DlqFilter,
        limit: u32,
        after: Option<DlqCursor>,
    ) -> Result<Part<DeadLetter, DlqCursor>, Failure> {
        match self {
            Ledger::Database(store, _) => {
                let page = DlqPage { offset: 0, limit: limit.saturating_add(1), after };
                let found = store.dead_letters(filter.clone(), page).await?;
                Ok(Part::cut(found, limit, |dead| dead.cursor))
            }
            Ledger::Server(server) => server.dead_letters(filter, limit, after).await,
        }
    }

    /// The same without payloads: enough for lines.
    pub(crate) async fn dead_letters_in_short(
        &self,
        filter: &DlqFilter,
        limit: u32,
        after: Option<DlqCursor>,
    ) -> Result<Part<DeadLetter<Unread>, DlqCursor>, Failure> {
        match self {
            Ledger::Database(store, _) => {
                let page = DlqPage { offset: 0, limit: limit.saturating_add(1), after };
                let found = store.dead_letters_in_short(filter.clone(), page).await?;
                Ok(Part::cut(found, limit, |dead| dead.cursor))
            }
            Ledger::Server(server) => server.dead_letters_in_short(filter, limit, after).await,
        }
    }

    /// What was given up of one event, with every attempt.
    pub(crate) async fn dead_letter(&self, id: EventId) -> Result<Vec<DeadLetter>, Failure> {
        match self {
            Ledger::Database(store, _) => Ok(store.dead_letter(id).await?),
            Ledger::Server(server) => server.dead_letter(id).await,
        }
    }

    /// The attempts at what was given up, which lists do not have.
    pub(crate) async fn with_attempts(&self, mut dead: DeadLetter) -> Result<DeadLetter, Failure> {
        // A server has told them with the payload.
        if let Ledger::Database(store, _) = self {
            dead.attempts = match store.event(dead.id).await {
                Ok(event) => event.attempts,
                // Sent back or deleted meanwhile: what the list says is still what was dead.
                Err(StoreError::NoSuchEvent { .. }) => Vec::new(),
                Err(error) => return Err(error.into()),
            };
            if let Some(by) = &dead.subscription {
                dead.attempts.retain(|attempt| attempt.subscription == by.as_str());
            }
        }
        Ok(dead)
    }

    /// Dead events by what killed them, the largest group first.
    pub(crate) async fn groups(&self, filter: &DlqFilter) -> Result<Vec<DlqGroup>, Failure> {
        match self {
            Ledger::Database(store, _) => Ok(store.dead_groups(filter.clone()).await?),
            Ledger::Server(server) => server.groups(filter).await,
        }
    }

    /// Sends one back, with another payload if there is one.
    pub(crate) async fn retry(&self, id: EventId, payload: Option<&RawValue>) -> Result<(), Failure> {
        match (self, payload) {
            (Ledger::Database(store, _), Some(payload)) => Ok(dlq(store).retry_edited(id, &payload).await?),
            (Ledger::Database(store, _), None) => Ok(dlq(store).retry(id).await?),
            (Ledger::Server(server), payload) => server.retry(id, payload).await,
        }
    }

    /// Sends back all that a filter matches, at most so many in a second; or only counts them.
    pub(crate) async fn retry_all(
        &self,
        filter: &DlqFilter,
        per_second: Option<u32>,
        dry_run: bool,
    ) -> Result<RetryReport, Failure> {
        match self {
            Ledger::Database(store, _) => {
                Ok(dlq(store).retry_all(filter.clone(), per_second, dry_run).await?)
            }
            Ledger::Server(server) => server.retry_all(filter, per_second, dry_run).await,
        }
    }

    /// Deletes dead events of at least this age, which were published at or before this instant.
    pub(crate) async fn purge(&self, age: Duration, until: Timestamp) -> Result<u64, Failure> {
        match self {
            Ledger::Database(store, _) => Ok(dlq(store).purge_until(until).await?),
            Ledger::Server(server) => server.purge(age).await,
        }
    }
}

fn dlq(store: &Arc<dyn Store>) -> DlqInspector {
    DlqInspector::new(Arc::clone(store), store.clock())
}

impl<T, C> Part<T, C> {
    /// Of what was found, which is one more if there is more.
    fn cut(mut items: Vec<T>, limit: u32, cursor: impl Fn(&T) -> C) -> Self {
        let is_more = items.len() > limit as usize;
        items.truncate(limit as usize);
        let next = items.last().filter(|_| is_more).map(cursor);
        Part { items, next }
    }
}
