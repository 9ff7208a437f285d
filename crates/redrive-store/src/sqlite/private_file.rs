//! Creates files that only their owner can read and write.
//!
//! Payloads and errors are as confidential as the data that they come from. Only new files get the mode 0600, so that a mode that an
//! administrator has set stays. SQLite gives its write-ahead log and its shared memory the mode of the database.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Returns options that create a file with the mode 0600.
pub(super) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Creates an empty file, which SQLite fills. Returns `None` if the file exists.
pub(super) fn create(path: &Path) -> io::Result<Option<File>> {
    match options().write(true).create_new(true).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}
