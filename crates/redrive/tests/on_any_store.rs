//! What a bus does, whatever it stands on. These run on a file, and with `REDRIVE_TEST_STORE=postgres` on a server.
//! One binary: it is linked once, and its tests share a server.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod budgets;
mod bus;
mod crash;
mod hardening;
mod idempotent;
mod lanes;
mod middleware;
mod observability;
mod place;
mod pull;
mod specification;
mod testing;
