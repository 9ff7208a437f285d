//! `redrive dlq groups`: dead events by what killed them.

use std::io::Write;

use clap::Args;
use redrive::DlqGroup;
use serde::Serialize;

use super::filter_args::FilterArgs;
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::screen::{Screen, Style};
use crate::{label, moment};

/// Group dead events by what killed them, largest group first
#[derive(Debug, Args)]
#[command(after_help = "\
Numbers, ids and quoted parts of an error are left out, so that errors of one kind are one group. Use its fingerprint \
with --fingerprint in list, retry and export.")]
pub(crate) struct Groups {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

#[derive(Debug, Serialize)]
struct Answer {
    groups: Vec<DlqGroup>,
}

impl Groups {
    pub(crate) async fn run(
        &self,
        ledger: &Ledger,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let groups = ledger.groups(&self.filter.filter()).await?;
        if self.json {
            serde_json::to_writer(&mut *out, &Answer { groups })?;
            return Ok(writeln!(out)?);
        }
        if groups.is_empty() {
            let none = if self.filter.is_set() {
                "No dead event matches."
            } else {
                "The dead-letter queue is empty."
            };
            return Ok(writeln!(out, "{none}")?);
        }
        let now = moment::now();
        let widest = groups.iter().map(|group| label::count(group.count).len()).max().unwrap_or(0);
        let room = screen.width.saturating_sub(widest + 2);
        for group in &groups {
            let count = format!("{:>widest$}", label::count(group.count));
            let example = label::cut(&label::one_line(&group.example), room);
            writeln!(out, "{}  {example}", screen.paint(Style::Strong, count))?;
            let since = moment::relative(group.first_at, now);
            let last = moment::relative(group.last_at, now);
            let when = if since == last { last } else { format!("{since} to {last}") };
            let about = format!("{when}; --fingerprint {}", quoted(&group.fingerprint));
            writeln!(out, "{}  {}", " ".repeat(widest), screen.paint(Style::Quiet, about))?;
        }
        Ok(())
    }
}

/// For a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", label::one_line(text).replace('\'', r"'\''"))
}
