//! Rust client of [`redrive serve`](https://docs.rs/redrive-cli): publish events, run workers, manage dead letters and endpoints.
//!
//! The server, the `redrive` command and programs that talk to a server share the types of this crate, so JSON has one dialect everywhere:
//! lists are `data` and `next`, times are RFC 3339, errors are [`problem::Problem`]. Enums keep names that this release does not know.
//!
//! # Publish
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use redrive_api::client::Client;
//! use redrive_api::events::PublishEvent;
//! use serde_json::json;
//!
//! let client = Client::http("http://127.0.0.1:8080".parse()?, None)?; // or Some(token)
//! let order = PublishEvent::json("order.created", &json!({ "order": 7 }))?;
//! let published = client.events().publish(&order).await?;
//!
//! // A batch is stored as a whole or not at all.
//! let reminder = PublishEvent { delay_ms: Some(3_600_000), ..PublishEvent::json("reminder.due", &json!({ "order": 7 }))? };
//! client.events().publish_batch(&[order, reminder]).await?;
//! println!("{}", published.id);
//! # Ok(()) }
//! ```
//!
//! `publish` returns when the event is on stable storage. The client repeats a request that failed, a lost response included, and the
//! event is stored once, because every publish carries an `Idempotency-Key`. [`client`] says which requests are repeated, and when.
//!
//! # Lists
//!
//! `list` returns one page, `all` iterates over the entries of all pages:
//!
//! ```no_run
//! # async fn run(client: redrive_api::client::Client) -> redrive_api::client::Result<()> {
//! use redrive_api::dlq::DlqFilter;
//!
//! let filter = DlqFilter { event_type: Some("order.created".to_owned()), ..DlqFilter::default() };
//! let mut dead = client.dlq().all(&filter);
//! while let Some(letter) = dead.next().await? {
//!     println!("{} {} {:?}", letter.id, letter.reason, letter.errors.last());
//! }
//! # Ok(()) }
//! ```
//!
//! # Errors
//!
//! Compare the [`code`](client::Error::code) of an error; its text is for people.
//!
//! ```no_run
//! # async fn run(client: redrive_api::client::Client, id: uuid::Uuid) -> redrive_api::client::Result<()> {
//! use redrive_api::problem::ProblemCode;
//!
//! match client.events().get(id).await {
//!     Ok(event) => println!("{}", event.status),
//!     Err(error) if error.code() == ProblemCode::NotFound => println!("no such event"),
//!     Err(error) => return Err(error),
//! }
//! # Ok(()) }
//! ```
//!
//! # Workers
//!
//! A [`worker`] pulls the events of a subscription, runs a handler for each, extends their leases meanwhile, and settles them:
//!
//! ```no_run
//! # async fn run(client: redrive_api::client::Client) -> redrive_api::client::Result<()> {
//! let worker = client
//!     .worker("billing", |event, _context| async move {
//!         println!("{} {}", event.id, event.payload);
//!         Ok::<(), std::io::Error>(())
//!     })
//!     .patterns(["order.*"])
//!     .concurrency(32);
//! worker.run_until(tokio::signal::ctrl_c()).await?;
//! # Ok(()) }
//! ```
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `http-client` | yes | [`Client::http`](client::Client::http): HTTP and HTTPS, to certificates that the machine trusts |
//! | `worker` | yes | the module [`worker`] |
//! | `anyhow` | no | finds the class of an error inside `anyhow::Error` |
//! | `schema` | no | schemas of the types for an OpenAPI document |
//!
//! A [`client::Client`] works over any [`client::Transport`], such as a server in the same process. Tests give it a transport of their own
//! and a clock on virtual time.

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
#[cfg(feature = "worker")]
pub mod worker;

/// Code of the README, compiled by `cargo test --doc`.
#[cfg(all(doctest, feature = "http-client", feature = "worker"))]
#[doc = include_str!("../README.md")]
struct Readme;
