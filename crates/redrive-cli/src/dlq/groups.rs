//! `redrive dlq groups`: groups dead letters by target and error fingerprint.

use clap::Args;

use super::filter_args::FilterArgs;
use crate::api::{Session, relative};
use crate::failure::Failure;
use crate::format;
use crate::screen::Style;

/// Group dead letters by target and error, largest group first
#[derive(Debug, Args)]
#[command(after_help = "\
The target is the endpoint or subscription that failed. A fingerprint leaves out numbers, ids and quoted parts of an error, so \
that errors of one kind are one group; an HTTP status is kept. Select a group with --subscription and --fingerprint in list, retry \
and export.")]
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
                let target = group.target.as_deref().map_or_else(String::new, |target| format!("{target}: "));
                let example = screen.cut(&format::one_line(&format!("{target}{}", group.example)), width);
                let count = screen.paint(Style::Strong, format!("{count:>widest$}"));
                writeln!(out, "{count}  {example}")?;
                let [since, last] = [group.first_at, group.last_at].map(relative);
                let when = if since == last { last } else { format!("{since} to {last}") };
                let types = format::one_line(&group.types.join(", "));
                let about = format!("{types}; {when}; such as {}", group.example_id);
                let target =
                    group.target.as_deref().map(|target| format!("--subscription {} ", quoted(target)));
                let filter =
                    format!("{}--fingerprint {}", target.unwrap_or_default(), quoted(&group.fingerprint));
                for line in [about, filter] {
                    writeln!(out, "{}  {}", " ".repeat(widest), screen.paint(Style::Quiet, line))?;
                }
            }
            Ok(())
        })
    }
}

/// Quotes a text for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", format::one_line(text).replace('\'', r"'\''"))
}
