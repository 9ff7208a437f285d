//! The store on a file. One binary: it is linked once.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod conformance;
mod corrupt_files;
mod every_state;
mod old_files;
mod specification;
mod sqlite_file;
mod sqlite_idempotency;
