//! Where a command works: on a database, or on a running server. Both speak the HTTP API, so a command is written once.
//!
//! A database is spoken to by the API's own handlers, in this process: nothing is dispatched, nothing listens, and the server that
//! runs on the same database takes in what was changed within a second.

mod answer;
mod inside;
mod remote;

use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode, header};
use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::inside::Inside;
pub(crate) use self::inside::Keys;
use self::remote::{Remote, ServerUrl};
use crate::database::Database;
use crate::failure::Failure;

/// The flags of a command that may work on a server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Database or server")]
pub(crate) struct ServerArgs {
    /// Ask a running server, such as https://events.example.com, and not a database
    #[arg(long, value_name = "URL", env = "REDRIVE_SERVER", global = true)]
    server: Option<ServerUrl>,
    /// The token for it, as `redrive tokens create` shows it; better in the environment than here, where others see it
    #[arg(long, value_name = "TOKEN", env = "REDRIVE_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,
}

/// What a command does to a database that is not there.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum IfMissing {
    Make,
    Fail,
}

/// What came of wanting to watch.
#[derive(Debug)]
pub(crate) enum Watched {
    Feed(Body),
    /// Nobody is there, or not well; that may pass.
    Away(Failure),
    /// It will not be otherwise the next time.
    Refused(Failure),
}

/// Where a command works.
#[derive(Debug)]
pub(crate) enum Place {
    Database(Box<Inside>),
    Server(Box<Remote>),
}

impl ServerArgs {
    /// The server, if one is named.
    pub(crate) fn remote(&self) -> Result<Option<Place>, Failure> {
        let Some(url) = &self.server else { return Ok(None) };
        Ok(Some(Place::Server(Box::new(Remote::new(url.clone(), self.token.clone())?))))
    }
}

impl Place {
    /// The server, if one is named, or the database. `keys` opens the secrets of endpoints in a database.
    pub(crate) async fn open(
        server: &ServerArgs,
        db: &Database,
        keys: Keys<'_>,
        if_missing: IfMissing,
    ) -> Result<Self, Failure> {
        match server.remote()? {
            Some(remote) => Ok(remote),
            None => Ok(Place::Database(Box::new(Inside::open(db, keys, if_missing).await?))),
        }
    }

    pub(crate) fn is_database(&self) -> bool {
        matches!(self, Place::Database(_))
    }

    /// How to name it in a command that the user may copy.
    pub(crate) fn flag(&self) -> String {
        match self {
            Place::Database(inside) => inside.flag(),
            Place::Server(remote) => remote.flag(),
        }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(Method::GET, path, None).await
    }

    /// `None` if it is not there any more, or not what it was.
    pub(crate) async fn find<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Failure> {
        let response = self.call(Method::GET, path, None).await?;
        match response.status() {
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(None),
            _ => answer::read(response, self).await.map(Some),
        }
    }

    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Failure> {
        self.post_text(path, body.to_string()).await
    }

    /// The same for what is JSON already, and goes as it is.
    pub(crate) async fn post_text<T: DeserializeOwned>(
        &self,
        path: &str,
        body: String,
    ) -> Result<T, Failure> {
        self.ask(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn patch<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Failure> {
        self.ask(Method::PATCH, path, Some(body.to_string())).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<(), Failure> {
        let response = self.call(Method::DELETE, path, None).await?;
        answer::done(response, self).await
    }

    /// The same where it is said what was deleted.
    pub(crate) async fn delete_and_read<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(Method::DELETE, path, None).await
    }

    /// What comes for as long as somebody reads it.
    pub(crate) async fn watch(&self, path: &str) -> Watched {
        let response = match self.call(Method::GET, path, None).await {
            Ok(response) => response,
            Err(failure) => return Watched::Away(failure),
        };
        let may_pass =
            response.status().is_server_error() || response.status() == StatusCode::TOO_MANY_REQUESTS;
        match answer::checked(response, self).await {
            Ok(response) => Watched::Feed(response.into_body()),
            Err(failure) if may_pass => Watched::Away(failure),
            Err(failure) => Watched::Refused(failure),
        }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<T, Failure> {
        let response = self.call(method, path, body).await?;
        answer::read(response, self).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<Response<Body>, Failure> {
        let has_body = body.is_some();
        let mut request = Request::new(body.map_or_else(Body::empty, Body::from));
        *request.method_mut() = method;
        if has_body {
            let json = header::HeaderValue::from_static("application/json");
            request.headers_mut().insert(header::CONTENT_TYPE, json);
        }
        match self {
            Place::Database(inside) => inside.call(request, path).await,
            Place::Server(remote) => remote.call(request, path).await,
        }
    }

    /// Lets go of it.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        match self {
            Place::Database(inside) => inside.close().await,
            Place::Server(_) => Ok(()),
        }
    }
}

/// A part of a path or a query, with all that has a meaning there written otherwise.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
