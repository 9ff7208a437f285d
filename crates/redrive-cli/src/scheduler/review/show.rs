//! `redrive scheduler review show`: shows one failed message with its history.

use std::io;

use redrive::EventId;
use redrive_api::review::{ManualDecision, MessagePayload, ReviewTask, TaskStatus};

use super::{reason, retries};
use crate::api::{Session, when};
use crate::failure::Failure;
use crate::screen::Style;
use crate::{format, payload};

pub(super) async fn show(id: EventId, api: &mut Session<'_>) -> Result<(), Failure> {
    let task = api.review().get(*id.as_uuid()).await?;
    api.print_response(task, |api, task| {
        print(&task, api)?;
        if !task.in_review {
            return Ok(());
        }
        writeln!(api.out)?;
        if task.unreadable.is_none() {
            let queue = if task.original_queue.is_empty() { " --queue QUEUE" } else { "" };
            writeln!(api.out, "Republish it: redrive scheduler review retry {id}{queue}{}", api.flag)?;
        }
        let flag = &api.flag;
        Ok(writeln!(api.out, "Discard it:   redrive scheduler review discard {id} --why '…'{flag}")?)
    })
}

fn print(task: &ReviewTask, api: &mut Session<'_>) -> io::Result<()> {
    let (style, status) = match (task.in_review, &task.status) {
        (true, _) => (Style::Bad, "in review"),
        (false, TaskStatus::Retried) => (Style::Good, "retried"),
        (false, TaskStatus::Pending) => (Style::Load, "pending"),
        (false, status) => (Style::Quiet, status.as_str()),
    };
    let status = api.screen.paint(style, format::one_line(status));
    let queue = if task.original_queue.is_empty() { "(unknown)" } else { &task.original_queue };
    api.details(
        &format!("{} {}", format::one_line(&task.message_id), task.id),
        [
            ("status", Some(status)),
            ("queue", Some(format::one_line(queue))),
            ("retries", Some(retries(task.retry_count, task.max_retries))),
            ("failed with", Some(format::one_line(&task.error_reason))),
            ("first failed", Some(when(task.first_failed_at))),
            ("last failed", Some(when(task.received_at))),
            ("due", task.due_at.map(when)),
            ("reason", task.errors.last().map(|error| format::one_line(reason(error)))),
            ("decided", task.by_hand.as_ref().map(decided)),
            ("unreadable", task.unreadable.as_ref().map(|unreadable| format::one_line(&unreadable.why))),
        ],
    )?;
    if let Some(unreadable) = &task.unreadable {
        api.section("as it is stored")?;
        return writeln!(api.out, "{}", payload::pretty(&unreadable.payload.to_string()));
    }
    api.section("payload")?;
    writeln!(api.out, "{}", body(&task.original_payload))?;
    api.section("history")?;
    for failed in &task.history {
        let result = match (&failed.by_hand, failed.republished_at) {
            (Some(by_hand), _) => decided(by_hand),
            (None, Some(at)) => format!("republished {at}"),
            (None, None) if failed.status == TaskStatus::Pending => format!("due {}", failed.due_at),
            (None, None) => "moved to review".to_owned(),
        };
        let reason = format::one_line(&failed.error_reason);
        writeln!(api.out, "  {}. {}  {reason}\n     {result}", failed.retry_count, failed.received_at)?;
    }
    Ok(())
}

/// The body as text where it is text.
fn body(body: &MessagePayload) -> String {
    match body {
        MessagePayload::Text(text) if payload::parse(text).is_ok() => payload::pretty(text),
        MessagePayload::Text(text) => text.lines().map(format::one_line).collect::<Vec<_>>().join("\n"),
        MessagePayload::Base64(bytes) => format!("(base64) {bytes}"),
    }
}

fn decided(by_hand: &ManualDecision) -> String {
    let ManualDecision { decision, by, why, at } = by_hand;
    let why = why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    format::one_line(&format!("{decision} by {by} at {at}{why}"))
}
