//! `redrive scheduler review groups`: groups messages in review by queue and error.

use std::collections::BTreeMap;

use redrive_api::review::ReviewSummary;
use redrive_api::time::Time;
use serde::Serialize;
use uuid::Uuid;

use super::filter::FilterArgs;
use super::reason;
use crate::api::{PageArgs, Session, relative};
use crate::failure::Failure;
use crate::format;
use crate::table::Table;

/// Messages in review of one queue, with one error and one reason.
#[derive(Debug, Serialize)]
struct Group {
    count: u64,
    original_queue: String,
    error_reason: String,
    why: String,
    /// When the first and the last of them moved to review.
    first_at: Time,
    last_at: Time,
    /// One of the messages.
    example_id: Uuid,
}

#[derive(Debug, Serialize)]
struct Groups {
    data: Vec<Group>,
}

pub(super) async fn groups(filter: &FilterArgs, api: &mut Session<'_>) -> Result<(), Failure> {
    let tasks = filter.collect(PageArgs::ALL, api).await?.data;
    api.print_response(Groups { data: grouped(tasks) }, |api, groups| {
        if groups.data.is_empty() {
            return Ok(writeln!(api.out, "{}", filter.none())?);
        }
        let row = |group: &Group| {
            [
                format::count(group.count),
                format::one_line(if group.original_queue.is_empty() { "-" } else { &group.original_queue }),
                format::one_line(&group.error_reason),
                format::one_line(reason(&group.why)),
                relative(group.first_at),
                relative(group.last_at),
                group.example_id.to_string(),
            ]
        };
        let heading = ["count", "queue", "error", "why", "first", "last", "example"];
        let table = Table::new(heading, groups.data.iter().map(row)).right(&[0]).whole(&[6]);
        Ok(table.print(api.out, api.screen)?)
    })
}

/// Groups the messages, the largest group first.
fn grouped(tasks: Vec<ReviewSummary>) -> Vec<Group> {
    let mut groups = BTreeMap::<_, Group>::new();
    for task in tasks {
        let key = (task.original_queue.clone(), task.error_reason.clone(), task.why.clone());
        let group = groups.entry(key).or_insert_with(|| Group {
            count: 0,
            original_queue: task.original_queue,
            error_reason: task.error_reason,
            why: task.why,
            first_at: task.reviewed_at,
            last_at: task.reviewed_at,
            example_id: task.id,
        });
        group.count += 1;
        group.first_at = group.first_at.min(task.reviewed_at);
        group.last_at = group.last_at.max(task.reviewed_at);
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups
}
