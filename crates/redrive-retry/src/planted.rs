//! Bugs that the fault harness plants, to see whether it would find them.
//!
//! Without the feature `mutants` every question here is answered `false` by the compiler, and nothing of it is left. With it,
//! which only the harness's own build has, the variable `REDRIVE_PLANTED` names the one bug that is in this process.

/// A bug that the harness must find.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Publishers are answered before the commit.
    AcknowledgeBeforeCommit,
    /// The log is not synced although the store says so.
    NormalForFull,
    /// The event is given up in one transaction, and enters the dead-letter queue in the next.
    DeadLetterInTwoTransactions,
    /// What waited for a retry when the process ended never becomes due again.
    RecoverySkipsWaiting,
    /// Whoever lost its claim settles it all the same.
    SettleWithoutFence,
    /// The same where several processes share a server.
    SettleWithoutFenceOnServer,
    /// What an open circuit holds back is forgotten.
    ParkedDropped,
    /// A probe that failed keeps the circuit's only place for ever.
    HalfOpenSlotLeaked,
    /// The purge takes one millisecond too much.
    PurgeOffByOne,
    /// A store whose sync has failed goes on.
    FailedSyncIgnored,
}

impl Planted {
    /// All of them.
    pub const ALL: [Planted; 10] = [
        Planted::AcknowledgeBeforeCommit,
        Planted::NormalForFull,
        Planted::DeadLetterInTwoTransactions,
        Planted::RecoverySkipsWaiting,
        Planted::SettleWithoutFence,
        Planted::SettleWithoutFenceOnServer,
        Planted::ParkedDropped,
        Planted::HalfOpenSlotLeaked,
        Planted::PurgeOffByOne,
        Planted::FailedSyncIgnored,
    ];

    /// The variable that names the bug.
    pub const VARIABLE: &str = "REDRIVE_PLANTED";

    /// How the variable and the harness call it.
    pub const fn name(self) -> &'static str {
        match self {
            Planted::AcknowledgeBeforeCommit => "acknowledge-before-commit",
            Planted::NormalForFull => "normal-for-full",
            Planted::DeadLetterInTwoTransactions => "dead-letter-in-two-transactions",
            Planted::RecoverySkipsWaiting => "recovery-skips-waiting",
            Planted::SettleWithoutFence => "settle-without-fence",
            Planted::SettleWithoutFenceOnServer => "settle-without-fence-on-server",
            Planted::ParkedDropped => "parked-dropped",
            Planted::HalfOpenSlotLeaked => "half-open-slot-leaked",
            Planted::PurgeOffByOne => "purge-off-by-one",
            Planted::FailedSyncIgnored => "failed-sync-ignored",
        }
    }

    /// Whether the bug is in this process.
    #[cfg(feature = "mutants")]
    pub fn is_here(self) -> bool {
        static HERE: std::sync::LazyLock<Option<Planted>> = std::sync::LazyLock::new(|| {
            let name = std::env::var(Planted::VARIABLE).ok()?;
            let planted = Planted::ALL.into_iter().find(|planted| planted.name() == name);
            Some(planted.unwrap_or_else(|| panic!("{}: there is no bug {name}", Planted::VARIABLE)))
        });
        *HERE == Some(self)
    }

    /// Whether the bug is in this process: never, in anything but the harness.
    #[cfg(not(feature = "mutants"))]
    #[inline(always)]
    pub const fn is_here(self) -> bool {
        false
    }
}
