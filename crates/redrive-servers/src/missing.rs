//! Why there is no server.

use std::path::PathBuf;

/// What is missing, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// It is not on this machine.
    #[error(
        "{program} is not here. Install the package {package} (`make test` does that when it runs as root), or set {variable}"
    )]
    Program {
        /// What was looked for.
        program: &'static str,
        /// Where it comes from on Debian.
        package: &'static str,
        /// What to set to use another one.
        variable: &'static str,
    },
    /// The package manager said no.
    #[error("{package} could not be installed: {why}")]
    Package {
        /// Which package.
        package: &'static str,
        /// What it said.
        why: String,
    },
    /// It is there and does not start.
    #[error("{program} did not start; its log is {log}: {why}")]
    Start {
        /// Which.
        program: &'static str,
        /// Its log; deleted with the folder unless that is kept.
        log: PathBuf,
        /// What it said.
        why: String,
    },
}
