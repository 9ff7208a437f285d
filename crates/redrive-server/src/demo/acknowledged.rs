//! The oracle: which events were acknowledged to their publisher, kept outside the database.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use redrive::EventId;

use super::demo_error;
use crate::failure::Failure;

/// A line is a UUID and its end.
const LINE: u64 = 37;

/// Takes ids down. A std mutex: held for one write.
#[derive(Debug)]
pub(super) enum Acknowledged {
    /// For a process that lives to the end.
    InMemory(Mutex<HashSet<EventId>>),
    /// For one that will be killed: the system keeps what was written to a file.
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

    /// Called when the publish has returned `Ok`, never before.
    pub(super) fn note(&self, id: EventId) -> Result<(), Failure> {
        match self {
            Acknowledged::InMemory(ids) => {
                ids.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
                Ok(())
            }
            // One write call: a line is there or it is not.
            Acknowledged::InFile(file) => {
                let line = format!("{id}\n");
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                file.write_all(line.as_bytes()).map_err(demo_error)
            }
        }
    }

    /// All that were noted in memory.
    pub(super) fn ids(&self) -> HashSet<EventId> {
        match self {
            Acknowledged::InMemory(ids) => ids.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            Acknowledged::InFile(_) => HashSet::new(),
        }
    }
}

/// All that were noted in a file.
pub(super) fn read(path: &Path) -> Result<HashSet<EventId>, Failure> {
    let text = std::fs::read_to_string(path).map_err(demo_error)?;
    text.lines().map(|line| line.parse().map_err(demo_error)).collect()
}

/// How many were noted in a file so far, without reading it.
pub(super) fn count(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len() / LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_in_a_file_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("acknowledged");
        let ids: HashSet<_> = (0..3).map(|_| EventId::new()).collect();
        let file = Acknowledged::in_file(&path).unwrap();
        for id in &ids {
            file.note(*id).unwrap();
        }
        assert_eq!(count(&path), 3);
        assert_eq!(read(&path).unwrap(), ids);
    }
}
