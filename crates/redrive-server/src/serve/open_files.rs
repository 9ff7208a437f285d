//! How many files, and so connections, this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Less than this is too little for a server with its usual limits.
const ENOUGH: u64 = 8192;

/// Takes as many as it may have: what most systems give at first is meant for programs that use `select`.
pub(super) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { maximum } else { current };
    // Without a limit there is no number.
    if let Some(current) = current.filter(|current| *current < ENOUGH) {
        tracing::warn!(target: "redrive::serve", current, "few files may be open at once: raise the limit (LimitNOFILE, ulimit -Hn) to {ENOUGH} or more");
    }
}
