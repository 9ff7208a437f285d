//! Error of a server that cannot be started.

use std::path::PathBuf;

/// Reason why a server cannot be started, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// The program is not installed.
    #[error(
        "{program} is not installed. Install the package {package} (`make test` does that when it runs as root), or set {variable}"
    )]
    Program {
        /// The program.
        program: &'static str,
        /// Debian package of the program.
        package: &'static str,
        /// The environment variable that names the program's file.
        variable: &'static str,
    },
    /// The package manager failed.
    #[error("{package} could not be installed: {why}")]
    Package {
        /// The package.
        package: &'static str,
        /// The package manager's message.
        why: String,
    },
    /// The program does not start.
    #[error("{program} did not start; its log is {log}: {why}")]
    Start {
        /// The program.
        program: &'static str,
        /// The program's log, which is deleted with the server's folder.
        log: PathBuf,
        /// The program's message.
        why: String,
    },
}
