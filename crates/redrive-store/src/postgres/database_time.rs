//! The database's time in this process: measured at opening and at every heartbeat, and carried on by steady time in between. The
//! machine's own wall clock may be set at any time and changes nothing.
//!
//! Steady time stands still while a machine is suspended. So the time is measured at once when the wall clock and steady time have
//! moved apart.

use std::sync::Arc;
use std::time::Instant;

use redrive_retry::internal::WallWatch;
use redrive_retry::{Clock, Timestamp};

use super::Shared;
use super::session::Session;
use crate::error::StoreError;

/// The time is measured again when the wall clock has moved by more than this against it.
const MAX_DRIFT_MS: i64 = 1000;

const NOW: &str = "SELECT redrive.now_ms()";

/// A request for the database's time.
pub(super) struct TimeRequest(Instant);

impl TimeRequest {
    pub(super) fn begin() -> Self {
        TimeRequest(Instant::now())
    }

    /// The database's time now. Assumes that it was read halfway between request and answer.
    pub(super) fn answered(&self, millis: i64) -> Timestamp {
        Timestamp::from_millis(millis) + self.0.elapsed() / 2
    }
}

/// Reads the database's time.
pub(super) async fn measure(session: &Session) -> Result<Timestamp, StoreError> {
    let request = TimeRequest::begin();
    let found = session.query_first(NOW, &[]).await?.ok_or(StoreError::Closed)?;
    Ok(request.answered(found.get(0)))
}

/// Makes the clock of a store: the database's time, carried on by the steady time of `clock`. Virtual time does not pass on the server.
pub(super) async fn clock(session: &Session, clock: &Clock) -> Result<Clock, StoreError> {
    let time = if clock.is_virtual() { Clock::system().anchored() } else { clock.anchored() };
    time.set(measure(session).await?);
    Ok(time)
}

/// Measures the time again whenever the wall clock has moved against it, until the task is aborted.
pub(super) async fn run(shared: Arc<Shared>) {
    let (mut watch, mut ahead) = (WallWatch::new(&shared.time), shared.time.wall_ahead_ms());
    loop {
        watch.next_check().await;
        let moved = shared.time.wall_ahead_ms() - ahead;
        if moved.abs() <= MAX_DRIFT_MS {
            continue;
        }
        let measured = async { measure(&*shared.pool.get().await?).await };
        match measured.await {
            Ok(now) => {
                let corrected_ms = shared.time.set(now);
                ahead = shared.time.wall_ahead_ms();
                tracing::warn!(target: "redrive::store", moved_ms = moved, corrected_ms, "the machine's clock was set: due times follow the database's clock");
                shared.note_due_now();
            }
            Err(error) => {
                tracing::warn!(target: "redrive::store", %error, "the database's time could not be read");
            }
        }
    }
}

/// Difference by which the database's clock is ahead of this machine's, in milliseconds.
pub(super) async fn ahead_of_machine_ms(session: &Session) -> Result<i64, StoreError> {
    Ok(measure(session).await?.as_millis() - Clock::system().now().as_millis())
}
