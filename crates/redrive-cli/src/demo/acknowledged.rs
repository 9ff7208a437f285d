//! Oracle of the demo: records the ids of acknowledged events outside the database.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use redrive::EventId;

use super::demo_error;
use crate::failure::Failure;

/// A UUID and a newline.
const LINE_BYTES: u64 = 37;

/// File of acknowledged ids: lines written by a process that is killed survive it.
#[derive(Debug)]
pub(super) struct Acknowledged(File);

impl Acknowledged {
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        OpenOptions::new().create(true).append(true).open(path).map(Acknowledged).map_err(demo_error)
    }

    /// Records an id. Called after the publish has returned `Ok`, never before.
    pub(super) fn record(&self, id: EventId) -> Result<(), Failure> {
        // One write call, so that no line is partial.
        (&self.0).write_all(format!("{id}\n").as_bytes()).map_err(demo_error)
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
        let file = Acknowledged::open(&path).unwrap();
        for id in &ids {
            file.record(*id).unwrap();
        }
        assert_eq!(count(&path), 3);
        assert_eq!(read(&path).unwrap(), ids);
    }
}
