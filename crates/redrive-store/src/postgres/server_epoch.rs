//! Detects a crash of the server by its epoch: the start time of the server and of its statistics.
//!
//! A crash can undo the last settlements, so their process must reconcile its claims. Lost connections show a crash as well,
//! but not behind a pooler, which keeps its clients connected while the server behind it restarts.

use std::sync::Mutex;

use super::lock;

/// The server's start time, and the time of its last statistics reset: the server resets its statistics after every crash, even if only
/// one backend crashed and the postmaster did not restart. A manual reset costs one needless reconciliation.
macro_rules! server_epoch {
    () => {
        "concat((extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, ' ',
                (extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) * 1000000)::bigint)"
    };
}
pub(super) use server_epoch;

/// The last epoch that the server reported. A std mutex: held for a comparison.
#[derive(Debug, Default)]
pub(super) struct ServerEpoch(Mutex<Option<String>>);

impl ServerEpoch {
    /// The last epoch; empty if none was reported yet.
    pub(super) fn last(&self) -> String {
        lock(&self.0).clone().unwrap_or_default()
    }

    /// Stores the epoch. Returns whether it differs from a previous one.
    pub(super) fn record(&self, epoch: &str) -> bool {
        let mut last = lock(&self.0);
        if last.as_deref() == Some(epoch) {
            return false;
        }
        last.replace(epoch.to_owned()).is_some()
    }
}
