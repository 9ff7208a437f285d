//! Limit of open files of this process, which bounds its connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files that a server with the default limits needs.
const MIN_OPEN_FILES: u64 = 8192;

/// Raises the soft limit to the hard limit; the default of most systems is meant for programs that use `select`.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { maximum } else { current };
    // `None` means unlimited.
    if let Some(current) = current.filter(|current| *current < MIN_OPEN_FILES) {
        tracing::warn!(target: "redrive::serve", current, "the limit of open files is low: raise it (LimitNOFILE, ulimit -Hn) to {MIN_OPEN_FILES} or more");
    }
}

/// Lowers a number of connections to half of the open files: the database, endpoints and brokers need the other half.
pub(crate) fn clamp_connections(wanted: u32) -> u32 {
    let Some(files) = getrlimit(Resource::Nofile).current else { return wanted };
    let allowed = u32::try_from(files / 2).unwrap_or(u32::MAX).max(1);
    if allowed < wanted {
        tracing::warn!(
            target: "redrive::serve", wanted, allowed,
            "fewer connections are served than --max-connections allows, because the limit of open files is {files}"
        );
    }
    wanted.min(allowed)
}
