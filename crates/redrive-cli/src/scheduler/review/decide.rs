//! `redrive scheduler review retry` and `discard`: decides about one message, or about all that a filter selects.

use clap::Args;
use redrive::EventId;
use redrive_api::client;
use redrive_api::review::{DecidedMessage, DiscardMessage, ReleaseMessage};
use serde::Serialize;
use uuid::Uuid;

use super::filter::FilterArgs;
use crate::api::{PageArgs, Session};
use crate::confirm::is_meant;
use crate::failure::Failure;
use crate::format;

/// Names one message in review, or selects many.
#[derive(Debug, Args)]
pub(super) struct Selection {
    /// The task, as `list` shows it
    #[arg(value_name = "TASK", required_unless_present = "all", conflicts_with = "all")]
    id: Option<EventId>,
    /// Every message that the filter selects; without a filter, all of them
    #[arg(long)]
    all: bool,
    /// With --all: count the messages and change nothing
    #[arg(long, requires = "all")]
    dry_run: bool,
    /// With --all: do not ask
    #[arg(long, requires = "all")]
    yes: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Decision about the messages.
#[derive(Debug)]
pub(super) enum Verb {
    /// Republish, to this queue or to the original one.
    Retry { queue: Option<String> },
    /// Discard, with the reason.
    Discard { why: Option<String> },
}

/// Result of a decision about many messages.
#[derive(Debug, Serialize)]
struct Report {
    matched: u64,
    decided: u64,
}

impl Verb {
    async fn apply(&self, id: Uuid, api: &Session<'_>) -> client::Result<DecidedMessage> {
        match self {
            Verb::Retry { queue } => api.review().retry(id, &ReleaseMessage { queue: queue.clone() }).await,
            Verb::Discard { why } => api.review().discard(id, &DiscardMessage { why: why.clone() }).await,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Verb::Retry { .. } => "republish",
            Verb::Discard { .. } => "discard",
        }
    }

    fn participle(&self) -> &'static str {
        match self {
            Verb::Retry { .. } => "republished",
            Verb::Discard { .. } => "discarded",
        }
    }

    /// Says what happens to these messages. The decision is stored; the scheduler republishes them afterwards.
    fn done(&self, number: u64, messages: &str) -> String {
        let (go, their, are) =
            if number == 1 { ("goes", "its queue", "is") } else { ("go", "their queues", "are") };
        match self {
            Verb::Retry { queue } => {
                let queue = queue.as_deref().map_or_else(|| their.to_owned(), format::one_line);
                format!("{messages} {go} to {queue} again.")
            }
            Verb::Discard { .. } => format!("{messages} {are} discarded."),
        }
    }
}

impl Selection {
    /// Checks the flags before the database is opened.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if !self.all && self.filter.is_set() {
            return Err(Failure::Usage("a filter goes with --all, not with a single task".to_owned()));
        }
        Ok(())
    }

    pub(super) async fn decide(self, verb: &Verb, api: &mut Session<'_>) -> Result<(), Failure> {
        let Some(id) = self.id else { return self.all(verb, api).await };
        let decided = verb.apply(*id.as_uuid(), api).await?;
        api.print_response(decided, |api, _| Ok(writeln!(api.out, "{}", verb.done(1, &id.to_string()))?))
    }

    /// Decides about every selected message. One that fails does not stop the others.
    async fn all(&self, verb: &Verb, api: &mut Session<'_>) -> Result<(), Failure> {
        let tasks = self.filter.collect(PageArgs::ALL, api).await?.data;
        let matched = tasks.len() as u64;
        let messages = format::counted(matched, "message");
        let is_refused = || Ok::<_, Failure>(!self.yes && !is_meant(&format!("{} {messages}", verb.name()))?);
        if self.dry_run || matched > 0 && is_refused()? {
            return api.print_response(Report { matched, decided: 0 }, |api, _| {
                let name = verb.name();
                Ok(writeln!(api.out, "would {name} {messages}; nothing was changed")?)
            });
        }
        let (mut decided, mut failed) = (0, Vec::new());
        for task in &tasks {
            match verb.apply(task.id, api).await {
                Ok(_) => decided += 1,
                Err(error) => failed.push(format!("{}: {}", task.id, Failure::from(error).into_message())),
            }
        }
        api.print_response(Report { matched, decided }, |api, _| {
            let text = match matched {
                0 => self.filter.none().to_owned(),
                _ => verb.done(decided, &format::counted(decided, "message")),
            };
            Ok(writeln!(api.out, "{text}")?)
        })?;
        match failed.as_slice() {
            [] => Ok(()),
            [one] => Err(Failure::Failed(format!("1 message was not {}: {one}", verb.participle()))),
            [first, ..] => {
                let number = format::counted(failed.len() as u64, "message");
                Err(Failure::Failed(format!("{number} were not {}; the first: {first}", verb.participle())))
            }
        }
    }
}
