//! Errors of commands and their exit codes: 1 for a failure, 2 for wrong usage.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::terminal_text::one_line;

/// Error that ends a command.
#[derive(Debug)]
pub enum Failure {
    /// Contradictory or invalid arguments, with the remedy.
    Usage(String),
    /// Failed work, with the remedy.
    Failed(String),
    /// The database is away or its disk is full: it may work later. With the remedy.
    Unavailable(String),
    /// Standard output is not writable.
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Output(error)
    }
}

impl From<serde_json::Error> for Failure {
    /// Every report serialises, so the error comes from the writer.
    fn from(error: serde_json::Error) -> Self {
        Failure::Output(error.into())
    }
}

impl From<redrive_api::client::Error> for Failure {
    fn from(error: redrive_api::client::Error) -> Self {
        let said = one_line(&error.to_string());
        match error.problem().map(|problem| problem.status) {
            Some(400) => Failure::Usage(said),
            Some(401) => Failure::Failed(format!(
                "the server wants a token: give one with --token or in REDRIVE_TOKEN ({said})"
            )),
            _ => Failure::Failed(said),
        }
    }
}

impl Failure {
    /// Failed work, with the text of its error.
    pub(crate) fn failed(error: impl std::fmt::Display) -> Self {
        Failure::Failed(error.to_string())
    }

    /// Text of the error.
    pub fn into_message(self) -> String {
        match self {
            Failure::Usage(message) | Failure::Failed(message) | Failure::Unavailable(message) => message,
            Failure::Output(error) => error.to_string(),
        }
    }

    /// Prints the error and returns its exit code.
    pub fn report(&self, stderr: &mut impl Write) -> ExitCode {
        let (code, message) = match self {
            // A closed pipe (`redrive … | head -1`) is no failure.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Failure::Output(error) => {
                let say = format!("cannot write to standard output: {error}; check its redirection");
                (ExitCode::FAILURE, say)
            }
            Failure::Failed(message) | Failure::Unavailable(message) => (ExitCode::FAILURE, message.clone()),
            Failure::Usage(message) => (ExitCode::from(2), message.clone()),
        };
        // If standard error is closed too, the exit code alone reports the failure.
        let _ = writeln!(stderr, "error: {message}");
        code
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
    fn a_closed_pipe_is_no_failure_but_a_full_disk_is() {
        let closed = Failure::Output(io::ErrorKind::BrokenPipe.into());
        assert_eq!(report(&closed), (ExitCode::SUCCESS, String::new()));
        let full = Failure::Output(io::ErrorKind::StorageFull.into());
        let (code, said) = report(&full);
        assert_eq!(code, ExitCode::FAILURE);
        assert!(said.starts_with("error: cannot write to standard output"), "{said}");
    }
}
