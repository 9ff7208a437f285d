//! Tests of the PostgreSQL store. One binary, so that it is linked once and all tests share a server.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod every_state;
mod postgres;
mod postgres_budgets;
mod postgres_by_hand;
mod postgres_circuits;
mod postgres_conformance;
mod postgres_idempotency;
mod postgres_leader;
mod postgres_old_schemas;
mod postgres_proxy;
mod postgres_refusals;
mod postgres_retry_queue;
mod postgres_server;
mod postgres_standby;
mod postgres_tables;
mod postgres_takeover;
mod postgres_tls;
