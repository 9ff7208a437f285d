//! `redrive scheduler review list`.

use std::io::Write;

use clap::Args;
use redrive_api::page::PageQuery;

use super::reason;
use crate::api::{Api, write_json};
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::table::{Align, Table};
use crate::{format, time_format};

/// List the messages in review, newest first
#[derive(Debug, Args)]
pub(super) struct List {
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Continue after the last page
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Longer names are cut, so that the reason is on the screen.
const MAX_NAME_WIDTH: usize = 24;

impl List {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let page = api.review().list(&PageQuery { limit: Some(self.limit), after: self.after }).await?;
        if self.json {
            return write_json(out, &page);
        }
        if page.data.is_empty() {
            return Ok(writeln!(out, "The review queue is empty.")?);
        }
        let now = time_format::now();
        let mut table = Table::new([
            ("task", Align::Left),
            ("queue", Align::Left),
            ("retries", Align::Right),
            ("since", Align::Left),
            ("message", Align::Left),
            ("why", Align::Left),
        ]);
        for task in &page.data {
            let queue = if task.original_queue.is_empty() { "-" } else { &task.original_queue };
            table.row([
                task.id.to_string(),
                format::cut(&format::one_line(queue), MAX_NAME_WIDTH),
                format!("{} of {}", task.retry_count, task.max_retries),
                time_format::relative(task.reviewed_at.0, now),
                format::cut(&format::one_line(&task.message_id), MAX_NAME_WIDTH),
                format::one_line(reason(&task.why)),
            ]);
        }
        table.print(out, screen)?;
        if let Some(next) = &page.next {
            let (next, flag) = (format::one_line(next), api.flag());
            let more = format!("More: redrive scheduler review list --after {next}{flag}");
            writeln!(out, "{}", screen.paint(Style::Quiet, more))?;
        }
        Ok(())
    }
}
