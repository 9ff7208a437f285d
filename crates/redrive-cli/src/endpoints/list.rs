//! `redrive endpoints list` and `show`.

use std::io::Write;

use clap::Args;
use redrive_api::page::PageQuery;
use redrive_webhook::EndpointId;

use super::display::{print, status};
use crate::api::{Api, write_json};
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::table::{Align, Table};
use crate::{format, time_format};

/// List endpoints, oldest first; never their secrets
#[derive(Debug, Args)]
pub(super) struct List {
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Continue after the last page
    #[arg(long, value_name = "ID")]
    after: Option<EndpointId>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Show one endpoint; never its secrets
#[derive(Debug, Args)]
pub(super) struct Show {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl List {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let after = self.after.map(|id| id.to_string());
        let page = api.endpoints().list(&PageQuery { limit: Some(self.limit), after }).await?;
        if self.json {
            return write_json(out, &page);
        }
        if page.data.is_empty() {
            let hint = "redrive endpoints add https://example.com/hooks --pattern 'order.*'";
            return Ok(writeln!(out, "No endpoints. Create one: {hint}{}", api.flag())?);
        }
        let now = time_format::now();
        let mut table =
            Table::new(["id", "status", "url", "patterns", "description"].map(|name| (name, Align::Left)));
        for endpoint in &page.data {
            table.row([
                format::one_line(&endpoint.id),
                status(endpoint, now),
                format::one_line(&endpoint.url),
                format::cut(&format::one_line(&endpoint.patterns.join(" ")), 24),
                format::one_line(&endpoint.description),
            ]);
        }
        table.print(out, screen)?;
        if let Some(next) = &page.next {
            let more =
                format!("More: redrive endpoints list --after {}{}", format::one_line(next), api.flag());
            writeln!(out, "{}", screen.paint(Style::Quiet, more))?;
        }
        Ok(())
    }
}

impl Show {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let endpoint = api.endpoints().get(self.id.as_str()).await?;
        if self.json {
            return write_json(out, &endpoint);
        }
        writeln!(out, "{}", screen.paint(Style::Strong, &self.id))?;
        print(&endpoint, out, screen)
    }
}
