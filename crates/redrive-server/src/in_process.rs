//! The HTTP API on a database without a server: a client calls the handlers in its own process.
//!
//! The bus behind the handlers is not started, so nothing is dispatched. A server that runs on the database sees every change within a
//! second.

use std::io::{self, Write as _};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use redrive::EventBus;
use redrive::retry::RetryPolicy;
use redrive::store::Store;
use redrive_api::client::{Client, Error, ResponseFuture, Transport};
use redrive_webhook::{EndpointStore, Vault};
use tokio::sync::watch;
use tower_service::Service as _;

use crate::api::http_context::HttpContext;
use crate::api::problem::Cause;
use crate::api::{self, Api, LimitArgs, auth};
use crate::database::{Database, Opened};
use crate::failure::Failure;
use crate::serve::secret_key::SecretKeyArgs;
use crate::serve::sending::SendingArgs;

/// Whether a missing database is created.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// Create it.
    Create,
    /// Refuse to open it.
    Fail,
}

/// Access of a command to the secrets of endpoints.
#[derive(Copy, Clone, Debug)]
pub enum EndpointSecrets<'a> {
    /// No access: sealed secrets stay closed, and none is sealed.
    Closed,
    /// Access with this key, and requests to endpoints with these settings.
    Open(&'a SecretKeyArgs, &'a SendingArgs),
}

/// The HTTP API on an open database.
#[derive(Debug)]
pub struct InProcess {
    client: Client,
    bus: EventBus,
    /// Ends the task that looks for changes.
    stopping: watch::Sender<bool>,
}

impl InProcess {
    /// Opens the database beside any process that owns it.
    pub async fn open(
        db: &Database,
        secrets: EndpointSecrets<'_>,
        if_missing: IfMissing,
    ) -> Result<Self, Failure> {
        let is_new = db.path().is_some_and(|path| !path.exists());
        let Opened { store, idempotency } = db.open(if_missing == IfMissing::Create).await?;
        if is_new {
            note(&format!("{db} did not exist and was created"));
        }
        let (client, vault) = match secrets {
            EndpointSecrets::Closed => (
                SendingArgs::default().client()?,
                Vault::new([Vault::generate_key()].iter().map(String::as_str)),
            ),
            EndpointSecrets::Open(key, sending) => (sending.client()?, Ok(vault(key, db, &*store).await?)),
        };
        let vault = vault.map_err(Failure::failed)?;
        // Not tracked per subscription: the dispatching process decides which subscriptions match, and may have more than endpoints.
        let bus = EventBus::builder().policy(RetryPolicy::webhook()).on(Arc::clone(&store)).await?;
        let endpoints = EndpointStore::new(Arc::clone(&store), client, Arc::new(vault));
        let (stopping, is_stopping) = watch::channel(false);
        let http = HttpContext::new(store, &LimitArgs::default(), None, is_stopping);
        let (api, _) = Api::open(bus.clone(), idempotency, endpoints, http, false).await?;
        let client = Client::new(Handlers { router: api::router(api) });
        Ok(InProcess { client, bus, stopping })
    }

    /// The client of this API.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Closes the database.
    pub async fn close(self) -> Result<(), Failure> {
        self.stopping.send_replace(true);
        Ok(self.bus.store().close().await?)
    }
}

/// Calls the handlers.
#[derive(Debug)]
struct Handlers {
    router: Router,
}

impl Transport for Handlers {
    fn call(&self, request: Request<Bytes>) -> ResponseFuture<'_> {
        let mut request = request.map(Body::from);
        request.extensions_mut().insert(auth::InProcessCaller);
        let mut router = self.router.clone();
        Box::pin(async move {
            let Ok(response) = router.call(request).await;
            if let Some(Cause(why)) = response.extensions().get() {
                return Err(Error::Unreachable(why.clone()));
            }
            Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
        })
    }
}

/// Opens the key of the server that runs on this database.
async fn vault(args: &SecretKeyArgs, db: &Database, store: &dyn Store) -> Result<Vault, Failure> {
    let Some(path) = args.missing(db) else { return args.vault(db) };
    // The server could not open secrets that another key seals.
    let has_endpoints = !store.versions("endpoint").await?.is_empty();
    if has_endpoints || db.address().is_some() {
        return Err(Failure::Failed(format!(
            "there is no key at {}: give that of the server with --secret-key-file PATH or in REDRIVE_SECRET_KEY, or ask the server \
             itself with --server URL",
            path.display()
        )));
    }
    let vault = args.vault(db)?;
    note(&format!(
        "created the key {} for the secrets of endpoints: keep a copy, without it they cannot be opened",
        path.display()
    ));
    Ok(vault)
}

/// Prints a note; a closed standard error is no failure.
fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "note: {text}");
}
