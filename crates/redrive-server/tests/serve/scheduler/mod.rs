//! `redrive scheduler` beside a real RabbitMQ or NATS: the service, what a person decides, and what becomes of it when something dies.

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
