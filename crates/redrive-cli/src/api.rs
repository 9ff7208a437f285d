//! How a command reaches data: by the HTTP API of a server, or by the handlers of that API in process, on a database.

use std::io::Write;
use std::ops::Deref;

use clap::Args;
use redrive_api::client::{self, Client, ServerUrl};
use redrive_api::page::{MAX_PAGE, Page, PageQuery};
use redrive_server::in_process::InProcess;
pub(crate) use redrive_server::in_process::{IfMissing, Keys};
use serde::Serialize;

use crate::database::{Database, block_on};
use crate::failure::Failure;

/// The flags of a command that may ask a server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Database or server")]
pub(crate) struct ServerArgs {
    /// Ask a running server, such as https://events.example.com, and not a database
    #[arg(long, value_name = "URL", env = "REDRIVE_SERVER", global = true)]
    server: Option<ServerUrl>,
    /// The token for it, as `redrive tokens create` shows it; the environment hides it better than a flag
    #[arg(long, value_name = "TOKEN", env = "REDRIVE_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,
}

/// An open API: that of a server or that of a database.
#[derive(Debug)]
pub(crate) struct Api {
    client: Client,
    flag: String,
    in_process: Option<InProcess>,
}

impl ServerArgs {
    /// Opens the API of the named server or of the database, runs a command on it, and closes it.
    pub(crate) fn run(
        &self,
        db: &Database,
        keys: Keys<'_>,
        if_missing: IfMissing,
        command: impl AsyncFnOnce(&Api) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        block_on(async {
            let api = self.open(db, keys, if_missing).await?;
            let done = command(&api).await;
            if let Some(in_process) = api.in_process {
                in_process.close().await?;
            }
            done
        })
    }

    async fn open(&self, db: &Database, keys: Keys<'_>, if_missing: IfMissing) -> Result<Api, Failure> {
        let Some(url) = &self.server else {
            let in_process = InProcess::open(db, keys, if_missing).await?;
            return Ok(Api {
                client: in_process.client().clone(),
                flag: db.flag(),
                in_process: Some(in_process),
            });
        };
        let client = Client::http(url.clone(), self.token.as_deref())
            .map_err(|error| Failure::Usage(error.to_string()))?;
        let named = std::env::var("REDRIVE_SERVER").ok().and_then(|text| text.parse().ok());
        let flag = if named.as_ref() == Some(url) { String::new() } else { format!(" --server {url}") };
        Ok(Api { client, flag, in_process: None })
    }
}

impl Api {
    pub(crate) fn is_database(&self) -> bool {
        self.in_process.is_some()
    }

    /// Names the database or server in a command that the user may copy.
    pub(crate) fn flag(&self) -> &str {
        &self.flag
    }
}

impl Deref for Api {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Reads pages until there are `limit` entries, and returns them as one page.
pub(crate) async fn collect<T>(
    limit: u32,
    after: Option<String>,
    list: impl AsyncFn(&PageQuery) -> client::Result<Page<T>>,
) -> Result<Page<T>, Failure> {
    let mut all = Page { data: Vec::new(), next: after };
    loop {
        let left = limit.saturating_sub(u32::try_from(all.data.len()).unwrap_or(u32::MAX));
        let page = list(&PageQuery { limit: Some(left.clamp(1, MAX_PAGE)), after: all.next }).await?;
        all.data.extend(page.data);
        all.next = page.next;
        if all.next.is_none() || all.data.len() >= limit as usize {
            return Ok(all);
        }
    }
}

/// Prints an answer of the API as one line of JSON.
pub(crate) fn write_json(out: &mut impl Write, answer: &impl Serialize) -> Result<(), Failure> {
    serde_json::to_writer(&mut *out, answer)?;
    Ok(writeln!(out)?)
}
