//! Tests of `redrive serve` and `redrive scheduler` with the real binary over real sockets.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod attacks;
mod dlq;
mod endpoints;
mod events;
mod http;
mod idempotency;
mod limits;
mod log;
mod metrics;
mod openapi;
mod problems;
mod receiver;
mod rust_worker;
mod scheduler;
mod shutdown;
mod stream;
mod subscriptions;
mod telemetry;
mod tls;
mod tokens;
mod waiting;
mod world;
