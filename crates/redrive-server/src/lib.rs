//! The Redrive server: [`serve::Serve`] runs the HTTP API with webhooks and pull consumers on one database,
//! [`scheduler::run`] runs the retry scheduler of a message broker, and [`in_process`] serves the HTTP API to a caller in
//! the same process.
//!
//! A request passes [`serve`] (connections), the request middleware, authentication and its handler under `api/`. Settings are
//! clap argument structs, so that the `redrive` command and this crate have one definition of them.

pub mod api;
pub mod audit_tally;
mod bucket;
pub mod database;
mod documents;
pub mod failure;
mod hidden_text;
pub mod in_process;
mod metric_family;
mod open_files;
mod pull_subscriptions;
mod reserved;
pub mod scheduler;
pub mod serve;
pub mod telemetry;
pub mod terminal_text;
mod tokens;
