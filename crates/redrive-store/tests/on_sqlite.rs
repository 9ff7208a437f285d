//! Tests of the SQLite store, in one binary that is linked once.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod conformance;
mod corrupt_files;
mod every_state;
mod old_files;
mod specification;
mod sqlite_file;
mod sqlite_idempotency;
