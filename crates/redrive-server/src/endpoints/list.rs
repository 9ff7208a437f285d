//! `redrive endpoints list` and `show`.

use std::io::Write;

use clap::Args;
use redrive_webhook::EndpointId;
use serde_json::Value;

use super::path;
use super::shown::{Endpoint, without_guesses};
use crate::failure::Failure;
use crate::place::Place;
use crate::screen::{Screen, Style};
use crate::table::{Align, Table};
use crate::{label, moment};

/// List endpoints, oldest first; never their secrets
#[derive(Debug, Args)]
pub(super) struct List {
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Continue where the last page ended
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
    pub(super) async fn run(
        self,
        place: &Place,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let after = self.after.map_or_else(String::new, |id| format!("&after={id}"));
        let mut page: Value = place.get(&format!("/v1/endpoints?limit={}{after}", self.limit)).await?;
        for endpoint in page["data"].as_array_mut().into_iter().flatten() {
            without_guesses(place, endpoint);
        }
        if self.json {
            return Ok(writeln!(out, "{page}")?);
        }
        let endpoints = page["data"]
            .as_array()
            .into_iter()
            .flatten()
            .map(Endpoint::read)
            .collect::<Result<Vec<_>, _>>()?;
        if endpoints.is_empty() {
            return Ok(writeln!(
                out,
                "No endpoints. Make one: redrive endpoints add https://example.com/hooks --pattern 'order.*'{}",
                place.flag()
            )?);
        }
        let now = moment::now();
        let mut table =
            Table::new(["id", "status", "url", "patterns", "description"].map(|name| (name, Align::Left)));
        for endpoint in endpoints {
            table.row([
                label::one_line(&endpoint.id),
                endpoint.status(now),
                label::one_line(&endpoint.url),
                label::cut(&label::one_line(&endpoint.patterns.join(" ")), 24),
                label::one_line(&endpoint.description),
            ]);
        }
        table.print(out, screen)?;
        if let Some(next) = page["next"].as_str() {
            let more =
                format!("More: redrive endpoints list --after {}{}", label::one_line(next), place.flag());
            writeln!(out, "{}", screen.paint(Style::Quiet, more))?;
        }
        Ok(())
    }
}

impl Show {
    pub(super) async fn run(
        self,
        place: &Place,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let mut endpoint: Value = place.get(&path(&self.id)).await?;
        without_guesses(place, &mut endpoint);
        if self.json {
            return Ok(writeln!(out, "{endpoint}")?);
        }
        writeln!(out, "{}", screen.paint(Style::Strong, &self.id))?;
        Endpoint::read(&endpoint)?.print(out, screen)
    }
}
