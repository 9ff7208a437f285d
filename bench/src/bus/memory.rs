//! Memory of a bus while very many events wait for a retry, measured in a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, RetryPolicy};
use redrive::{Event, EventBus};
use serde::{Deserialize, Serialize};

use super::figure::{self, Figure, Goal, Unit};
use super::fill::Fill;
use super::progress;

/// Goal in mebibytes.
const AIM: f64 = 128.0;

/// Memory of the process.
#[derive(Debug, Deserialize, Serialize)]
struct Occupied {
    /// Before the bus was opened, in mebibytes.
    before: f64,
    /// Resident memory at the end.
    resident: f64,
    /// Peak.
    peak: f64,
    /// Waiting events at the end.
    waiting: u64,
    /// Failed attempts.
    failed: u64,
}

pub(super) fn measure(folder: &Path, count: u32, seconds: u32) -> Result<Vec<Figure>, BoxError> {
    progress(&format!("making {} events that wait for a retry", figure::count(count)));
    let path = folder.join("waiting.db");
    let fill = Fill::open(&path)?;
    fill.waiting(count, seconds)?;
    fill.finish()?;
    let output = Command::new(std::env::current_exe()?)
        .arg("resident")
        .arg(&path)
        .arg(seconds.to_string())
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("the process to be measured ended with {}", output.status).into());
    }
    let occupied: Occupied = serde_json::from_slice(&output.stdout)?;
    if occupied.waiting != u64::from(count) {
        return Err(format!("{} of {count} events wait", occupied.waiting).into());
    }
    let what = format!("{} waiting for a retry: resident memory", figure::count(count));
    let note = format!("{} attempts failed meanwhile", occupied.failed);
    Ok(vec![
        Figure::new(
            "memory_without_bus_mib",
            "memory of the process without a bus",
            occupied.before,
            Unit::Mebibytes,
        ),
        Figure::new("memory_resident_mib", &what, occupied.resident, Unit::Mebibytes).goal(Goal::Below(AIM)),
        Figure::new("memory_peak_mib", format!("{what}, peak"), occupied.peak, Unit::Mebibytes)
            .goal(Goal::Below(AIM))
            .note(note),
    ])
}

#[derive(Debug, Args)]
pub(crate) struct Resident {
    path: PathBuf,
    seconds: u32,
}

impl Resident {
    pub(crate) fn run(self) -> Result<String, BoxError> {
        let before = occupied("VmRSS")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let occupied = runtime.block_on(self.wait(before))?;
        Ok(serde_json::to_string(&occupied)?)
    }

    /// Runs the bus: every attempt fails, and every event waits again.
    async fn wait(self, before: f64) -> Result<Occupied, BoxError> {
        let day = Duration::from_secs(24 * 3600);
        let policy =
            RetryPolicy::bus().to_builder().max_attempts(100).base_delay(day).max_delay(day).build()?;
        // An open circuit would prevent handler calls.
        let never = BreakerConfig::builder().min_samples(u32::MAX).build()?;
        let bus = EventBus::builder().policy(policy).open(&self.path).await?;
        let failed = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&failed);
        bus.subscribe("*", move |_: Event| {
            count.fetch_add(1, Ordering::Relaxed);
            async { Err::<(), BoxError>("the warehouse does not answer".into()) }
        })
        .name("shipping")
        .breaker(never)
        .register()?;
        bus.start().await?;
        tokio::time::sleep(Duration::from_secs(self.seconds.into())).await;
        let resident = occupied("VmRSS")?;
        bus.dispatcher().pause();
        while bus.dispatcher().in_flight() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let waiting = bus.store().depth().await?.waiting;
        bus.shutdown().await?;
        let peak = occupied("VmHWM")?;
        Ok(Occupied { before, resident, peak, waiting, failed: failed.load(Ordering::Relaxed) })
    }
}

/// Reads a line of this process's status, in mebibytes.
fn occupied(name: &str) -> Result<f64, BoxError> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| format!("memory can be measured on Linux only: /proc/self/status: {error}"))?;
    let line = status.lines().find(|line| line.starts_with(name));
    let kib: Option<f64> =
        line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse().ok());
    Ok(kib.ok_or_else(|| format!("/proc/self/status has no {name}"))? / 1024.0)
}
