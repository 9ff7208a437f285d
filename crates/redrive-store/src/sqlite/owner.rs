//! One process dispatches from one file: a lock beside it, with the name of who holds it.
//!
//! A file lock is let go by the system when its holder dies, however it dies. It is taken on a file of its own: opening
//! and closing the database file itself would drop SQLite's own locks.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::StoreError;

/// Held for as long as this process may dispatch.
#[derive(Debug)]
pub(super) struct OwnerLock {
    // Locked; unlocked when dropped.
    _file: File,
}

impl OwnerLock {
    pub(super) fn acquire(database: &Path) -> Result<Self, StoreError> {
        let path = lock_path(database);
        let failed = |source: std::io::Error| {
            let advice = "check its permissions, those of its folder, and the file system";
            let source = std::io::Error::new(source.kind(), format!("{source}; {advice}"));
            StoreError::File { path: path.clone(), source }
        };
        let mut file = OpenOptions::new()
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
        let program = Path::new(&program)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        file.set_len(0).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        write!(file, "process {} ({program})", std::process::id()).map_err(failed)?;
        Ok(OwnerLock { _file: file })
    }
}

/// The name of a file without links on the way; of a file that is not there yet, its folder's.
pub(super) fn real_path(path: &Path) -> PathBuf {
    let in_folder = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(in_folder).unwrap_or_else(|| path.to_owned())
}

/// Not at the first refusal: whoever only asks who the owner is holds it for an instant.
fn lock(file: &File) -> Result<(), TryLockError> {
    const TRIES: u32 = 5;
    for _ in 1..TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
    file.try_lock()
}

fn lock_path(database: &Path) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push("-owner");
    path.into()
}
