//! `redrive scheduler` with a real RabbitMQ or NATS: service, review and recovery.

mod broker;
mod deaths;
mod flow;
mod guard;
mod log;
mod nats;
mod readiness;
mod settings;
mod table;
mod telemetry;
mod world;
