//! Whether the server has crashed since it was last asked, as it says itself.
//!
//! A crash can take the last settlements with it, and whoever made them must look. Connections that were lost say so as well, but
//! not behind a pooler: there they stay open while the server behind it crashes and comes back.

use std::sync::{Mutex, PoisonError};

/// When the server was started, and since when it counts: it begins anew after every crash, also after one of a single process
/// of it, over which it is not started again. If somebody lets it begin anew by hand, one look is made in vain.
macro_rules! era {
    () => {
        "concat((extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, ' ',
                (extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) * 1000000)::bigint)"
    };
}
pub(super) use era;

/// The one that was last heard of. A std mutex: held for a comparison.
#[derive(Debug, Default)]
pub(super) struct Era(Mutex<Option<String>>);

impl Era {
    /// Empty if none was ever heard of.
    pub(super) fn last(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    /// Whether it is another one than the last time.
    pub(super) fn is_new(&self, era: &str) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_deref() == Some(era) {
            return false;
        }
        last.replace(era.to_owned()).is_some()
    }
}
