//! `redrive replay list`, `show` and `cancel`.

use std::io::Write;

use clap::Args;
use redrive_api::page::PageQuery;
use redrive_api::replays::Replay;
use redrive_api::time::Time;
use redrive_webhook::ReplayId;

use crate::api::{Api, write_json};
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::table::{Align, Table};
use crate::{format, time_format};

fn print(job: &Replay, out: &mut impl Write) -> Result<(), Failure> {
    let now = time_format::now();
    let when = |at: Time| format!("{at} ({})", time_format::relative(at.0, now));
    let bound = |at: Option<Time>, none: &str| at.map_or_else(|| none.to_owned(), |at| at.to_string());
    writeln!(out, "{}", format::one_line(&job.id))?;
    writeln!(out, "  endpoint   {}", format::one_line(&job.endpoint))?;
    writeln!(out, "  state      {}", format::one_line(job.state.as_str()))?;
    writeln!(out, "  replayed   {}", format::count(job.replayed))?;
    let (since, until) = (bound(job.since, "the first"), bound(job.until, "the last"));
    writeln!(out, "  events     from {since} to {until}")?;
    writeln!(out, "  rate       {} a second", job.per_second)?;
    writeln!(out, "  started    {}", when(job.created_at))?;
    Ok(writeln!(out, "  changed    {}", when(job.updated_at))?)
}

/// List replays, oldest first
#[derive(Debug, Args)]
pub(super) struct List {
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Continue after the last page
    #[arg(long, value_name = "ID")]
    after: Option<ReplayId>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl List {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let after = self.after.map(|id| id.to_string());
        let page = api.replays().list(&PageQuery { limit: Some(self.limit), after }).await?;
        if self.json {
            return write_json(out, &page);
        }
        if page.data.is_empty() {
            return Ok(writeln!(out, "No replays.")?);
        }
        let now = time_format::now();
        let mut table = Table::new([
            ("id", Align::Left),
            ("state", Align::Left),
            ("replayed", Align::Right),
            ("started", Align::Left),
            ("endpoint", Align::Left),
        ]);
        for job in &page.data {
            table.row([
                format::one_line(&job.id),
                format::one_line(job.state.as_str()),
                format::count(job.replayed),
                time_format::relative(job.created_at.0, now),
                format::one_line(&job.endpoint),
            ]);
        }
        table.print(out, screen)?;
        if let Some(next) = &page.next {
            let more = format!("More: redrive replay list --after {}{}", format::one_line(next), api.flag());
            writeln!(out, "{}", screen.paint(Style::Quiet, more))?;
        }
        Ok(())
    }
}

/// Show the progress of a replay
#[derive(Debug, Args)]
pub(super) struct Show {
    /// The replay
    #[arg(value_name = "ID")]
    id: ReplayId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write) -> Result<(), Failure> {
        let job = api.replays().get(&self.id.to_string()).await?;
        if self.json { write_json(out, &job) } else { print(&job, out) }
    }
}

/// Cancel a replay; sent events stay sent
#[derive(Debug, Args)]
pub(super) struct Cancel {
    /// The replay
    #[arg(value_name = "ID")]
    id: ReplayId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Cancel {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write) -> Result<(), Failure> {
        let job = api.replays().cancel(&self.id.to_string()).await?;
        if self.json { write_json(out, &job) } else { print(&job, out) }
    }
}
