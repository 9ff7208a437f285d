//! What processes elsewhere have subscribed to, and this one has not: while a new release is rolled out, or where programs share
//! a database.
//!
//! It is asked for when it is needed, and the answer holds for a moment. Whoever has subscribed to something new waits for that
//! moment before it goes on: from then on nobody decides by an older answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::session::Session;
use super::{Shared, failure, rows};
use crate::error::StoreError;
use crate::event::SubscriptionName;
use crate::query::{SubscribedElsewhere, SubscriptionRow};

/// How long an answer holds.
const HOLDS_FOR: Duration = Duration::from_millis(500);

/// What was told by processes that have been gone for a week is forgotten by the way.
const TELL: &str = "
    WITH gone AS (
      DELETE FROM redrive.subscriber s WHERE at < redrive.now_ms() - 604800000
      AND NOT EXISTS (SELECT 1 FROM redrive.process p WHERE p.boot = s.boot) AND s.boot <> $1)
    INSERT INTO redrive.subscriber (boot, name, event_type, at) VALUES ($1, $2, $3, redrive.now_ms())
    ON CONFLICT (boot, name) DO UPDATE SET event_type = excluded.event_type, at = excluded.at";

const TAKE_BACK: &str = "DELETE FROM redrive.subscriber WHERE boot = $1 AND name = $2";

/// With the same name and another pattern it is ours, and wants something else.
const ASK: &str = "
    SELECT DISTINCT s.name, s.event_type, EXISTS (SELECT 1 FROM redrive.subscriber o WHERE o.boot = $1 AND o.name = s.name)
    FROM redrive.subscriber s JOIN redrive.process p ON p.boot = s.boot
    WHERE s.boot <> $1 AND NOT EXISTS (
      SELECT 1 FROM redrive.subscriber o WHERE o.boot = $1 AND o.name = s.name AND o.event_type = s.event_type)";

const IS_NEWS: &str = "
    SELECT EXISTS (
      SELECT 1 FROM redrive.process p JOIN redrive.subscriber o ON o.boot = $1
      WHERE p.boot <> $1 AND NOT EXISTS (
        SELECT 1 FROM redrive.subscriber s WHERE s.boot = p.boot AND s.name = o.name AND s.event_type = o.event_type))";

/// The last answer. Std mutexes are held for a comparison, the other one while it is asked.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    known: Mutex<Option<Known>>,
    asking: tokio::sync::Mutex<()>,
}

#[derive(Clone, Debug)]
pub(super) struct Known {
    /// It was asked then: the answer is not older.
    asked: Instant,
    pub(super) subscribed: Arc<[SubscribedElsewhere]>,
    /// The names of those that this process does not have at all: what they are owed is left to who has them.
    pub(super) left_to_others: Arc<[String]>,
}

impl Elsewhere {
    fn fresh(&self) -> Option<Known> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().filter(|known| known.asked.elapsed() < HOLDS_FOR).cloned()
    }
}

/// As it stands, or stood a moment ago.
pub(super) async fn look(shared: &Shared) -> Result<Known, StoreError> {
    let elsewhere = &shared.elsewhere;
    if let Some(known) = elsewhere.fresh() {
        return Ok(known);
    }
    let _one_at_a_time = elsewhere.asking.lock().await;
    if let Some(known) = elsewhere.fresh() {
        return Ok(known);
    }
    let session = shared.pool.get().await?;
    let asked = Instant::now();
    let found = session.query(ASK, &[&shared.boot]).await.map_err(failure::explain)?;
    let subscribed = found
        .iter()
        .map(|row| SubscribedElsewhere { name: rows::subscription(row, 0), event_type: row.get(1) })
        .collect();
    let left_to_others =
        found.iter().filter(|row| !row.get::<_, bool>(2)).map(|row| row.get::<_, String>(0)).collect();
    let known = Known { asked, subscribed, left_to_others };
    *elsewhere.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known.clone());
    Ok(known)
}

pub(super) async fn tell(
    session: &Session,
    boot: Uuid,
    subscription: &SubscriptionRow,
) -> Result<(), StoreError> {
    let values: [&dyn super::value::Value; 3] =
        [&boot, &subscription.name.as_str(), &subscription.event_type];
    session.query(TELL, &values).await.map(drop).map_err(failure::explain)
}

pub(super) async fn take_back(
    session: &Session,
    boot: Uuid,
    name: &SubscriptionName,
) -> Result<(), StoreError> {
    session.query(TAKE_BACK, &[&boot, &name.as_str()]).await.map(drop).map_err(failure::explain)
}

/// Resolves when nobody goes by an answer from before our subscriptions were told.
pub(super) async fn all_have_heard(shared: &Shared) -> Result<(), StoreError> {
    let session = shared.pool.get().await?;
    let found = session.query(IS_NEWS, &[&shared.boot]).await.map_err(failure::explain)?;
    drop(session);
    if found.first().is_some_and(|row| row.get(0)) {
        tokio::time::sleep(HOLDS_FOR).await;
    }
    Ok(())
}
