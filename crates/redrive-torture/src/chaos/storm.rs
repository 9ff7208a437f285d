//! Storms: faults of processes that share a server.

use std::time::Duration;

use clap::ValueEnum;
use redrive_servers::Postgres;
use rustix::process::Signal;
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

use super::Fleet;
use super::proxy::Proxy;
use crate::dice::Dice;
use crate::subject::{CRASHED, LEASE};

/// More connections than the server has.
const ALL_CONNECTIONS: usize = 400;

/// A fault that is repeated.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Storm {
    /// Processes are killed.
    Kills,
    /// Processes are stopped or cut off for longer than their lease, and continue with their old claims.
    Pauses,
    /// The server is stopped as by a crash, and started again.
    Crashes,
    /// The server stays away for longer than a lease: all processes are late, and none is dead.
    Outages,
    /// The server ends all connections.
    Disconnects,
    /// Connections are cut right after a change was sent: before it arrives, or before its answer does.
    Cut,
    /// The proxy forwards nothing for a while, at times for longer than a lease, and every connection stays open.
    Stall,
    /// The server has no free connection.
    Exhaustion,
    /// A forgotten transaction keeps every dead row.
    Pinned,
}

impl Storm {
    /// All of them.
    pub const ALL: [Storm; 9] = [
        Storm::Kills,
        Storm::Pauses,
        Storm::Crashes,
        Storm::Outages,
        Storm::Disconnects,
        Storm::Cut,
        Storm::Stall,
        Storm::Exhaustion,
        Storm::Pinned,
    ];

    /// Name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Storm::Kills => "PostgreSQL: killed processes",
            Storm::Pauses => "PostgreSQL: paused processes",
            Storm::Crashes => "PostgreSQL: crashed server",
            Storm::Outages => "PostgreSQL: server away for long",
            Storm::Disconnects => "PostgreSQL: ended connections",
            Storm::Cut => "PostgreSQL: cut after COMMIT",
            Storm::Stall => "PostgreSQL: silent network",
            Storm::Exhaustion => "PostgreSQL: no connections",
            Storm::Pinned => "PostgreSQL: forgotten transaction",
        }
    }

    /// Unit of the rounds.
    pub fn unit(self) -> &'static str {
        match self {
            Storm::Kills => "kills",
            Storm::Pauses => "pauses",
            Storm::Crashes => "crashes",
            Storm::Outages => "outages",
            Storm::Disconnects => "times",
            Storm::Cut => "cuts",
            Storm::Stall => "stalls",
            Storm::Exhaustion => "times",
            Storm::Pinned => "seconds",
        }
    }

    /// Lease of the processes. Short where it is to run out.
    pub(super) fn lease(self) -> Duration {
        match self {
            Storm::Pauses => Duration::from_secs(2),
            // All processes have a third of it to come back before one is declared dead.
            Storm::Outages | Storm::Stall => Duration::from_secs(9),
            _ => LEASE,
        }
    }

    /// Which of the two addresses go through the proxy.
    pub(super) fn is_on_the_way(self) -> [bool; 2] {
        match self {
            Storm::Cut | Storm::Stall => [true; 2],
            Storm::Pauses => [true, false],
            _ => [false; 2],
        }
    }

    /// Whether the server can lose unsynced settlements: that is a redelivery.
    pub(super) fn forgets(self) -> bool {
        matches!(self, Storm::Crashes | Storm::Outages)
    }

    /// Whether a process can be declared dead: only where one is killed or stopped.
    pub(super) fn buries(self) -> bool {
        matches!(self, Storm::Kills | Storm::Pauses)
    }

    /// Whether a handler may run again only because a process has died. Not where live processes are declared dead, and not
    /// where the server loses settlements. A lost connection is no reason: the process finds out what became of its
    /// statement.
    pub fn only_the_dead_repeat(self) -> bool {
        self != Storm::Pauses && !self.forgets()
    }
}

/// The storm's means: the server, the proxy and connections.
pub(super) struct Sky<'a> {
    pub(super) server: &'a Postgres,
    pub(super) proxy: &'a Proxy,
    pub(super) storm: Storm,
    /// Connections that are held.
    pub(super) calls: Vec<Client>,
}

impl Sky<'_> {
    /// Strikes once.
    pub(super) async fn gust(&mut self, fleet: &mut Fleet, dice: &mut Dice) -> Result<(), String> {
        match self.storm {
            Storm::Kills => {
                sleep(dice.millis(20..400)).await;
                fleet.kill(fleet.any(dice))?;
            }
            Storm::Pauses if dice.percent(50) => {
                let transaction = self.open_transaction(dice).await?;
                self.proxy.stall(true);
                drop(transaction);
                sleep(self.storm.lease() + dice.millis(2500..4500)).await;
                self.proxy.stall(false);
                sleep(dice.millis(500..1500)).await;
            }
            Storm::Pauses => {
                let place = fleet.any(dice);
                let transaction = self.open_transaction(dice).await?;
                fleet.signal(place, Signal::STOP)?;
                drop(transaction);
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
            Storm::Outages => {
                sleep(dice.millis(500..3000)).await;
                tokio::task::block_in_place(|| self.server.crash()).map_err(|error| error.to_string())?;
                sleep(self.storm.lease() + dice.millis(200..3000)).await;
                tokio::task::block_in_place(|| self.server.resume()).map_err(|error| error.to_string())?;
                sleep(dice.millis(4000..8000)).await; // a dead process would be declared dead by now
            }
            Storm::Stall => {
                sleep(dice.millis(500..3000)).await;
                self.proxy.stall(true);
                let longest = if dice.percent(50) { self.storm.lease() } else { Duration::ZERO };
                sleep(longest + dice.millis(500..4000)).await;
                self.proxy.stall(false);
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
                    // A transaction with an id holds all dead rows back, even if idle.
                    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()";
                    client.batch_execute(begin).await.map_err(|error| error.to_string())?;
                    self.calls.push(client);
                }
                sleep(Duration::from_secs(1)).await;
            }
        }
        Ok(())
    }

    /// Ends the storm.
    pub(super) async fn clear(&mut self) -> Result<(), String> {
        self.calls.clear();
        self.proxy.heal();
        Ok(())
    }

    /// Blocks writes of failed attempts until the returned client is dropped: a process that is stopped then has unsettled
    /// claims.
    async fn open_transaction(&self, dice: &mut Dice) -> Result<Client, String> {
        let client = connect(&self.server.url()).await?;
        // May fail: at the very beginning the table does not exist.
        let _ = client.batch_execute("BEGIN; LOCK TABLE storm.attempt IN ACCESS EXCLUSIVE MODE").await;
        sleep(dice.millis(200..600)).await;
        Ok(client)
    }

    /// Returns the number of attempts that were charged because a process was declared dead.
    pub(super) async fn buried(&self) -> Result<i64, String> {
        let client = connect(&self.server.url()).await?;
        let count = "SELECT count(*) FROM storm.attempt WHERE error = $1";
        let row = client.query_one(count, &[&CRASHED]).await.map_err(|error| error.to_string())?;
        Ok(row.get(0))
    }

    async fn disconnect_all(&self) -> Result<(), String> {
        let client = connect(&self.server.url()).await?;
        let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                      WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
        client.batch_execute(others).await.map_err(|error| error.to_string())
    }
}

pub(super) async fn connect(url: &str) -> Result<Client, String> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}
