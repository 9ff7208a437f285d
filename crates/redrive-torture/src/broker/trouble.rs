//! Troubles: faults of schedulers, of RabbitMQ and of PostgreSQL.

use std::time::Duration;

use clap::ValueEnum;

use super::servers::Servers;
use crate::dice::Dice;

/// A fault that is repeated.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Trouble {
    /// Schedulers die at any moment.
    Kills,
    /// A scheduler dies between each pair of receive, commit, ack, publish, confirm and mark.
    Steps,
    /// RabbitMQ dies and comes back.
    Crashes,
    /// RabbitMQ ends all connections.
    Cuts,
    /// RabbitMQ is out of memory for a while, and takes nothing.
    Alarms,
    /// A queue is deleted while it is in use, and declared again later.
    Deletions,
    /// PostgreSQL dies and comes back.
    Database,
}

impl Trouble {
    /// All of them.
    pub const ALL: [Trouble; 7] = [
        Trouble::Kills,
        Trouble::Steps,
        Trouble::Crashes,
        Trouble::Cuts,
        Trouble::Alarms,
        Trouble::Deletions,
        Trouble::Database,
    ];

    /// Name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Trouble::Kills => "broker: killed schedulers",
            Trouble::Steps => "broker: killed at every step",
            Trouble::Crashes => "broker: crashed RabbitMQ",
            Trouble::Cuts => "broker: cut connections",
            Trouble::Alarms => "broker: memory alarms",
            Trouble::Deletions => "broker: deleted queue",
            Trouble::Database => "broker: crashed PostgreSQL",
        }
    }

    /// Unit of the rounds.
    pub fn unit(self) -> &'static str {
        match self {
            Trouble::Kills | Trouble::Steps => "kills",
            Trouble::Crashes | Trouble::Database => "crashes",
            Trouble::Cuts => "cuts",
            Trouble::Alarms => "alarms",
            Trouble::Deletions => "deletions",
        }
    }

    /// Number of schedulers. A scheduler that dies at a step works alone, so that it reaches the step.
    pub(super) fn schedulers(self) -> usize {
        if self == Trouble::Steps { 1 } else { 2 }
    }

    /// Whether a message may end in review because its queue was not there for a while.
    pub(super) fn deletes(self) -> bool {
        self == Trouble::Deletions
    }

    /// Breaks a server once and repairs it. Faults of the schedulers themselves are in the parent module.
    pub(super) async fn strike(self, servers: &Servers, dice: &mut Dice) -> Result<(), String> {
        let said = |missing: redrive_servers::Missing| missing.to_string();
        let blocking = |work: &dyn Fn() -> Result<(), redrive_servers::Missing>| {
            tokio::task::block_in_place(work).map_err(said)
        };
        match self {
            Trouble::Kills | Trouble::Steps | Trouble::Deletions => {}
            Trouble::Crashes => {
                tokio::time::sleep(dice.millis(300..1500)).await;
                blocking(&|| {
                    servers.rabbit.crash();
                    servers.rabbit.resume()
                })?;
            }
            Trouble::Cuts => {
                tokio::time::sleep(dice.millis(100..900)).await;
                blocking(&|| servers.rabbit.close_connections())?;
            }
            Trouble::Alarms => {
                tokio::time::sleep(dice.millis(200..800)).await;
                blocking(&|| servers.rabbit.memory_alarm(true))?;
                tokio::time::sleep(dice.millis(200..1500)).await;
                blocking(&|| servers.rabbit.memory_alarm(false))?;
            }
            Trouble::Database => {
                tokio::time::sleep(dice.millis(300..1500)).await;
                blocking(&|| servers.postgres.crash())?;
                tokio::time::sleep(Duration::from_millis(dice.within(0..1500))).await;
                blocking(&|| servers.postgres.resume())?;
            }
        }
        Ok(())
    }
}
