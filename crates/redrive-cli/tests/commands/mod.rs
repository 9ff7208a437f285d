//! Commands on a database or through a running server, the configuration, and the examples.

mod config;
mod doctor;
mod endpoints;
mod events_and_dlq;
mod examples;
mod hostile_text;
mod json_dialect;
mod keys;
mod output;
mod receiver;
mod replay;
mod tail;
mod tokens;
mod world;
