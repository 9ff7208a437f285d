//! Live progress bar with counters on standard error, if that is a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use redrive::EventBus;

use crate::format;
use crate::time_format::millis;

const REFRESH_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    began: Instant,
}

impl Progress {
    /// Starts a bar for work of about this duration.
    pub(super) fn new(about: Duration, wanted: bool) -> Self {
        let length = millis(about);
        let bar = if wanted { ProgressBar::new(length) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{bar:14.cyan/dim} {wide_msg}") {
            bar.set_style(style.progress_chars("━━─"));
        }
        Progress { bar, began: Instant::now() }
    }

    fn show(&self, message: String) {
        // The clock fills 99 %; the end fills the rest.
        let most = self.bar.length().unwrap_or(0).saturating_mul(99) / 100;
        let passed = millis(self.began.elapsed());
        self.bar.set_position(passed.min(most));
        self.bar.set_message(message);
    }

    /// Shows the counters of a bus; never returns.
    pub(super) async fn watch(&self, bus: &EventBus) -> std::convert::Infallible {
        loop {
            let Ok(metrics) = bus.metrics().await else { return std::future::pending().await };
            let retries: u64 = metrics.by_type.values().map(|of_type| of_type.retries).sum();
            self.show(format!(
                "{} published, {} done, {} retries, {} parked, {} dead",
                format::count(metrics.published),
                format::count(metrics.done),
                format::count(retries),
                format::count(metrics.parked),
                format::count(metrics.dead)
            ));
            tokio::time::sleep(REFRESH_INTERVAL).await;
        }
    }

    /// Shows the number of kills.
    pub(super) fn killed(&self, kills: u64, acknowledged: u64) {
        let kills = format::counted(kills, "kill");
        self.show(format!("{} acknowledged, {kills}", format::count(acknowledged)));
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
