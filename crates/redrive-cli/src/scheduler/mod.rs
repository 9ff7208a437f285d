//! `redrive scheduler`: starts the retry scheduler, and works on its review queue.

mod review;

use std::io::Write;

use clap::{Args, Subcommand};
use redrive_server::scheduler::{self, SchedulerArgs};

use self::review::ReviewCommand;
use crate::failure::Failure;
use crate::screen::Screen;

const EXAMPLES: &str = "\
Examples:
  redrive scheduler                               RabbitMQ on this machine, tasks in redrive.db
  RABBITMQ_URL=amqp://anna:secret@host DATABASE_URL=postgres://anna:secret@host/shop redrive scheduler
  NATS_URL=nats://anna:secret@host redrive scheduler
  redrive scheduler --queue orders=base_delay:5s,max_retries:8
  redrive scheduler review list                   messages in manual review

Consumes failed messages from the queue retry.scheduled, stores them, and republishes each to its original queue after its backoff. \
Messages without retries left go to manual-review.pending. The database is --db, DATABASE_URL, REDRIVE_DB, or redrive.db in this \
folder. SIGTERM and SIGINT stop the scheduler after it has finished the work in flight.";

/// Retry failed broker messages after a delay, then hand them to manual review
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = false)]
pub(crate) struct Scheduler {
    #[command(subcommand)]
    command: Option<SchedulerCommand>,
    #[command(flatten)]
    args: SchedulerArgs,
}

#[derive(Debug, Subcommand)]
enum SchedulerCommand {
    Review(ReviewCommand),
}

impl Scheduler {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        match self.command {
            Some(SchedulerCommand::Review(review)) => review.run(&self.args.database.db, out, screen),
            None => scheduler::run(self.args, out),
        }
    }
}
