//! Runs the conformance suite on SQLite, in a file and in memory.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;

use redrive_store::conformance::{Harness, MAX_PAYLOAD, Restart};
use redrive_store::{SqliteOptions, SqliteStore, Store};
use tempfile::TempDir;

fn options() -> SqliteOptions {
    SqliteOptions { max_payload: MAX_PAYLOAD, ..SqliteOptions::default() }
}

struct SqliteFile {
    /// `None` only while the store is reopened: a file has one owner.
    store: Option<Arc<dyn Store>>,
    folder: TempDir,
}

impl SqliteFile {
    fn open(folder: &TempDir) -> Option<Arc<dyn Store>> {
        Some(Arc::new(SqliteStore::open(folder.path().join("redrive.db"), options()).unwrap()))
    }
}

impl Harness for SqliteFile {
    async fn fresh() -> Self {
        let folder = tempfile::tempdir().unwrap();
        SqliteFile { store: SqliteFile::open(&folder), folder }
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.store.as_ref().unwrap()
    }
}

impl Restart for SqliteFile {
    async fn restart(&mut self) {
        let old = self.store.take().unwrap();
        assert_eq!(Arc::strong_count(&old), 1, "the last reference, so dropping it ends the store");
        drop(old);
        self.store = SqliteFile::open(&self.folder);
    }
}

struct SqliteMemory(Arc<dyn Store>);

impl Harness for SqliteMemory {
    async fn fresh() -> Self {
        SqliteMemory(Arc::new(SqliteStore::open(":memory:", options()).unwrap()))
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.0
    }
}

mod sqlite_file {
    redrive_store::conformance_tests!(super::SqliteFile);
    redrive_store::restart_conformance_tests!(super::SqliteFile);
}

mod sqlite_memory {
    redrive_store::conformance_tests!(super::SqliteMemory);
}
