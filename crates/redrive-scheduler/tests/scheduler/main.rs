//! Behaviour tests of the scheduler with real brokers and databases: RabbitMQ or NATS, SQLite or PostgreSQL.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod contract;
mod faulty;
mod identity;
mod nats;
mod outages;
mod poison;
mod properties;
mod queues;
mod raw;
mod redelivered;
mod repeated_failures;
mod review;
mod several;
mod shutdown;
mod timing;
mod tls;
mod world;
