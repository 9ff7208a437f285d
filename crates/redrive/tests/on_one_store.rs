//! Tests of a bus on SQLite only, or on PostgreSQL only.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod bus_file;
#[cfg(feature = "postgres")]
mod bus_server;
mod clock_steps;
#[cfg(feature = "postgres")]
mod postgres_budgets;
#[cfg(feature = "postgres")]
mod postgres_circuits;
#[cfg(feature = "postgres")]
mod postgres_deployment;
#[cfg(feature = "postgres")]
mod postgres_pooler;
#[cfg(feature = "postgres")]
mod postgres_processes;
#[cfg(feature = "postgres")]
mod postgres_time;
#[cfg(feature = "postgres")]
mod transfer;
