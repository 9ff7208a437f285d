//! `redrive replay list`, `show` and `cancel`.

use redrive_api::replays::{Replay, ReplayState};
use redrive_api::time::Time;

use crate::api::{PageArgs, Session, relative, when};
use crate::failure::Failure;
use crate::format;
use crate::screen::Style;
use crate::table::Table;

pub(super) async fn list(page: PageArgs, api: &mut Session<'_>) -> Result<(), Failure> {
    let page = page.collect(async |page| api.replays().list(page).await).await?;
    api.page(page, "replay list", "No replays.", |api, jobs| {
        let row = |job: &Replay| {
            [
                format::one_line(&job.id),
                format::one_line(job.state.as_str()),
                format::count(job.replayed),
                relative(job.created_at),
                format::one_line(&job.endpoint),
            ]
        };
        let heading = ["id", "state", "replayed", "started", "endpoint"];
        let style = |job: &Replay| match job.state {
            ReplayState::Done => Style::Good,
            ReplayState::Running => Style::Load,
            _ => Style::Quiet,
        };
        let table = Table::new(heading, jobs.iter().map(row)).right(&[2]).whole(&[0, 4]);
        table.styles(1, jobs.iter().map(style)).print(api.out, api.screen)
    })
}

/// Prints the state of a replay.
pub(super) fn print(api: &mut Session<'_>, job: Replay) -> Result<(), Failure> {
    let bound = |at: Option<Time>, none: &str| at.map_or_else(|| none.to_owned(), |at| at.to_string());
    let (since, until) = (bound(job.since, "the first"), bound(job.until, "the last"));
    api.details(
        &format::one_line(&job.id),
        [
            ("endpoint", Some(format::one_line(&job.endpoint))),
            ("state", Some(format::one_line(job.state.as_str()))),
            ("replayed", Some(format::count(job.replayed))),
            ("events", Some(format!("from {since} to {until}"))),
            ("rate", Some(format!("{} a second", job.per_second))),
            ("started", Some(when(job.created_at))),
            ("changed", Some(when(job.updated_at))),
        ],
    )?;
    Ok(())
}
