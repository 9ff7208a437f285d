//! Opens the API client of a command: over HTTP to a server, or in process on a database, with the handlers of the same API.

use std::io::{self, Write};
use std::ops::Deref;

use clap::Args;
use redrive_api::client::{self, Client, ServerUrl};
use redrive_api::page::{MAX_PAGE, Page, PageQuery};
use redrive_api::time::Time;
use redrive_server::in_process::InProcess;
pub(crate) use redrive_server::in_process::{EndpointSecrets, IfMissing};
use redrive_server::terminal_text::SafeJson;
use serde::Serialize;

use crate::database::{Database, block_on};
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::{format, time_format};

/// The flags of every command over the API.
#[derive(Debug, Args)]
#[command(next_help_heading = "Database or server")]
pub(crate) struct ServerArgs {
    /// Send requests to this server, such as https://events.example.com, instead of opening a database
    #[arg(long, value_name = "URL", env = "REDRIVE_SERVER", global = true)]
    server: Option<ServerUrl>,
    /// Token for the server, from `redrive tokens create`; prefer the variable, because other users can see flags
    #[arg(long, value_name = "TOKEN", env = "REDRIVE_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,
    /// Print the response of the HTTP API as JSON
    #[arg(long, global = true, help_heading = None::<&'static str>)]
    json: bool,
}

/// The flags of a command that lists entries page by page.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Continue after the last page
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

/// The API of a server or of a database, and the output of the command that uses it.
pub(crate) struct Session<'a> {
    client: Client,
    /// Names the database or server in a command that the user may copy.
    pub(crate) flag: String,
    in_process: Option<InProcess>,
    pub(crate) json: bool,
    pub(crate) out: &'a mut dyn Write,
    pub(crate) screen: Screen,
}

impl ServerArgs {
    /// Address of the server, if one is named.
    pub(crate) fn url(&self) -> Option<&ServerUrl> {
        self.server.as_ref()
    }

    /// Whether `--json` is given.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Opens the API of the named server or of the database, runs a command on it, and closes it.
    pub(crate) fn run(
        &self,
        db: &Database,
        secrets: EndpointSecrets<'_>,
        if_missing: IfMissing,
        out: &mut dyn Write,
        screen: Screen,
        command: impl AsyncFnOnce(&mut Session<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        block_on(async {
            let (client, flag, in_process) = self.open(db, secrets, if_missing).await?;
            let mut session = Session { client, flag, in_process, json: self.json, out, screen };
            let done = command(&mut session).await;
            if let Some(in_process) = session.in_process {
                in_process.close().await?;
            }
            done
        })
    }

    /// The client, the flag that names the database or server, and the handlers in process.
    async fn open(
        &self,
        db: &Database,
        secrets: EndpointSecrets<'_>,
        if_missing: IfMissing,
    ) -> Result<(Client, String, Option<InProcess>), Failure> {
        let Some(url) = &self.server else {
            let in_process = InProcess::open(db, secrets, if_missing).await?;
            return Ok((in_process.client().clone(), db.flag(), Some(in_process)));
        };
        // A command sends each request once: its user sees the error at once, and decides.
        let client = Client::http(url.clone(), self.token.as_deref())
            .map_err(|error| Failure::Usage(error.to_string()))?
            .without_retries();
        let named = std::env::var("REDRIVE_SERVER").ok().and_then(|text| text.parse().ok());
        let flag = if named.as_ref() == Some(url) { String::new() } else { format!(" --server {url}") };
        Ok((client, flag, None))
    }
}

impl Session<'_> {
    pub(crate) fn is_database(&self) -> bool {
        self.in_process.is_some()
    }

    /// Prints a response of the API: with `--json` as it is, else by `print`.
    pub(crate) fn print_response<T: Serialize>(
        &mut self,
        response: T,
        print: impl FnOnce(&mut Self, T) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.json { write_json(self.out, &response) } else { print(self, response) }
    }

    /// Prints a title and the fields that have a value, each on its own line.
    pub(crate) fn details<const N: usize>(
        &mut self,
        title: &str,
        fields: [(&str, Option<String>); N],
    ) -> io::Result<()> {
        writeln!(self.out, "{}", self.screen.paint(Style::Strong, title))?;
        let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in fields {
            if let Some(value) = value {
                writeln!(self.out, "  {name:width$}  {value}")?;
            }
        }
        Ok(())
    }

    /// Prints the heading of a section.
    pub(crate) fn section(&mut self, name: &str) -> io::Result<()> {
        writeln!(self.out, "\n{}", self.screen.paint(Style::Quiet, name))
    }

    /// Prints a page: with `--json` as it is, else its entries by `print` and the command that lists the next page, or `none`.
    pub(crate) fn page<T: Serialize>(
        &mut self,
        page: Page<T>,
        command: &str,
        none: &str,
        print: impl FnOnce(&mut Self, &[T]) -> io::Result<()>,
    ) -> Result<(), Failure> {
        self.print_response(page, |api, page| {
            if page.data.is_empty() {
                return Ok(writeln!(api.out, "{none}")?);
            }
            print(api, &page.data)?;
            if let Some(next) = &page.next {
                let more = format!("More: redrive {command} --after {}{}", format::one_line(next), api.flag);
                writeln!(api.out, "{}", api.screen.paint(Style::Quiet, more))?;
            }
            Ok(())
        })
    }
}

impl Deref for Session<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl PageArgs {
    /// All entries.
    pub(crate) const ALL: PageArgs = PageArgs::first(u32::MAX);

    /// The first entries, at most this many.
    pub(crate) const fn first(limit: u32) -> Self {
        PageArgs { limit, after: None }
    }

    /// Reads pages until there are `limit` entries, and returns them as one page.
    pub(crate) async fn collect<T>(
        self,
        list: impl AsyncFn(&PageQuery) -> client::Result<Page<T>>,
    ) -> client::Result<Page<T>> {
        let mut all = Page { data: Vec::new(), next: self.after };
        loop {
            let left = self.limit.saturating_sub(u32::try_from(all.data.len()).unwrap_or(u32::MAX));
            let page = list(&PageQuery { limit: Some(left.clamp(1, MAX_PAGE)), after: all.next }).await?;
            all.data.extend(page.data);
            all.next = page.next;
            if all.next.is_none() || all.data.len() >= self.limit as usize {
                return Ok(all);
            }
        }
    }
}

/// Formats a time with its distance from now: `2026-01-31T12:00:00.000Z (3s ago)`.
pub(crate) fn when(at: Time) -> String {
    format!("{at} ({})", relative(at))
}

/// Formats the distance of a time from now: `3s ago`, `in 5m`, `just now`.
pub(crate) fn relative(at: Time) -> String {
    time_format::relative(at.0, time_format::now())
}

/// Prints a report as one line of JSON; characters that could steer a terminal are escaped.
pub(crate) fn write_json(out: &mut (impl Write + ?Sized), report: &impl Serialize) -> Result<(), Failure> {
    report.serialize(&mut serde_json::Serializer::with_formatter(&mut *out, SafeJson))?;
    Ok(writeln!(out)?)
}
