//! The commands, as whoever types them meets them: the real binary.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod audit_cli;
mod bus_cli;
mod commands;
mod migrate_cli;
mod policy_cli;
mod postgres_cli;
