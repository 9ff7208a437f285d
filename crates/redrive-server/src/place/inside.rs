//! The API on a database, without a server: its handlers are called in this process. The bus behind them is never started.

use std::fmt;
use std::io::{self, Write as _};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use redrive::{EventBus, PostgresStore, RetryPolicy, Store, Tracking};
use redrive_retry::idempotency::IdempotencyStore;
use redrive_webhook::{EndpointBook, Vault, Webhooks};
use tokio::sync::watch;
use tower_service::Service as _;

use super::IfMissing;
use crate::api::door::Door;
use crate::api::{self, Api, Feed, LimitArgs, Limits, Meter, auth};
use crate::database::{self, Database};
use crate::failure::Failure;
use crate::label;
use crate::queues::Queues;
use crate::serve::secret_key::SecretKeyArgs;
use crate::serve::sending::SendingArgs;
use crate::tokens::book::TokenBook;

/// What a command needs to know to work with the endpoints in a database.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Keys<'a> {
    /// It has nothing to do with endpoints.
    None,
    Endpoints(&'a SecretKeyArgs, &'a SendingArgs),
}

/// The API on a database.
pub(crate) struct Inside {
    db: Database,
    bus: EventBus,
    router: Router,
    /// Ends those who look for news.
    stopping: watch::Sender<bool>,
}

impl Inside {
    pub(super) async fn open(db: &Database, keys: Keys<'_>, if_missing: IfMissing) -> Result<Self, Failure> {
        let is_new = db.path().is_some_and(|path| !path.exists());
        let (store, idempotency) = open_store(db, if_missing).await?;
        if is_new {
            note(&format!("{db} did not exist and was created"));
        }
        let (client, vault) = match keys {
            // What is sealed stays closed, and nothing is sealed.
            Keys::None => (
                SendingArgs::default().client()?,
                Vault::new([Vault::generate_key()].iter().map(String::as_str)),
            ),
            Keys::Endpoints(key, sending) => (sending.client()?, Ok(vault(key, db, &*store).await?)),
        };
        let vault = vault.map_err(|error| Failure::Failed(error.to_string()))?;
        let bus = EventBus::builder()
            .policy(RetryPolicy::webhook())
            .tracking(Tracking::PerSubscription)
            .on(Arc::clone(&store))
            .await?;
        let book = EndpointBook::new(Arc::clone(&store), client, Arc::new(vault));
        let (webhooks, watching) =
            Webhooks::open(bus.clone(), book).await.map_err(|error| Failure::Failed(error.to_string()))?;
        // A server works on replays and watches endpoints; this process is over in a moment.
        drop(watching);
        let queues = Queues::open(bus.clone()).await.map_err(|error| Failure::Failed(error.to_string()))?;
        let limits = LimitArgs::default();
        let (stopping, is_stopping) = watch::channel(false);
        let api = Arc::new(Api {
            bus: bus.clone(),
            webhooks,
            queues,
            store: Arc::clone(&store),
            keys: idempotency,
            feed: Feed::new(),
            door: Arc::new(Door {
                tokens: TokenBook::new(Arc::clone(&store), limits.token_rate_limit),
                limits: Limits::new(&limits),
                meter: Meter::default(),
                request_spans: None,
                stopping: is_stopping,
            }),
        });
        let looking = Arc::clone(&api);
        tokio::spawn(async move {
            looking.feed.run(Arc::clone(&looking.store), looking.door.stopping.clone()).await;
        });
        Ok(Inside { db: db.clone(), bus, router: api::router(api), stopping })
    }

    pub(super) fn flag(&self) -> String {
        self.db.flag()
    }

    pub(super) async fn call(
        &self,
        mut request: Request<Body>,
        path: &str,
    ) -> Result<Response<Body>, Failure> {
        *request.uri_mut() =
            path.parse().map_err(|_| Failure::Usage(format!("{} is no path", label::one_line(path))))?;
        request.extensions_mut().insert(auth::Inside);
        let Ok(response) = self.router.clone().call(request).await;
        Ok(response)
    }

    pub(super) async fn close(self) -> Result<(), Failure> {
        self.stopping.send_replace(true);
        Ok(self.bus.store().close().await?)
    }
}

async fn open_store(
    db: &Database,
    if_missing: IfMissing,
) -> Result<(Arc<dyn Store>, Arc<dyn IdempotencyStore>), Failure> {
    if let Some(address) = db.address() {
        database::known(address)?;
        let options = database::brief_options(if_missing == IfMissing::Make);
        let store = Arc::new(PostgresStore::open(address, options).await?);
        return Ok((Arc::clone(&store) as _, store));
    }
    let path = db.path().unwrap_or_else(|| std::path::Path::new(""));
    if if_missing == IfMissing::Fail {
        database::must_exist(path, database::NAMED_BY)?;
    }
    let store = database::open_file(path)?;
    Ok((Arc::clone(&store) as _, store))
}

/// The key of the server that runs on this database, or will.
async fn vault(args: &SecretKeyArgs, db: &Database, store: &dyn Store) -> Result<Vault, Failure> {
    let Some(path) = args.missing(db) else { return args.vault(db) };
    // A key of our own would seal what the server cannot open.
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
        "made the key {} for the secrets of endpoints: keep a copy, without it they cannot be opened",
        path.display()
    ));
    Ok(vault)
}

/// If nobody hears it, the work is done all the same.
fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "note: {text}");
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inside").field("db", &self.db).finish_non_exhaustive()
    }
}
