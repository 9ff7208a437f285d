//! `redrive replay list`, `show` and `cancel`.

use std::io::Write;

use clap::Args;
use redrive_webhook::ReplayId;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::time::Instant;
use crate::failure::Failure;
use crate::place::Place;
use crate::screen::{Screen, Style};
use crate::table::{Align, Table};
use crate::{label, moment};

/// A replay as the API shows it.
#[derive(Debug, Deserialize)]
pub(super) struct Job {
    pub(super) id: String,
    endpoint: String,
    since: Option<Instant>,
    until: Option<Instant>,
    pub(super) per_second: f64,
    state: String,
    replayed: u64,
    created_at: Instant,
    updated_at: Instant,
}

impl Job {
    pub(super) fn read(value: &Value) -> Result<Self, Failure> {
        Job::deserialize(value)
            .map_err(|error| Failure::Failed(format!("the answer cannot be read: {error}")))
    }

    fn print(&self, out: &mut impl Write) -> Result<(), Failure> {
        let now = moment::now();
        let when = |at: &Instant| format!("{} ({})", at.0, moment::relative(at.0, now));
        let bound = |at: &Option<Instant>, none: &str| {
            at.as_ref().map_or_else(|| none.to_owned(), |at| at.0.to_string())
        };
        writeln!(out, "{}", label::one_line(&self.id))?;
        writeln!(out, "  endpoint   {}", label::one_line(&self.endpoint))?;
        writeln!(out, "  state      {}", label::one_line(&self.state))?;
        writeln!(out, "  replayed   {}", label::count(self.replayed))?;
        writeln!(
            out,
            "  events     from {} to {}",
            bound(&self.since, "the first"),
            bound(&self.until, "the last")
        )?;
        writeln!(out, "  rate       {} a second", self.per_second)?;
        writeln!(out, "  begun      {}", when(&self.created_at))?;
        Ok(writeln!(out, "  went on    {}", when(&self.updated_at))?)
    }
}

/// List replays, oldest first
#[derive(Debug, Args)]
pub(super) struct List {
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Continue where the last page ended
    #[arg(long, value_name = "ID")]
    after: Option<ReplayId>,
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
        let page: Value = place.get(&format!("/v1/replays?limit={}{after}", self.limit)).await?;
        if self.json {
            return Ok(writeln!(out, "{page}")?);
        }
        let jobs =
            page["data"].as_array().into_iter().flatten().map(Job::read).collect::<Result<Vec<_>, _>>()?;
        if jobs.is_empty() {
            return Ok(writeln!(out, "No replays.")?);
        }
        let now = moment::now();
        let mut table = Table::new([
            ("id", Align::Left),
            ("state", Align::Left),
            ("replayed", Align::Right),
            ("begun", Align::Left),
            ("endpoint", Align::Left),
        ]);
        for job in jobs {
            table.row([
                label::one_line(&job.id),
                label::one_line(&job.state),
                label::count(job.replayed),
                moment::relative(job.created_at.0, now),
                label::one_line(&job.endpoint),
            ]);
        }
        table.print(out, screen)?;
        if let Some(next) = page["next"].as_str() {
            let more = format!("More: redrive replay list --after {}{}", label::one_line(next), place.flag());
            writeln!(out, "{}", screen.paint(Style::Quiet, more))?;
        }
        Ok(())
    }
}

/// Show how a replay goes
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
    pub(super) async fn run(self, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
        let job: Value = place.get(&format!("/v1/replays/{}", self.id)).await?;
        if self.json {
            return Ok(writeln!(out, "{job}")?);
        }
        Job::read(&job)?.print(out)
    }
}

/// Stop a replay; what has gone to the endpoint stays gone
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
    pub(super) async fn run(self, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
        let job: Value = place.post(&format!("/v1/replays/{}/cancel", self.id), &json!({})).await?;
        if self.json {
            return Ok(writeln!(out, "{job}")?);
        }
        Job::read(&job)?.print(out)
    }
}
