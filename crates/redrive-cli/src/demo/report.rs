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
use crate::table::{Align, Table};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Acknowledged events.
    pub(super) published: u64,
    pub(super) done: u64,
    pub(super) dead: u64,
    pub(super) pending: u64,
    /// Acknowledged events that are missing in the file.
    pub(super) lost: u64,
    pub(super) retries: u64,
    /// Deliveries parked by an open circuit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parked: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kills: Option<u64>,
    /// Stored, but the publisher was killed before the acknowledgement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unconfirmed: Option<u64>,
    /// First integrity error of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) damage: Option<String>,
    pub(super) events_per_second: f64,
    pub(super) seconds: f64,
    pub(super) seed: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) subscriptions: Vec<Subscriber>,
    pub(super) dead_groups: Vec<DlqGroup>,
    /// Event with an unreadable payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) poison: Option<EventId>,
}

/// Row of the table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Subscriber {
    name: &'static str,
    pattern: &'static str,
    calls: u64,
    failures: u64,
    habit: String,
}

impl Subscriber {
    pub(super) fn of(tally: &Tally) -> Self {
        Subscriber {
            name: tally.name,
            pattern: tally.pattern,
            calls: tally.calls(),
            failures: tally.failures(),
            habit: tally.habit.clone(),
        }
    }
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
        let Census { done, dead, pending, lost, unconfirmed, retries } = census;
        #[allow(clippy::cast_precision_loss)] // a rate, not a count
        let rate = (done + dead) as f64 / elapsed.as_secs_f64();
        Ok(Report {
            published: acknowledged.len() as u64,
            done,
            dead,
            pending,
            lost,
            retries,
            parked: None,
            kills: None,
            unconfirmed: (unconfirmed > 0).then_some(unconfirmed),
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
        if self.lost > 0 {
            return Err(Failure::Failed(format!(
                "{} acknowledged but missing in the file: this is a bug; please report it with the seed {}",
                format::counted(self.lost, "event"),
                self.seed
            )));
        }
        if let Some(damage) = &self.damage {
            return Err(Failure::Failed(format!("the file is damaged: {damage}; please report it")));
        }
        if self.pending > 0 {
            return Err(Failure::Failed(format!(
                "{} not handled yet: none is lost, but this machine needs more time; publish fewer with --events",
                format::counted(self.pending, "event")
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
        let (left, right) = (Align::Left, Align::Right);
        let mut table = Table::new([
            ("subscription", left),
            ("events", left),
            ("calls", right),
            ("failed", right),
            ("", left),
        ]);
        for Subscriber { name, pattern, calls, failures, habit } in &self.subscriptions {
            table.row([
                (*name).to_owned(),
                (*pattern).to_owned(),
                format::count(*calls),
                format::count(*failures),
                habit.clone(),
            ]);
        }
        table.print(out, screen)?;
        writeln!(out)
    }

    fn print_counts(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        let rate = format!(
            "in {:.1}s, {:.0} events/s, each on disk before it was acknowledged",
            self.seconds, self.events_per_second
        );
        let done = format!("by every matching subscription, with {} retries", format::count(self.retries));
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
        lines.push(("done", self.done, Style::Good, done));
        if let Some(parked) = self.parked {
            let why = "deliveries deferred while a circuit was open".to_owned();
            lines.push(("parked", parked, Style::Load, why));
        }
        lines.push(("dead", self.dead, Style::Bad, "in the dead-letter queue, with every error:".to_owned()));
        for (name, number, style, remark) in &lines {
            line(out, screen, name, *number, *style, remark)?;
        }
        for group in self.dead_groups.iter().take(4) {
            let text = format!("{} × {}", format::count(group.count), format::one_line(&group.example));
            let text = format::cut(&text, screen.width.saturating_sub(INDENT));
            writeln!(out, "{:INDENT$}{}", "", screen.paint(Style::Quiet, text))?;
        }
        line(out, screen, "left", self.pending, Style::Strong, "neither done nor dead")?;
        let lost = if self.lost == 0 { Style::Good } else { Style::Bad };
        line(out, screen, "lost", self.lost, lost, "acknowledged but missing in the file")?;
        match self.unconfirmed {
            Some(unconfirmed) => {
                let why = "more on disk: their publisher died before the acknowledgement";
                line(out, screen, "unacked", unconfirmed, Style::Quiet, why)
            }
            None => Ok(()),
        }
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
            (format::count(self.published), format::count(self.done), format::count(self.dead));
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
