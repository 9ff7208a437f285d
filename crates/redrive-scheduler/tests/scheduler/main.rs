//! The scheduler between real queues and a real store: RabbitMQ or NATS, SQLite or PostgreSQL.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod again;
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
mod review;
mod several;
mod shutdown;
mod timing;
mod tls;
mod world;
