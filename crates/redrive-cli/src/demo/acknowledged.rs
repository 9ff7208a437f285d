//! Oracle of the demo: records the ids of acknowledged events outside the database.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use redrive::EventId;

use super::demo_error;
use crate::failure::Failure;

/// A UUID and a newline.
const LINE_BYTES: u64 = 37;

/// Set of acknowledged ids. A std mutex, locked for one write only.
#[derive(Debug)]
pub(super) enum Acknowledged {
    /// For a process that is not killed.
    InMemory(Mutex<HashSet<EventId>>),
    /// For a process that is killed: written lines survive it.
    InFile(Mutex<File>),
}

impl Acknowledged {
    pub(super) fn in_memory() -> Self {
        Acknowledged::InMemory(Mutex::default())
    }

    pub(super) fn in_file(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(demo_error)?;
        Ok(Acknowledged::InFile(Mutex::new(file)))
    }

    /// Records an id. Called after the publish has returned `Ok`, never before.
    pub(super) fn record(&self, id: EventId) -> Result<(), Failure> {
        match self {
            Acknowledged::InMemory(ids) => {
                ids.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
                Ok(())
            }
            // One write call, so that no line is partial.
            Acknowledged::InFile(file) => {
                let line = format!("{id}\n");
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                file.write_all(line.as_bytes()).map_err(demo_error)
            }
        }
    }

    /// All ids recorded in memory.
    pub(super) fn ids(&self) -> HashSet<EventId> {
        match self {
            Acknowledged::InMemory(ids) => ids.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            Acknowledged::InFile(_) => HashSet::new(),
        }
    }
}

/// Reads all ids recorded in a file.
pub(super) fn read(path: &Path) -> Result<HashSet<EventId>, Failure> {
    let text = std::fs::read_to_string(path).map_err(demo_error)?;
    text.lines().map(|line| line.parse().map_err(demo_error)).collect()
}

/// Number of ids in a file, by its size.
pub(super) fn count(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len() / LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_recorded_in_a_file_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("acknowledged");
        let ids: HashSet<_> = (0..3).map(|_| EventId::new()).collect();
        let file = Acknowledged::in_file(&path).unwrap();
        for id in &ids {
            file.record(*id).unwrap();
        }
        assert_eq!(count(&path), 3);
        assert_eq!(read(&path).unwrap(), ids);
    }
}
