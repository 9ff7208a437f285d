//! `redrive scheduler review show`: everything about one failed message.

use std::io::{self, Write};

use clap::Args;
use redrive::EventId;
use serde::Deserialize;
use serde_json::Value;

use super::reason;
use crate::api::time::Instant;
use crate::failure::Failure;
use crate::place::Place;
use crate::screen::{Screen, Style};
use crate::{label, moment, payload};

/// Show one failed message: its payload, its history, and what came of it
#[derive(Debug, Args)]
pub(super) struct Show {
    /// The task, as `list` shows it
    #[arg(value_name = "TASK")]
    id: EventId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A message as the API shows it.
#[derive(Debug, Deserialize)]
struct Shown {
    status: String,
    in_review: bool,
    message_id: String,
    original_payload: Value,
    original_queue: String,
    error_reason: String,
    retry_count: u32,
    max_retries: u32,
    due_at: Option<Instant>,
    received_at: Instant,
    first_failed_at: Instant,
    errors: Vec<String>,
    by_hand: Option<ByHand>,
    unreadable: Option<Unreadable>,
    history: Vec<Failed>,
}

/// What is stored, if nobody can read it.
#[derive(Debug, Deserialize)]
struct Unreadable {
    why: String,
    payload: Value,
}

#[derive(Debug, Deserialize)]
struct ByHand {
    decision: String,
    by: String,
    why: Option<String>,
    at: Instant,
}

/// One failure of it.
#[derive(Debug, Deserialize)]
struct Failed {
    retry_count: u32,
    received_at: Instant,
    error_reason: String,
    due_at: Instant,
    status: String,
    republished_at: Option<Instant>,
    by_hand: Option<ByHand>,
}

impl Show {
    pub(super) async fn run(
        self,
        place: &Place,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let task: Value = place.get(&format!("/v1/review/{}", self.id)).await?;
        if self.json {
            return Ok(writeln!(out, "{task}")?);
        }
        let shown = Shown::deserialize(&task)
            .map_err(|error| Failure::Failed(format!("the answer cannot be read: {error}")))?;
        shown.print(self.id, out, screen)?;
        if shown.in_review {
            let flag = place.flag();
            let queue = if shown.original_queue.is_empty() { " --queue QUEUE" } else { "" };
            let start = if shown.unreadable.is_none() {
                writeln!(out, "\nSend it back: redrive scheduler review retry {}{queue}{flag}", self.id)?;
                ""
            } else {
                "\n"
            };
            writeln!(
                out,
                "{start}Give it up:   redrive scheduler review discard {} --why '…'{flag}",
                self.id
            )?;
        }
        Ok(())
    }
}

impl Shown {
    fn print(&self, id: EventId, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        let now = moment::now();
        let when = |at: &Instant| format!("{} ({})", at.0, moment::relative(at.0, now));
        let (style, status) = match (self.in_review, self.status.as_str()) {
            (true, _) => (Style::Bad, "in review"),
            (false, "retried") => (Style::Good, "retried"),
            (false, "pending") => (Style::Load, "pending"),
            (false, status) => (Style::Quiet, status),
        };
        let title = format!("{} {id}", label::one_line(&self.message_id));
        writeln!(out, "{}", screen.paint(Style::Strong, title))?;
        writeln!(out, "  status        {}", screen.paint(style, label::one_line(status)))?;
        let queue = if self.original_queue.is_empty() { "(not known)" } else { &self.original_queue };
        writeln!(out, "  queue         {}", label::one_line(queue))?;
        writeln!(out, "  retries       {} of {}", self.retry_count, self.max_retries)?;
        writeln!(out, "  failed with   {}", label::one_line(&self.error_reason))?;
        writeln!(out, "  first failed  {}", when(&self.first_failed_at))?;
        writeln!(out, "  last failed   {}", when(&self.received_at))?;
        if let Some(due) = &self.due_at {
            writeln!(out, "  due           {}", when(due))?;
        }
        for error in self.errors.iter().rev().take(1) {
            writeln!(out, "  why here      {}", label::one_line(reason(error)))?;
        }
        if let Some(by_hand) = &self.by_hand {
            writeln!(out, "  decided       {}", by_hand.text())?;
        }
        if let Some(Unreadable { why, payload }) = &self.unreadable {
            writeln!(out, "  unreadable    {}", label::one_line(why))?;
            writeln!(out, "\n{}", screen.paint(Style::Quiet, "as it is stored"))?;
            return writeln!(out, "{}", payload::pretty(&payload.to_string()));
        }
        writeln!(out, "\n{}", screen.paint(Style::Quiet, "payload"))?;
        writeln!(out, "{}", self.payload())?;
        writeln!(out, "\n{}", screen.paint(Style::Quiet, "history"))?;
        for failed in &self.history {
            failed.print(out)?;
        }
        Ok(())
    }

    /// Readable where it can be.
    fn payload(&self) -> String {
        match (self.original_payload["text"].as_str(), self.original_payload["base64"].as_str()) {
            (Some(text), _) if serde_json::from_str::<Value>(text).is_ok() => payload::pretty(text),
            (Some(text), _) => text.lines().map(label::one_line).collect::<Vec<_>>().join("\n"),
            (None, base64) => format!("(base64) {}", base64.unwrap_or_default()),
        }
    }
}

impl ByHand {
    fn text(&self) -> String {
        let why = self.why.as_ref().map_or_else(String::new, |why| format!(": {}", label::one_line(why)));
        let (decision, by) = (label::one_line(&self.decision), label::one_line(&self.by));
        format!("{decision} by {by} at {}{why}", self.at.0)
    }
}

impl Failed {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let came = match (&self.by_hand, &self.republished_at) {
            (Some(by_hand), _) => by_hand.text(),
            (None, Some(at)) => format!("back in its queue {}", at.0),
            (None, None) if self.status == "pending" => format!("goes back {}", self.due_at.0),
            (None, None) => "brought to review".to_owned(),
        };
        let reason = label::one_line(&self.error_reason);
        writeln!(out, "  {}. {}  {reason}", self.retry_count, self.received_at.0)?;
        writeln!(out, "     {came}")
    }
}
