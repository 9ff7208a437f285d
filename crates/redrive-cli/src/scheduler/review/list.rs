//! `redrive scheduler review list`.

use redrive_api::review::ReviewSummary;

use super::reason;
use crate::api::{PageArgs, Session, relative};
use crate::failure::Failure;
use crate::format;
use crate::table::Table;

/// Longer names are cut, so that the reason is on the screen.
const MAX_NAME_WIDTH: usize = 24;

pub(super) async fn list(page: PageArgs, api: &mut Session<'_>) -> Result<(), Failure> {
    let page = page.collect(async |page| api.review().list(page).await).await?;
    api.page(page, "scheduler review list", "The review queue is empty.", |api, tasks| {
        let row = |task: &ReviewSummary| {
            let queue = if task.original_queue.is_empty() { "-" } else { &task.original_queue };
            [
                task.id.to_string(),
                format::cut(&format::one_line(queue), MAX_NAME_WIDTH),
                format!("{} of {}", task.retry_count, task.max_retries),
                relative(task.reviewed_at),
                format::cut(&format::one_line(&task.message_id), MAX_NAME_WIDTH),
                format::one_line(reason(&task.why)),
            ]
        };
        let heading = ["task", "queue", "retries", "since", "message", "why"];
        Table::new(heading, tasks.iter().map(row)).right(&[2]).print(api.out, api.screen)
    })
}
