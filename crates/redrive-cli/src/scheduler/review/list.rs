//! `redrive scheduler review list`.

use redrive_api::review::ReviewSummary;

use super::filter::FilterArgs;
use super::{reason, retries};
use crate::api::{PageArgs, Session, relative};
use crate::failure::Failure;
use crate::format;
use crate::table::Table;

pub(super) async fn list(page: PageArgs, filter: &FilterArgs, api: &mut Session<'_>) -> Result<(), Failure> {
    let page = filter.collect(page, api).await?;
    api.page(page, "scheduler review list", filter.none(), |api, tasks| {
        let row = |task: &ReviewSummary| {
            let queue = if task.original_queue.is_empty() { "-" } else { &task.original_queue };
            [
                task.id.to_string(),
                format::one_line(queue),
                retries(task.retry_count, task.max_retries),
                relative(task.reviewed_at),
                format::one_line(&task.message_id),
                format::one_line(reason(&task.why)),
            ]
        };
        let heading = ["task", "queue", "retries", "since", "message", "why"];
        Table::new(heading, tasks.iter().map(row)).whole(&[0, 4]).print(api.out, api.screen)
    })
}
