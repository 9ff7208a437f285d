//! Raises the limit of open files, and so of connections, of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files that a server with the default limits needs.
const MIN_OPEN_FILES: u64 = 8192;

/// Raises the soft limit to the hard limit; the default of most systems is meant for programs that use `select`.
pub(super) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { maximum } else { current };
    // `None` means unlimited.
    if let Some(current) = current.filter(|current| *current < MIN_OPEN_FILES) {
        tracing::warn!(target: "redrive::serve", current, "the limit of open files is low: raise it (LimitNOFILE, ulimit -Hn) to {MIN_OPEN_FILES} or more");
    }
}
