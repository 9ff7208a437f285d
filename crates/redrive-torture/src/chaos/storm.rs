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
use crate::subject::{CRASHED, LEASE};

/// More connections than the server has.
const ALL_CONNECTIONS: usize = 400;

/// One way in which things go wrong.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Storm {
    /// Processes are killed.
    Kills,
    /// Processes stand still, or are cut off, for longer than their lease, and come back with what they had in their hands.
    Pauses,
    /// The server is stopped as by a crash, and started again.
    Crashes,
    /// The same, and it stays away for longer than a lease: everybody is late, and nobody is dead.
    Outages,
    /// The server ends all connections.
    Disconnects,
    /// Connections are cut right after a change was sent: before it arrives, or before its answer does.
    Cut,
    /// Nothing is carried to the server or back for a while, for longer than a lease at times, and every connection stays open.
    Silence,
    /// The server has no connection left for anybody.
    Exhaustion,
    /// A transaction that somebody has forgotten keeps every dead row.
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
        Storm::Silence,
        Storm::Exhaustion,
        Storm::Pinned,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Storm::Kills => "PostgreSQL: killed processes",
            Storm::Pauses => "PostgreSQL: paused processes",
            Storm::Crashes => "PostgreSQL: crashed server",
            Storm::Outages => "PostgreSQL: server away for long",
            Storm::Disconnects => "PostgreSQL: ended connections",
            Storm::Cut => "PostgreSQL: cut after COMMIT",
            Storm::Silence => "PostgreSQL: silent network",
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
            Storm::Outages => "outages",
            Storm::Disconnects => "times",
            Storm::Cut => "cuts",
            Storm::Silence => "silences",
            Storm::Exhaustion => "times",
            Storm::Pinned => "seconds",
        }
    }

    /// How long the processes wait for one another. Short where that is to run out.
    pub(super) fn lease(self) -> Duration {
        match self {
            Storm::Pauses => Duration::from_secs(2),
            // A third of it is what everybody has to come back before anybody is declared dead.
            Storm::Outages | Storm::Silence => Duration::from_secs(9),
            _ => LEASE,
        }
    }

    /// Whether every other process reaches the server by way of the proxy.
    pub(super) fn is_on_the_way(self) -> [bool; 2] {
        match self {
            Storm::Cut | Storm::Silence => [true; 2],
            Storm::Pauses => [true, false],
            _ => [false; 2],
        }
    }

    /// Whether the server forgets what it had not written down of settlements: that is a redelivery.
    pub(super) fn forgets(self) -> bool {
        matches!(self, Storm::Crashes | Storm::Outages)
    }

    /// Whether a process can be taken for dead: where none is killed and none stands still, none may be.
    pub(super) fn buries(self) -> bool {
        matches!(self, Storm::Kills | Storm::Pauses)
    }

    /// Whether a handler may run again only because a process has died. Not where processes are taken for dead that are not, and
    /// not where the server forgets that something was settled. A lost connection is no reason: what was sent over it is found out.
    pub fn only_the_dead_repeat(self) -> bool {
        self != Storm::Pauses && !self.forgets()
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
            Storm::Pauses if dice.percent(50) => {
                let held_up = self.hold_up(dice).await?;
                self.proxy.silence(true);
                drop(held_up);
                sleep(self.storm.lease() + dice.millis(2500..4500)).await;
                self.proxy.silence(false);
                sleep(dice.millis(500..1500)).await;
            }
            Storm::Pauses => {
                let place = fleet.any(dice);
                let held_up = self.hold_up(dice).await?;
                fleet.signal(place, Signal::STOP)?;
                drop(held_up);
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
                sleep(dice.millis(4000..8000)).await; // who was to be buried would be by now
            }
            Storm::Silence => {
                sleep(dice.millis(500..3000)).await;
                self.proxy.silence(true);
                let longest = if dice.percent(50) { self.storm.lease() } else { Duration::ZERO };
                sleep(longest + dice.millis(500..4000)).await;
                self.proxy.silence(false);
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

    /// Lets nobody write down that an attempt has failed, until what is returned is dropped: whoever stands still then has its hands
    /// full.
    async fn hold_up(&self, dice: &mut Dice) -> Result<Client, String> {
        let client = connect(&self.server.url()).await?;
        // Whether it works: at the very beginning there is no such table.
        let _ = client.batch_execute("BEGIN; LOCK TABLE storm.attempt IN ACCESS EXCLUSIVE MODE").await;
        sleep(dice.millis(200..600)).await;
        Ok(client)
    }

    /// How many attempts were charged because a process was declared dead.
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
