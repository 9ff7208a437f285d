//! This process among those that share the database: how it makes itself known, says that it lives, and leaves.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use redrive_retry::Timestamp;

use super::era::era;
use super::holdings::Oldest;
use super::session::Session;
use super::{Shared, failure, leader, reconcile};
use crate::error::StoreError;

/// In the column `void_until` it says that the process was declared dead: no claim of it is valid any more, whatever its token.
pub(super) const DEAD: i64 = i64::MAX;

/// Whether the sign of life is too old, or later than now by as much: then the clock was set back, and who lives has said so
/// since.
macro_rules! has_run_out {
    () => {
        "NOT (beats_at > redrive.now_ms() - lease_ms AND beats_at <= redrive.now_ms() + lease_ms)"
    };
}
pub(super) use has_run_out;

/// On disk before anybody goes by it, whatever the durability: a key that a crashed server has forgotten is given to another.
const REGISTER: &str = concat!(
    "INSERT INTO redrive.process (boot, instance, pid, has_lock, started_at, beats_at, lease_ms, void_until,
                                  oldest_event, oldest_delivery)
     SELECT $1, $2, $3, false, redrive.now_ms(), redrive.now_ms(), $4, 0, e.last_value, d.last_value
     FROM redrive.event_key_seq e, redrive.delivery_key_seq d
     WHERE (SELECT set_config('synchronous_commit',
              CASE current_setting('synchronous_commit') WHEN 'off' THEN 'local'
                   ELSE current_setting('synchronous_commit') END, true)) IS NOT NULL
     RETURNING key, oldest_event, oldest_delivery, ",
    era!()
);

const HAS_LOCK: &str = "UPDATE redrive.process SET has_lock = true WHERE key = $1";

const BEAT: &str = concat!(
    "WITH beat AS (
       UPDATE redrive.process SET beats_at = redrive.now_ms() WHERE key = $1 AND void_until < $2 RETURNING key)
     SELECT EXISTS (SELECT 1 FROM beat), redrive.now_ms(), ",
    era!()
);

/// Only upwards: whoever claims something older says so itself. Not of the dead: their heirs go by it. And not if the server has
/// crashed a moment ago: then we may hold more than we know.
const RAISE: &str = concat!(
    "UPDATE redrive.process SET oldest_event = greatest(oldest_event, $2), oldest_delivery = greatest(oldest_delivery, $3)
     WHERE key = $1 AND void_until < $4 AND (oldest_event < $2 OR oldest_delivery < $3) AND $5 = ",
    era!()
);

const IS_KNOWN: &str = "SELECT 1 FROM redrive.process WHERE key = $1 AND void_until < $2";

/// Whoever was declared dead is buried by its heir.
const LEAVE: &str = "DELETE FROM redrive.process WHERE key = $1 AND void_until < $2";

/// What it held can be taken by anybody from now on.
const GIVE_UP: &str = "UPDATE redrive.process SET beats_at = 0, void_until = $2 WHERE key = $1";

impl Shared {
    /// Under which key this process is known, if it is.
    pub(super) fn known_owner(&self) -> Option<i64> {
        Some(self.owner.load(Ordering::Acquire)).filter(|key| *key != 0)
    }

    /// Under which key this process is known. Made known if it is not yet.
    pub(super) async fn owner(&self) -> Result<i64, StoreError> {
        if let Some(key) = self.known_owner() {
            return Ok(key);
        }
        let _one_at_a_time = self.registering.lock().await;
        if let Some(key) = self.known_owner() {
            return Ok(key);
        }
        let session = self.pool.get().await?;
        session.begin().await.map_err(failure::explain)?;
        let registered = match self.register(&session).await {
            Ok(registered) => registered,
            Err(error) => {
                session.roll_back().await;
                return Err(error);
            }
        };
        session.commit().await.map_err(failure::explain)?;
        let (key, oldest) = registered;
        self.holdings.begin_anew(oldest);
        self.owner.store(key, Ordering::Release);
        Ok(key)
    }

    /// The lock is held before anybody can see that there should be one.
    async fn register(&self, session: &Session) -> Result<(i64, Oldest), StoreError> {
        let lease = millis(self.options.lease);
        let pid = i64::from(std::process::id());
        let found = session
            .query(REGISTER, &[&self.boot, &self.options.instance.as_str(), &pid, &lease])
            .await
            .map_err(failure::explain)?;
        let row = found.first().ok_or(StoreError::Closed)?;
        let key: i64 = row.get(0);
        self.era.is_new(row.get(3)); // whatever crashed before has taken nothing of this life
        if !self.options.poll_only {
            match self.watch.hold(self, key).await {
                Ok(()) => drop(session.query(HAS_LOCK, &[&key]).await.map_err(failure::explain)?),
                Err(error) => {
                    tracing::warn!(target: "redrive::store", %error, "if this process dies, its lease must run out");
                }
            }
        }
        Ok((key, Oldest { event: row.get(1), delivery: row.get(2) }))
    }

    /// Whether nobody has declared this process dead.
    pub(super) async fn is_known(&self, session: &Session, owner: i64) -> Result<bool, StoreError> {
        let found = session.query(IS_KNOWN, &[&owner, &DEAD]).await.map_err(failure::explain)?;
        Ok(!found.is_empty())
    }

    /// This process was declared dead: what it held is somebody else's, and it begins a new life under another key. What it
    /// still does under the old one changes nothing.
    pub(super) fn begin_anew(&self, owner: i64) {
        if self.owner.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            tracing::warn!(
                target: "redrive::store", owner,
                "this process was silent for longer than its lease, so others have taken its work over; it begins anew"
            );
        }
    }

    /// How often a process says that it lives.
    pub(super) fn beat_every(&self) -> Duration {
        self.options.lease / 3
    }

    /// Says that this process lives, and looks after what it holds.
    pub(super) async fn beat(&self) -> Result<(), StoreError> {
        let owner = self.owner().await?;
        if !self.say_that_it_lives(owner).await? {
            self.begin_anew(owner);
            self.owner().await?;
            return Ok(());
        }
        // Before anything is said of what we hold: it may be more than we know.
        let has_lost = self.connector.has_lost.swap(false, Ordering::AcqRel);
        if has_lost || self.holdings.has_lost() {
            let found = self.look_what_is_ours(owner).await;
            if found.is_err() {
                self.connector.has_lost.store(true, Ordering::Release);
            }
            return found;
        }
        // While nobody claims: what is being claimed at the moment may be older than all that is held.
        if let Ok(_nobody_claims) = self.claimer.try_lock() {
            let (oldest, era) = (self.holdings.oldest(), self.era.last());
            let mut keeper = self.keeper.lock().await;
            let session = self.keeper_session(&mut keeper).await?;
            session
                .query(RAISE, &[&owner, &oldest.event, &oldest.delivery, &DEAD, &era])
                .await
                .map_err(failure::explain)?;
        }
        Ok(())
    }

    /// `false` if it was declared dead.
    async fn say_that_it_lives(&self, owner: i64) -> Result<bool, StoreError> {
        let mut keeper = self.keeper.lock().await;
        let session = self.keeper_session(&mut keeper).await?;
        let asked = Asked::now();
        let found = session.query(BEAT, &[&owner, &DEAD]).await.map_err(failure::explain)?;
        let Some(row) = found.first() else { return Ok(false) };
        self.ahead_by.store(asked.ahead_by(row.get(1)), Ordering::Release);
        if self.era.is_new(row.get(2)) {
            self.connector.has_lost.store(true, Ordering::Release);
        }
        Ok(row.get(0))
    }

    /// However long it takes, this process says meanwhile that it lives.
    async fn look_what_is_ours(&self, owner: i64) -> Result<(), StoreError> {
        let look = async {
            let session = self.pool.get().await?;
            reconcile::reconcile(self, &session).await
        };
        tokio::pin!(look);
        loop {
            tokio::select! {
                found = &mut look => return found,
                () = tokio::time::sleep(self.beat_every()) => {
                    if let Err(error) = self.say_that_it_lives(owner).await {
                        tracing::warn!(target: "redrive::store", %error, "nobody was told that this process lives");
                    }
                }
            }
        }
    }

    /// Leaves. What is still held can be taken over at once, and so can what this process did for all.
    pub(super) async fn leave(&self) -> Result<(), StoreError> {
        let (owner, has_stood) = (self.known_owner(), self.upkeep.has_stood());
        if owner.is_none() && !has_stood {
            return Ok(());
        }
        let mut keeper = self.keeper.lock().await;
        let session = self.keeper_session(&mut keeper).await?;
        if has_stood {
            leader::resign(self, session).await?;
        }
        let Some(owner) = owner else { return Ok(()) };
        // Also if no connection was lost, as far as we know: the server may have crashed a moment ago.
        reconcile::reconcile(self, session).await?;
        let statement = if self.holdings.is_empty() { LEAVE } else { GIVE_UP };
        session.query(statement, &[&owner, &DEAD]).await.map(drop).map_err(failure::explain)
    }
}

/// How far the database's clock is ahead of the machine's, in milliseconds.
pub(super) async fn ahead_by(session: &Session) -> Result<i64, StoreError> {
    let asked = Asked::now();
    let found = session.query("SELECT redrive.now_ms()", &[]).await.map_err(failure::explain)?;
    Ok(found.first().map_or(0, |row| asked.ahead_by(row.get(0))))
}

/// When the database was asked for the time.
struct Asked {
    at: Timestamp,
    began: Instant,
}

impl Asked {
    fn now() -> Self {
        Asked { at: SystemTime::now().into(), began: Instant::now() }
    }

    /// Its clock was read somewhere between asking and being answered.
    fn ahead_by(&self, answer: i64) -> i64 {
        let half = i64::try_from(self.began.elapsed().as_millis() / 2).unwrap_or(0);
        answer - (self.at.as_millis() + half)
    }
}

/// So long that it is for ever, if need be, and so short that it can be added to the time.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).min(i64::MAX / 4)
}
