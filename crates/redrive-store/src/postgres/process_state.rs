//! State of a process in its row: declared dead, or with an expired lease.

/// Value of `void_until` for a process that was declared dead: its claims are void, whatever their token.
pub(super) const DECLARED_DEAD: i64 = i64::MAX;

/// Whether a lease has expired: the last heartbeat is older than the lease, or as far in the future. In that case the clock
/// was set back, and a living process has sent another heartbeat since.
macro_rules! lease_expired {
    () => {
        "NOT (beats_at > redrive.now_ms() - lease_ms AND beats_at <= redrive.now_ms() + lease_ms)"
    };
}
pub(super) use lease_expired;
