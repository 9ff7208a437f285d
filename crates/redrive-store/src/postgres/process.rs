//! Registration, heartbeat and departure of this process among those that share the database.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::database_time::TimeRequest;
use super::owned_claims::Oldest;
use super::process_state::DECLARED_DEAD;
use super::server_epoch::server_epoch;
use super::session::Session;
use super::value::millis;
use super::{Shared, leader, reconcile};
use crate::error::StoreError;

/// Commits synchronously, whatever the durability: a crashed server could give a forgotten key to another process.
const REGISTER: &str = concat!(
    "INSERT INTO redrive.process (boot, instance, pid, has_lock, started_at, beats_at, lease_ms, void_until,
                                  oldest_event, oldest_delivery)
     SELECT $1, $2, $3, false, redrive.now_ms(), redrive.now_ms(), $4, 0, e.last_value, d.last_value
     FROM redrive.event_key_seq e, redrive.delivery_key_seq d
     WHERE (SELECT set_config('synchronous_commit',
              CASE current_setting('synchronous_commit') WHEN 'off' THEN 'local'
                   ELSE current_setting('synchronous_commit') END, true)) IS NOT NULL
     RETURNING key, oldest_event, oldest_delivery, ",
    server_epoch!()
);

const HAS_LOCK: &str = "UPDATE redrive.process SET has_lock = true WHERE key = $1";

const BEAT: &str = concat!(
    "WITH beat AS (
       UPDATE redrive.process SET beats_at = redrive.now_ms() WHERE key = $1 AND void_until < $2 RETURNING key)
     SELECT EXISTS (SELECT 1 FROM beat), redrive.now_ms(), ",
    server_epoch!()
);

/// Raises the oldest keys, never lowers them: a claim of an older key does that itself. Skips a process that was declared
/// dead, because a takeover reads them, and does nothing after a crash of the server, which may have restored claims.
const RAISE: &str = concat!(
    "UPDATE redrive.process SET oldest_event = greatest(oldest_event, $2), oldest_delivery = greatest(oldest_delivery, $3)
     WHERE key = $1 AND void_until < $4 AND (oldest_event < $2 OR oldest_delivery < $3) AND $5 = ",
    server_epoch!()
);

const IS_REGISTERED: &str = "SELECT 1 FROM redrive.process WHERE key = $1 AND void_until < $2";

/// A process that was declared dead is deleted by its takeover.
const LEAVE: &str = "DELETE FROM redrive.process WHERE key = $1 AND void_until < $2";

/// Leaves the remaining claims to the next takeover.
const LEAVE_CLAIMS: &str = "UPDATE redrive.process SET beats_at = 0, void_until = $2 WHERE key = $1";

impl Shared {
    /// The key of this process, if it is registered.
    pub(super) fn registered_owner(&self) -> Option<i64> {
        Some(self.owner.load(Ordering::Acquire)).filter(|key| *key != 0)
    }

    /// The key of this process. Registers it if needed.
    pub(super) async fn owner(&self) -> Result<i64, StoreError> {
        if let Some(key) = self.registered_owner() {
            return Ok(key);
        }
        let _one_at_a_time = self.registering.lock().await;
        if let Some(key) = self.registered_owner() {
            return Ok(key);
        }
        let session = self.pool.get().await?;
        let (key, oldest) = session.transaction(self.register(&session)).await?;
        self.owned_claims.reset(oldest);
        self.owner.store(key, Ordering::Release);
        Ok(key)
    }

    /// Inserts this process, and takes its liveness lock before the commit shows `has_lock` to others.
    async fn register(&self, session: &Session) -> Result<(i64, Oldest), StoreError> {
        let lease = millis(self.options.lease);
        let pid = i64::from(std::process::id());
        let (boot, instance) = (&self.boot, &self.options.instance);
        let found = session.query_first(REGISTER, &[boot, instance, &pid, &lease]).await?;
        let row = found.ok_or(StoreError::Closed)?;
        let key: i64 = row.get(0);
        self.server_epoch.record(row.get(3)); // only a later crash can undo this registration
        if !self.options.poll_only {
            let held = self.listener.lock().await.keep(self, Some(key)).await;
            match held {
                Ok(()) => session.execute(HAS_LOCK, &[&key]).await?,
                Err(error) => {
                    tracing::warn!(target: "redrive::store", %error, "no liveness lock: if this process dies, its claims wait until the lease expires");
                }
            }
        }
        Ok((key, Oldest { event: row.get(1), delivery: row.get(2) }))
    }

    /// Whether this process is registered and was not declared dead.
    pub(super) async fn is_registered(&self, session: &Session, owner: i64) -> Result<bool, StoreError> {
        Ok(session.query_first(IS_REGISTERED, &[&owner, &DECLARED_DEAD]).await?.is_some())
    }

    /// Forgets the key after this process was declared dead, so that its next use registers a new one. The old key is fenced off.
    pub(super) fn rejoin(&self, owner: i64) {
        if self.owner.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            tracing::warn!(
                target: "redrive::store", owner,
                "the lease of this process expired and its claims were taken over; it registers again"
            );
        }
    }

    /// The interval between heartbeats.
    pub(super) fn heartbeat_interval(&self) -> Duration {
        self.options.lease / 3
    }

    /// Renews the lease. Then reconciles the claims if a connection was lost, or else raises the oldest keys.
    pub(super) async fn heartbeat(&self) -> Result<(), StoreError> {
        let owner = self.owner().await?;
        if !self.send_heartbeat(owner).await? {
            self.rejoin(owner);
            self.owner().await?;
            return Ok(());
        }
        // Before the oldest keys are raised: the database may have claims that this process does not know.
        let has_lost = self.connector.has_lost.swap(false, Ordering::AcqRel);
        if has_lost || self.owned_claims.has_lost_answers() {
            let found = self.reconcile_under_heartbeat(owner).await;
            if found.is_err() {
                self.connector.has_lost.store(true, Ordering::Release);
            }
            return found;
        }
        // Only between claims: a claim in flight may get a key that is older than all others.
        if let Ok(_no_claims) = self.claim_session.try_lock() {
            let (oldest, server_epoch) = (self.owned_claims.oldest(), self.server_epoch.last());
            let mut heartbeat_session = self.heartbeat_session.lock().await;
            let session = self.usable_heartbeat_session(&mut heartbeat_session).await?;
            session
                .query(RAISE, &[&owner, &oldest.event, &oldest.delivery, &DECLARED_DEAD, &server_epoch])
                .await?;
        }
        Ok(())
    }

    /// Renews the lease, and measures the database's time. Returns `false` if this process was declared dead.
    async fn send_heartbeat(&self, owner: i64) -> Result<bool, StoreError> {
        let mut heartbeat_session = self.heartbeat_session.lock().await;
        let session = self.usable_heartbeat_session(&mut heartbeat_session).await?;
        let request = TimeRequest::begin();
        let found = session.query_first(BEAT, &[&owner, &DECLARED_DEAD]).await?;
        let Some(row) = found else { return Ok(false) };
        self.time.set(request.answered(row.get(1)));
        if self.server_epoch.record(row.get(2)) {
            self.connector.has_lost.store(true, Ordering::Release);
        }
        Ok(row.get(0))
    }

    /// Reconciles the claims, and sends heartbeats meanwhile.
    async fn reconcile_under_heartbeat(&self, owner: i64) -> Result<(), StoreError> {
        let reconciliation = async {
            let session = self.pool.get().await?;
            reconcile::reconcile(self, &session).await
        };
        tokio::pin!(reconciliation);
        loop {
            tokio::select! {
                found = &mut reconciliation => return found,
                () = tokio::time::sleep(self.heartbeat_interval()) => {
                    if let Err(error) = self.send_heartbeat(owner).await {
                        tracing::warn!(target: "redrive::store", %error, "a heartbeat failed during reconciliation");
                    }
                }
            }
        }
    }

    /// Unregisters this process and resigns as the leader. Other processes can take over remaining claims at once.
    pub(super) async fn leave(&self) -> Result<(), StoreError> {
        let (owner, has_been_candidate) =
            (self.registered_owner(), self.leader_tasks.has_been_candidate.load(Ordering::Acquire));
        if owner.is_none() && !has_been_candidate {
            return Ok(());
        }
        let mut heartbeat_session = self.heartbeat_session.lock().await;
        let session = self.usable_heartbeat_session(&mut heartbeat_session).await?;
        if has_been_candidate {
            session.execute(leader::RESIGN, &[&self.boot]).await?;
        }
        let Some(owner) = owner else { return Ok(()) };
        // Also without a lost connection: the server may have crashed a moment ago.
        reconcile::reconcile(self, session).await?;
        let statement = if self.owned_claims.is_empty() { LEAVE } else { LEAVE_CLAIMS };
        session.execute(statement, &[&owner, &DECLARED_DEAD]).await
    }
}
