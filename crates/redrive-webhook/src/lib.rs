//! Webhooks that are signed, guarded and judged: the HTTP target of Redrive.
//!
//! A [`Client`] sends a [`Message`] to an [`Endpoint`](EndpointUrl) once and says what came of it: an [`Attempt`] with everything that is worth
//! keeping, and the class of its failure. It does not retry, wait or store; that is the engine's affair.
//!
//! Four things are settled here and nowhere else:
//!
//! - how a message is signed ([Standard Webhooks](https://www.standardwebhooks.com) 1.0, `v1` and `v1a`): [`Secret`], [`Secrets`];
//! - to which addresses nothing is ever sent: [`Guard`], asked when an endpoint is made and again at every connect;
//! - what an answer means: only 2xx is success, nothing is followed, `Retry-After` is heard: [`Attempt::failure`];
//! - how secrets rest: [`Vault`].

mod attempt;
mod book;
mod client;
mod connect;
mod endpoint;
mod endpoint_url;
mod guard;
mod header;
mod health;
mod look_ups;
mod message;
mod record;
mod replay;
mod secret;
mod stored;
mod target;
mod vault;
mod webhooks;

pub use self::attempt::{Answer, Attempt, Failed, MAX_BODY, Phase};
pub use self::book::{BookError, EndpointBook};
pub use self::client::{Client, ClientBuilder, ClientError, Deadlines};
pub use self::endpoint::{
    CONCURRENCY, Disabled, Endpoint, EndpointError, EndpointId, PER_SECOND, SigningSecret, TIMEOUT, Wish,
};
pub use self::endpoint_url::{EndpointUrl, UrlError};
pub use self::guard::{Forbidden, Guard};
pub use self::header::{Header, HeaderError};
pub use self::message::Message;
pub use self::record::AttemptRecord;
pub use self::replay::{REPLAY_RATE, Replay, ReplayError, ReplayId, ReplayState, ReplayWish, Replays};
pub use self::secret::{Secret, SecretError, Secrets};
pub use self::vault::{Vault, VaultError};
pub use self::webhooks::{DISABLED, Watching, Webhooks, WebhooksError};
