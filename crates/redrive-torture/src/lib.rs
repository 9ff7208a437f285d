//! Tries to make Redrive lose an event, and says whether it did.
//!
//! Every fault has a file of its own and the same result, a [`Report`](report::Report). One oracle judges all of them: a log
//! that the harness keeps for itself says what was acknowledged and handled, and the store must agree.

pub mod account;
pub mod all;
pub mod broker;
pub mod chaos;
pub mod crash_points;
pub mod dice;
pub mod full_disk;
pub mod io_errors;
pub mod journal;
pub mod judge;
pub mod kills;
pub mod model;
pub mod options;
pub mod oracle;
pub mod parallel;
pub mod plan;
pub mod planted;
pub mod power_loss;
pub mod process;
pub mod publisher;
pub mod report;
pub mod server;
pub mod soak;
pub mod stories;
pub mod strace;
pub mod subject;
pub mod table;
pub mod walk;
pub mod worker;
