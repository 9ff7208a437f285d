//! `redrive dlq groups`: groups dead letters by error fingerprint.

use std::io::Write;

use clap::Args;

use super::filter_args::FilterArgs;
use crate::api::{Api, write_json};
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::{format, time_format};

/// Group dead letters by error, largest group first
#[derive(Debug, Args)]
#[command(after_help = "\
A fingerprint leaves out numbers, ids and quoted parts of an error, so that errors of one kind are one group. Use it \
with --fingerprint in list, retry and export.")]
pub(crate) struct Groups {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

impl Groups {
    pub(crate) async fn run(&self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let groups = api.dlq().groups(&self.filter.filter()).await?;
        if self.json {
            return write_json(out, &groups);
        }
        let groups = groups.data;
        if groups.is_empty() {
            let none = if self.filter.is_set() {
                "No dead letter matches."
            } else {
                "The dead-letter queue is empty."
            };
            return Ok(writeln!(out, "{none}")?);
        }
        let now = time_format::now();
        let widest = groups.iter().map(|group| format::count(group.count).len()).max().unwrap_or(0);
        let room = screen.width.saturating_sub(widest + 2);
        for group in &groups {
            let count = format!("{:>widest$}", format::count(group.count));
            let example = format::cut(&format::one_line(&group.example), room);
            writeln!(out, "{}  {example}", screen.paint(Style::Strong, count))?;
            let since = time_format::relative(group.first_at.0, now);
            let last = time_format::relative(group.last_at.0, now);
            let when = if since == last { last } else { format!("{since} to {last}") };
            let about = format!("{when}; --fingerprint {}", quoted(&group.fingerprint));
            writeln!(out, "{}  {}", " ".repeat(widest), screen.paint(Style::Quiet, about))?;
        }
        Ok(())
    }
}

/// Quotes a text for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", format::one_line(text).replace('\'', r"'\''"))
}
