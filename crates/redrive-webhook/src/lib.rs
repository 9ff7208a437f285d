//! Webhooks for Redrive: signed HTTP requests to endpoints, with an SSRF guard and classified outcomes.
//!
//! One delivery, from queue to settle:
//!
//! 1. The bus's dispatcher claims a due delivery of an endpoint's subscription ([`Webhooks`] registers one per endpoint).
//! 2. Admission applies the endpoint's concurrency and rate limit, the retry budget and the circuit breaker.
//! 3. The target builds the [`Message`], signs it ([`Secrets`]) and sends it with the [`Client`], which connects only to addresses
//!    that the [`Guard`] allows.
//! 4. The [`Attempt`] is recorded, and its outcome classified: 2xx is success; redirects are not followed; `Retry-After` throttles
//!    the endpoint; 410 disables it ([`Attempt::failure`]).
//! 5. The dispatcher settles the delivery: done, retried later, or dead-lettered. [`Replays`] send dead letters again.
//!
//! Signatures follow [Standard Webhooks](https://www.standardwebhooks.com) 1.0 (`v1` and `v1a`). Secrets are stored encrypted
//! ([`Vault`]).

mod attempt;
mod client;
mod connect;
mod dns;
mod endpoint;
mod endpoint_store;
mod endpoint_url;
mod error;
mod guard;
mod header;
mod health;
mod id;
mod kept_connection;
mod record;
mod replay;
mod secret;
mod stored;
mod subscriptions;
mod sync;
mod target;
mod vault;
mod webhooks;

pub use self::attempt::{Attempt, Failed, MAX_BODY, Phase, WebhookResponse};
pub use self::client::{Client, ClientBuilder, ClientError, Deadlines, Message};
pub use self::endpoint::{
    CONCURRENCY, Disabled, Endpoint, EndpointError, EndpointId, EndpointPatch, PER_SECOND, SigningSecret,
    TIMEOUT,
};
pub use self::endpoint_store::EndpointStore;
pub use self::endpoint_url::{EndpointUrl, UrlError};
pub use self::error::{EndpointStoreError, WebhooksError};
pub use self::guard::{Forbidden, Guard};
pub use self::header::{Header, HeaderError};
pub use self::record::AttemptRecord;
pub use self::replay::{REPLAY_RATE, Replay, ReplayError, ReplayId, ReplayRequest, ReplayState, Replays};
pub use self::secret::{Secret, SecretError, Secrets};
pub use self::sync::{DISABLED, EndpointDisabled};
pub use self::vault::{Vault, VaultError};
pub use self::webhooks::{RunningWebhookTasks, WebhookTasks, Webhooks};
