//! `redrive dlq list`: lists dead letters, newest first.

use clap::Args;

use super::filter_args::FilterArgs;
use crate::api::{PageArgs, Session, relative};
use crate::failure::Failure;
use crate::format;
use crate::screen::Style;

/// List dead letters, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive dlq list --type order.created --since 1h
  redrive dlq list --json | jq -r .data[].id")]
pub(crate) struct List {
    #[command(flatten)]
    page: PageArgs,
    #[command(flatten)]
    filter: FilterArgs,
}

impl List {
    pub(super) async fn run(self, api: &mut Session<'_>) -> Result<(), Failure> {
        let filter = self.filter.filter();
        let page = self.page.collect(async |page| api.dlq().list(&filter, page).await).await?;
        api.page(page, "dlq list", self.filter.none(), |api, letters| {
            let (out, screen) = (&mut *api.out, api.screen);
            for dead in letters {
                let died = relative(dead.dlq_at);
                let by = dead.subscription.as_ref().map_or_else(String::new, |name| format!(" by {name}"));
                let failures = failures(&dead.reason, &dead.errors);
                let about = format::one_line(&format!("{} {died}{by}, {failures}", dead.event_type));
                let about = screen.cut(&about.replacen(' ', "  ", 1), screen.width.saturating_sub(38));
                writeln!(out, "{}  {about}", screen.paint(Style::Strong, dead.id))?;
                let error = format::one_line(dead.errors.last().unwrap_or(&dead.reason));
                let error = screen.cut(&error, screen.width.saturating_sub(2));
                writeln!(out, "  {}", screen.paint(Style::Bad, error))?;
            }
            Ok(())
        })
    }
}

/// Says after how many attempts, or why, an event was dead-lettered.
pub(super) fn failures(reason: &str, errors: &[String]) -> String {
    match reason {
        "permanent" => "at once: permanent".to_owned(),
        "attempts_exhausted" => format!("after {}", format::counted(errors.len() as u64, "attempt")),
        other => format::one_line(other),
    }
}
