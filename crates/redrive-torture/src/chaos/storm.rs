//! What goes wrong around processes that share a server.

use std::time::Duration;

use clap::ValueEnum;
use redrive_servers::Postgres;
use rustix::process::Signal;
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

use super::Fleet;
use super::proxy::Proxy;
use crate::dice::Dice;
use crate::subject::LEASE;

/// More connections than the server has.
const ALL_CONNECTIONS: usize = 400;

/// One way in which things go wrong.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Storm {
    /// Processes are killed.
    Kills,
    /// Processes stand still for longer than their lease, and wake up.
    Pauses,
    /// The server is stopped as by a crash, and started again.
    Crashes,
    /// The server ends all connections.
    Disconnects,
    /// Connections are cut right after a change was sent: before it arrives, or before its answer does.
    Cut,
    /// The server has no connection left for anybody.
    Exhaustion,
    /// A transaction that somebody has forgotten keeps every dead row.
    Pinned,
}

impl Storm {
    /// All of them.
    pub const ALL: [Storm; 7] = [
        Storm::Kills,
        Storm::Pauses,
        Storm::Crashes,
        Storm::Disconnects,
        Storm::Cut,
        Storm::Exhaustion,
        Storm::Pinned,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Storm::Kills => "PostgreSQL: killed processes",
            Storm::Pauses => "PostgreSQL: paused processes",
            Storm::Crashes => "PostgreSQL: crashed server",
            Storm::Disconnects => "PostgreSQL: ended connections",
            Storm::Cut => "PostgreSQL: cut after COMMIT",
            Storm::Exhaustion => "PostgreSQL: no connections",
            Storm::Pinned => "PostgreSQL: forgotten transaction",
        }
    }

    /// What is counted.
    pub fn unit(self) -> &'static str {
        match self {
            Storm::Kills => "kills",
            Storm::Pauses => "pauses",
            Storm::Crashes => "crashes",
            Storm::Disconnects => "times",
            Storm::Cut => "cuts",
            Storm::Exhaustion => "times",
            Storm::Pinned => "seconds",
        }
    }

    /// How long the processes wait for one another. Short where that is to run out.
    pub(super) fn lease(self) -> Duration {
        if self == Storm::Pauses { Duration::from_secs(2) } else { LEASE }
    }

    /// Whether a handler may run again only because a process has died.
    pub fn only_the_dead_repeat(self) -> bool {
        matches!(self, Storm::Kills | Storm::Pinned)
    }
}

/// Where the storms come from.
pub(super) struct Sky<'a> {
    pub(super) server: &'a Postgres,
    pub(super) proxy: &'a Proxy,
    pub(super) storm: Storm,
    /// Connections that are held.
    pub(super) calls: Vec<Client>,
}

impl Sky<'_> {
    /// One thing goes wrong.
    pub(super) async fn gust(&mut self, fleet: &mut Fleet, dice: &mut Dice) -> Result<(), String> {
        match self.storm {
            Storm::Kills => {
                sleep(dice.millis(20..400)).await;
                fleet.kill(fleet.any(dice))?;
            }
            Storm::Pauses => {
                let place = fleet.any(dice);
                fleet.signal(place, Signal::STOP)?;
                sleep(self.storm.lease() + dice.millis(500..2500)).await;
                fleet.signal(place, Signal::CONT)?;
                sleep(dice.millis(50..800)).await;
            }
            Storm::Crashes => {
                sleep(dice.millis(500..3000)).await;
                tokio::task::block_in_place(|| self.server.crash()).map_err(|error| error.to_string())?;
                sleep(dice.millis(0..800)).await;
                tokio::task::block_in_place(|| self.server.resume()).map_err(|error| error.to_string())?;
            }
            Storm::Disconnects => {
                sleep(dice.millis(50..700)).await;
                self.disconnect_all().await?;
            }
            Storm::Cut => {
                sleep(dice.millis(5..120)).await;
                self.proxy.cut(dice.percent(70));
            }
            Storm::Exhaustion => {
                sleep(dice.millis(200..1000)).await;
                self.disconnect_all().await?;
                while self.calls.len() < ALL_CONNECTIONS {
                    let Ok(client) = connect(&self.server.url()).await else { break };
                    self.calls.push(client);
                }
                sleep(dice.millis(200..2500)).await;
                self.calls.clear();
            }
            Storm::Pinned => {
                if self.calls.is_empty() {
                    let client = connect(&self.server.url()).await?;
                    // Whoever has an id of its own holds everything back, even without doing anything.
                    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()";
                    client.batch_execute(begin).await.map_err(|error| error.to_string())?;
                    self.calls.push(client);
                }
                sleep(Duration::from_secs(1)).await;
            }
        }
        Ok(())
    }

    /// The storm is over.
    pub(super) async fn clear(&mut self) -> Result<(), String> {
        self.calls.clear();
        self.proxy.heal();
        Ok(())
    }

    async fn disconnect_all(&self) -> Result<(), String> {
        let client = connect(&self.server.url()).await?;
        let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                      WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
        client.batch_execute(others).await.map_err(|error| error.to_string())
    }
}

async fn connect(url: &str) -> Result<Client, String> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}
