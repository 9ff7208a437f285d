//! The owner lock: one process dispatches from one file.
//!
//! The lock file beside the database names its owner. The operating system releases a file lock when its process dies. It is a file of its
//! own because opening and closing the database file would drop SQLite's own locks.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::private_file;
use crate::error::StoreError;

/// The lock of the process that dispatches; released on drop.
#[derive(Debug)]
pub(super) struct OwnerLock {
    _file: File,
}

impl OwnerLock {
    pub(super) fn acquire(database: &Path) -> Result<Self, StoreError> {
        let path = with_suffix(database, "-owner");
        let failed = |source: std::io::Error| {
            if source.kind() == std::io::ErrorKind::StorageFull {
                return StoreError::DiskFull;
            }
            let advice = "check its permissions, those of its folder, and the file system";
            let source = std::io::Error::new(source.kind(), format!("{source}; {advice}"));
            StoreError::File { path: path.clone(), source }
        };
        let mut file = private_file::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        match lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                let _ = file.take(256).read_to_string(&mut owner); // only for the message
                let owner =
                    if owner.trim().is_empty() { "another process".into() } else { owner.trim().into() };
                return Err(StoreError::InUse { path: database.into(), owner });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let program = std::env::args().next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
        file.set_len(0).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        write!(file, "process {} ({program})", std::process::id()).map_err(failed)?;
        Ok(OwnerLock { _file: file })
    }
}

/// Returns the canonical path of a file; for a missing file, that of its folder joined with its name.
pub(super) fn real_path(path: &Path) -> PathBuf {
    let in_folder = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(in_folder).unwrap_or_else(|| path.to_owned())
}

/// Locks the file, with retries: a process that only asks for the owner holds the lock for an instant.
fn lock(file: &File) -> Result<(), TryLockError> {
    const MAX_ATTEMPTS: u32 = 5;
    for _ in 1..MAX_ATTEMPTS {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
    file.try_lock()
}

/// Returns the path of a file beside another, whose name continues that of the other.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
