//! Report of the demo: outcomes of all events, and the verdict.

use std::collections::HashSet;
use std::io::{self, Write};
use std::time::Duration;

use redrive::dlq::{DlqFilter, DlqGroup, DlqPage};
use redrive::{EventBus, EventId};
use serde::Serialize;

use super::census::Census;
use super::shop::Tally;
use crate::database::Database;
use crate::failure::Failure;
use crate::format;
use crate::screen::{Screen, Style};
use crate::table::Table;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Acknowledged events.
    pub(super) published: u64,
    #[serde(flatten)]
    pub(super) census: Census,
    /// Deliveries parked by an open circuit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parked: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kills: Option<u64>,
    /// First integrity error of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) damage: Option<String>,
    pub(super) events_per_second: f64,
    pub(super) seconds: f64,
    pub(super) seed: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) subscriptions: Vec<Tally>,
    pub(super) dead_groups: Vec<DlqGroup>,
    /// Event with an unreadable payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) poison: Option<EventId>,
}

impl Report {
    /// Counts the outcomes of the acknowledged events in the file of this bus.
    pub(super) async fn of(
        bus: &EventBus,
        acknowledged: &HashSet<EventId>,
        elapsed: Duration,
        seed: u64,
    ) -> Result<Self, Failure> {
        let census = Census::take(bus.store().as_ref(), acknowledged).await?;
        let unreadable = DlqFilter { reason: Some("permanent".to_owned()), ..DlqFilter::default() };
        let poison = bus.dlq().list(unreadable, DlqPage { limit: 1, ..DlqPage::default() }).await?;
        #[allow(clippy::cast_precision_loss)] // a rate, not a count
        let rate = (census.done + census.dead) as f64 / elapsed.as_secs_f64();
        Ok(Report {
            published: acknowledged.len() as u64,
            census,
            parked: None,
            kills: None,
            damage: None,
            events_per_second: (rate * 10.0).round() / 10.0,
            seconds: (elapsed.as_secs_f64() * 1000.0).round() / 1000.0,
            seed,
            subscriptions: Vec::new(),
            dead_groups: bus.dlq().groups(DlqFilter::default()).await?,
            poison: poison.first().map(|dead| dead.id),
        })
    }

    /// Fails if an event is lost or not handled, or if the file is damaged.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        if self.census.lost > 0 {
            return Err(Failure::Failed(format!(
                "{} acknowledged but missing in the file: this is a bug; please report it with the seed {}",
                format::counted(self.census.lost, "event"),
                self.seed
            )));
        }
        if let Some(damage) = &self.damage {
            return Err(Failure::Failed(format!("the file is damaged: {damage}; please report it")));
        }
        if self.census.pending > 0 {
            return Err(Failure::Failed(format!(
                "{} not handled yet: none is lost, but this machine needs more time; publish fewer with --events",
                format::counted(self.census.pending, "event")
            )));
        }
        Ok(())
    }

    pub(super) fn print(
        &self,
        db: Option<&Database>,
        out: &mut impl Write,
        screen: Screen,
    ) -> io::Result<()> {
        self.print_subscriptions(out, screen)?;
        self.print_counts(out, screen)?;
        self.print_end(out, screen)?;
        match db {
            Some(db) => self.print_commands(db, out, screen),
            None => Ok(()),
        }
    }

    fn print_subscriptions(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        if self.subscriptions.is_empty() {
            return Ok(());
        }
        let row = |tally: &Tally| {
            let [calls, failed] = [tally.calls, tally.failures].map(format::count);
            [tally.name.to_owned(), tally.pattern.to_owned(), calls, failed, tally.habit.clone()]
        };
        let heading = ["subscription", "events", "calls", "failed", ""];
        Table::new(heading, self.subscriptions.iter().map(row)).right(&[2, 3]).print(out, screen)?;
        writeln!(out)
    }

    fn print_counts(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        let rate = format!(
            "in {:.1}s, {:.0} events/s, each on disk before it was acknowledged",
            self.seconds, self.events_per_second
        );
        let done =
            format!("by every matching subscription, with {} retries", format::count(self.census.retries));
        let mut lines = Vec::new();
        if let Some(kills) = self.kills {
            lines.push((
                "killed",
                kills,
                Style::Load,
                "times with SIGKILL, while events were in flight".to_owned(),
            ));
        }
        lines.push(("published", self.published, Style::Strong, rate));
        lines.push(("done", self.census.done, Style::Good, done));
        if let Some(parked) = self.parked {
            let why = "deliveries deferred while a circuit was open".to_owned();
            lines.push(("parked", parked, Style::Load, why));
        }
        lines.push((
            "dead",
            self.census.dead,
            Style::Bad,
            "in the dead-letter queue, with every error:".to_owned(),
        ));
        for (name, number, style, remark) in &lines {
            line(out, screen, name, *number, *style, remark)?;
        }
        for group in self.dead_groups.iter().take(4) {
            let text = format!("{} × {}", format::count(group.count), format::one_line(&group.example));
            let text = format::cut(&text, screen.width.saturating_sub(INDENT));
            writeln!(out, "{:INDENT$}{}", "", screen.paint(Style::Quiet, text))?;
        }
        line(out, screen, "left", self.census.pending, Style::Strong, "neither done nor dead")?;
        let lost = if self.census.lost == 0 { Style::Good } else { Style::Bad };
        line(out, screen, "lost", self.census.lost, lost, "acknowledged but missing in the file")?;
        if self.census.unconfirmed > 0 {
            let why = "more on disk: their publisher died before the acknowledgement";
            line(out, screen, "unacked", self.census.unconfirmed, Style::Quiet, why)?;
        }
        Ok(())
    }

    fn print_commands(&self, db: &Database, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        let flag = db.flag();
        writeln!(out, "\n{}", screen.paint(Style::Quiet, "Inspect the file:"))?;
        writeln!(out, "  redrive dlq groups{flag}")?;
        if let Some(poison) = self.poison {
            writeln!(out, "  redrive dlq show {poison}{flag}")?;
        }
        writeln!(out, "  redrive events list --limit 10{flag}")?;
        writeln!(out, "  redrive doctor{flag}")
    }

    fn print_end(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        if self.verdict().is_err() {
            return Ok(());
        }
        let (published, done, dead) =
            (format::count(self.published), format::count(self.census.done), format::count(self.census.dead));
        let sum = format!("{published} published = {done} done + {dead} dead.");
        let kept = match self.kills {
            None => {
                "The file has every event, handled or in the dead-letter queue. Nothing was lost.".to_owned()
            }
            Some(kills) => format!(
                "After {}, the file has every acknowledged event, handled or in the dead-letter queue. Nothing was lost, \
                 and the file is intact.",
                format::counted(kills, "kill")
            ),
        };
        writeln!(out, "\n{}", screen.paint(Style::Strong, sum))?;
        writeln!(out, "{}", screen.wrap(&kept))
    }
}

/// Column of the remarks.
const INDENT: usize = 22;

fn line(
    out: &mut impl Write,
    screen: Screen,
    name: &str,
    number: u64,
    style: Style,
    remark: &str,
) -> io::Result<()> {
    let number = format!("{:>9}", format::count(number));
    let remark = format::cut(remark, screen.width.saturating_sub(INDENT));
    writeln!(out, "{name:<10} {}  {remark}", screen.paint(style, number))
}
