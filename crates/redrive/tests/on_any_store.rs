//! Tests of a bus on any store: on a SQLite file, or with `REDRIVE_TEST_STORE=postgres` on PostgreSQL.
//! One binary, which is linked once and shares a server.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod absent;
mod budgets;
mod bus;
mod circuits;
mod crash;
mod handle;
mod hardening;
mod idempotent;
mod limits;
mod middleware;
mod observability;
mod overload;
mod pull;
mod specification;
mod test_store;
mod testing;
