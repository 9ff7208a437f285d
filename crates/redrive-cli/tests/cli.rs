//! Tests of the command line with the real binary.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod audit_cli;
mod bus_cli;
mod commands;
mod history_cli;
mod migrate_cli;
mod passwords;
mod policy_cli;
mod postgres_cli;
