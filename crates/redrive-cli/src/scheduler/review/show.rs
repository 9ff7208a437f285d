//! `redrive scheduler review show`: shows one failed message with its history.

use std::io::{self, Write};

use clap::Args;
use redrive::EventId;
use redrive_api::review::{ManualDecision, MessagePayload, ReviewTask, TaskStatus};
use redrive_api::time::Time;

use super::reason;
use crate::api::{Api, write_json};
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::{format, payload, time_format};

/// Show one failed message: payload, history and decision
#[derive(Debug, Args)]
pub(super) struct Show {
    /// The task, as `list` shows it
    #[arg(value_name = "TASK")]
    id: EventId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let task = api.review().get(*self.id.as_uuid()).await?;
        if self.json {
            return write_json(out, &task);
        }
        print(&task, out, screen)?;
        if task.in_review {
            let (id, flag) = (self.id, api.flag());
            writeln!(out)?;
            if task.unreadable.is_none() {
                let queue = if task.original_queue.is_empty() { " --queue QUEUE" } else { "" };
                writeln!(out, "Republish it: redrive scheduler review retry {id}{queue}{flag}")?;
            }
            writeln!(out, "Discard it:   redrive scheduler review discard {id} --why '…'{flag}")?;
        }
        Ok(())
    }
}

fn print(task: &ReviewTask, out: &mut impl Write, screen: Screen) -> io::Result<()> {
    let now = time_format::now();
    let when = |at: Time| format!("{at} ({})", time_format::relative(at.0, now));
    let (style, status) = match (task.in_review, &task.status) {
        (true, _) => (Style::Bad, "in review"),
        (false, TaskStatus::Retried) => (Style::Good, "retried"),
        (false, TaskStatus::Pending) => (Style::Load, "pending"),
        (false, status) => (Style::Quiet, status.as_str()),
    };
    let title = format!("{} {}", format::one_line(&task.message_id), task.id);
    writeln!(out, "{}", screen.paint(Style::Strong, title))?;
    writeln!(out, "  status        {}", screen.paint(style, format::one_line(status)))?;
    let queue = if task.original_queue.is_empty() { "(unknown)" } else { &task.original_queue };
    writeln!(out, "  queue         {}", format::one_line(queue))?;
    writeln!(out, "  retries       {} of {}", task.retry_count, task.max_retries)?;
    writeln!(out, "  failed with   {}", format::one_line(&task.error_reason))?;
    writeln!(out, "  first failed  {}", when(task.first_failed_at))?;
    writeln!(out, "  last failed   {}", when(task.received_at))?;
    if let Some(due) = task.due_at {
        writeln!(out, "  due           {}", when(due))?;
    }
    if let Some(error) = task.errors.last() {
        writeln!(out, "  reason        {}", format::one_line(reason(error)))?;
    }
    if let Some(by_hand) = &task.by_hand {
        writeln!(out, "  decided       {}", decided(by_hand))?;
    }
    if let Some(unreadable) = &task.unreadable {
        writeln!(out, "  unreadable    {}", format::one_line(&unreadable.why))?;
        writeln!(out, "\n{}", screen.paint(Style::Quiet, "as it is stored"))?;
        return writeln!(out, "{}", payload::pretty(&unreadable.payload.to_string()));
    }
    writeln!(out, "\n{}", screen.paint(Style::Quiet, "payload"))?;
    writeln!(out, "{}", body(&task.original_payload))?;
    writeln!(out, "\n{}", screen.paint(Style::Quiet, "history"))?;
    for failed in &task.history {
        let result = match (&failed.by_hand, failed.republished_at) {
            (Some(by_hand), _) => decided(by_hand),
            (None, Some(at)) => format!("republished {at}"),
            (None, None) if failed.status == TaskStatus::Pending => format!("due {}", failed.due_at),
            (None, None) => "moved to review".to_owned(),
        };
        let reason = format::one_line(&failed.error_reason);
        writeln!(out, "  {}. {}  {reason}\n     {result}", failed.retry_count, failed.received_at)?;
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
