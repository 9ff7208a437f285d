//! `redrive scheduler review list`.

use std::io::Write;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::reason;
use crate::api::time::Instant;
use crate::failure::Failure;
use crate::place::Place;
use crate::screen::{Screen, Style};
use crate::table::{Align, Table};
use crate::{label, moment};

/// List the messages that wait for a person, the newest first
#[derive(Debug, Args)]
pub(super) struct List {
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Continue where the last page ended
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Names that are longer are cut, so that the reason is on the screen.
const WIDEST: usize = 24;

/// A message as the API lists it.
#[derive(Debug, Deserialize)]
struct Row {
    id: String,
    message_id: String,
    original_queue: String,
    why: String,
    retry_count: u32,
    max_retries: u32,
    reviewed_at: Instant,
}

/// A page as the API gives it.
#[derive(Debug, Deserialize)]
struct Rows {
    data: Vec<Row>,
    next: Option<String>,
}

impl List {
    pub(super) async fn run(
        self,
        place: &Place,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let after = self.after.map_or_else(String::new, |cursor| {
            let safe = percent_encoding::utf8_percent_encode(&cursor, percent_encoding::NON_ALPHANUMERIC);
            format!("&after={safe}")
        });
        let page: Value = place.get(&format!("/v1/review?limit={}{after}", self.limit)).await?;
        if self.json {
            return Ok(writeln!(out, "{page}")?);
        }
        let Rows { data, next } = Rows::deserialize(&page)
            .map_err(|error| Failure::Failed(format!("the answer cannot be read: {error}")))?;
        if data.is_empty() {
            return Ok(writeln!(out, "Nothing waits for a person.")?);
        }
        let now = moment::now();
        let mut table = Table::new([
            ("task", Align::Left),
            ("queue", Align::Left),
            ("retries", Align::Right),
            ("since", Align::Left),
            ("message", Align::Left),
            ("why", Align::Left),
        ]);
        for row in data {
            let queue = if row.original_queue.is_empty() { "-" } else { &row.original_queue };
            table.row([
                label::one_line(&row.id),
                label::cut(&label::one_line(queue), WIDEST),
                format!("{} of {}", row.retry_count, row.max_retries),
                moment::relative(row.reviewed_at.0, now),
                label::cut(&label::one_line(&row.message_id), WIDEST),
                label::one_line(reason(&row.why)),
            ]);
        }
        table.print(out, screen)?;
        if let Some(next) = next {
            let more = format!(
                "More: redrive scheduler review list --after {}{}",
                label::one_line(&next),
                place.flag()
            );
            writeln!(out, "{}", screen.paint(Style::Quiet, more))?;
        }
        Ok(())
    }
}
