//! How a command can end badly, and which exit code that is: 1 failed, 2 asked for something that cannot be.

use std::io::{self, Write};
use std::process::ExitCode;

/// Why a command did not end well.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments do not make sense together. What is wrong, and what to do.
    Usage(String),
    /// The work failed. What went wrong, and what to do.
    Failed(String),
    /// Standard output cannot be written to.
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Output(error)
    }
}

impl From<serde_json::Error> for Failure {
    /// Everything that is printed can be serialised, so what fails is the writing.
    fn from(error: serde_json::Error) -> Self {
        Failure::Output(error.into())
    }
}

impl Failure {
    /// What went wrong.
    pub(crate) fn into_message(self) -> String {
        match self {
            Failure::Usage(message) | Failure::Failed(message) => message,
            Failure::Output(error) => error.to_string(),
        }
    }

    /// Says it, and gives the exit code.
    pub(crate) fn report(&self, stderr: &mut impl Write) -> ExitCode {
        // If standard error is closed as well, the exit code is all that is left to say it with.
        match self {
            Failure::Usage(message) => {
                let _ = writeln!(stderr, "error: {message}");
                ExitCode::from(2)
            }
            Failure::Failed(message) => {
                let _ = writeln!(stderr, "error: {message}");
                ExitCode::FAILURE
            }
            // Whoever reads has seen enough (`redrive … | head -1`): that is no failure.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Failure::Output(error) => {
                let _ = writeln!(
                    stderr,
                    "error: standard output cannot be written: {error}; check where it is redirected to"
                );
                ExitCode::FAILURE
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(failure: &Failure) -> (ExitCode, String) {
        let mut stderr = Vec::new();
        let code = failure.report(&mut stderr);
        (code, String::from_utf8(stderr).unwrap())
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure_but_a_full_disk_is() {
        let closed = Failure::Output(io::ErrorKind::BrokenPipe.into());
        assert_eq!(report(&closed), (ExitCode::SUCCESS, String::new()));
        let full = Failure::Output(io::ErrorKind::StorageFull.into());
        let (code, said) = report(&full);
        assert_eq!(code, ExitCode::FAILURE);
        assert!(said.starts_with("error: standard output cannot be written"), "{said}");
    }
}
