//! Types of the Redrive HTTP API, and a typed async client.
//!
//! The server, the `redrive` command and programs that talk to a server share these types, so JSON has one dialect everywhere: lists are
//! `data` and `next`, times are RFC 3339, errors are [`problem::Problem`]. Enums keep names that this release does not know.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use redrive_api::client::Client;
//! use redrive_api::events::{EventFilter, EventStatus, PublishEvent};
//! use redrive_api::page::PageQuery;
//!
//! let client = Client::http("http://127.0.0.1:8080".parse()?, None)?;
//! let payload = serde_json::value::to_raw_value(&serde_json::json!({ "order": 7 }))?;
//! let published = client.events().publish(&PublishEvent::new("order.created", payload)).await?;
//!
//! let dead = EventFilter { status: Some(EventStatus::Dlq), ..EventFilter::default() };
//! let page = client.events().list(&dead, &PageQuery::default()).await?;
//! assert!(page.data.iter().all(|event| event.id != published.id));
//! # Ok(())
//! # }
//! ```
//!
//! A [`client::Client`] works over any [`client::Transport`]: HTTP with the feature `http-client` (on by default), or a server in the
//! same process.

pub mod client;
pub mod diagnostics;
pub mod dlq;
pub mod endpoints;
pub mod events;
pub mod health;
mod open_enum;
pub mod page;
pub mod problem;
pub mod replays;
pub mod retry;
pub mod review;
pub mod stats;
pub mod stream;
pub mod subscriptions;
pub mod time;
pub mod tokens;
