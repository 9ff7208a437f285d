//! The Redrive server: an HTTP API that stores events in a database, and a dispatcher that delivers them to webhook endpoints and pull
//! consumers.
//!
//! An event takes this path:
//!
//! 1. **Request.** `POST /v1/events` passes the listener ([`serve`]: limits of connections), the middleware (repeated headers, origin,
//!    timeout, metrics) and authentication (token, scope, rate) to its handler, `api/events/publish.rs`.
//! 2. **Store.** The handler appends the event. Every endpoint and every pull subscription is a subscription of one
//!    [`EventBus`](redrive::EventBus); the event and one delivery for each matching subscription are stored in one transaction. The
//!    response, 202, follows when the commit is on stable storage.
//! 3. **Dispatcher.** The bus claims each delivery when it is due and the limits of its endpoint allow an attempt.
//! 4. **Attempt.** The webhook target of `redrive-webhook` signs the request and sends it to the endpoint. A pull consumer fetches the
//!    event instead, under a lease.
//! 5. **Settle.** The response or the ack ends the claim in the store: the delivery is done, is retried at a later time, or is a dead
//!    letter.
//!
//! [`serve::Serve`] runs all of this on one database, [`scheduler::run`] runs the retry scheduler of a message broker, and [`in_process`]
//! calls the API's handlers without a server. Settings are clap argument structs, so that the `redrive` command and this crate have one
//! definition of them.

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
