//! `redrive dlq groups`: groups dead letters by error fingerprint.

use clap::Args;

use super::filter_args::FilterArgs;
use crate::api::{Session, relative};
use crate::failure::Failure;
use crate::format;
use crate::screen::Style;

/// Group dead letters by error, largest group first
#[derive(Debug, Args)]
#[command(after_help = "\
A fingerprint leaves out numbers, ids and quoted parts of an error, so that errors of one kind are one group. Use it \
with --fingerprint in list, retry and export.")]
pub(crate) struct Groups {
    #[command(flatten)]
    filter: FilterArgs,
}

impl Groups {
    pub(crate) async fn run(&self, api: &mut Session<'_>) -> Result<(), Failure> {
        let groups = api.dlq().groups(&self.filter.filter()).await?;
        api.print_response(groups, |api, groups| {
            let (out, screen) = (&mut *api.out, api.screen);
            if groups.data.is_empty() {
                return Ok(writeln!(out, "{}", self.filter.none())?);
            }
            let counts = || groups.data.iter().map(|group| format::count(group.count));
            let widest = counts().map(|count| count.len()).max().unwrap_or(0);
            let width = screen.width.saturating_sub(widest + 2);
            for (group, count) in groups.data.iter().zip(counts()) {
                let example = screen.cut(&format::one_line(&group.example), width);
                let count = screen.paint(Style::Strong, format!("{count:>widest$}"));
                writeln!(out, "{count}  {example}")?;
                let [since, last] = [group.first_at, group.last_at].map(relative);
                let when = if since == last { last } else { format!("{since} to {last}") };
                let about = format!("{when}; --fingerprint {}", quoted(&group.fingerprint));
                writeln!(out, "{}  {}", " ".repeat(widest), screen.paint(Style::Quiet, about))?;
            }
            Ok(())
        })
    }
}

/// Quotes a text for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", format::one_line(text).replace('\'', r"'\''"))
}
