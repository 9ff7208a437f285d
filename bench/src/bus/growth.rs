//! Full cycles (publish, no-op handler, settle) in a file full of finished events, compared with an empty file.
//!
//! Both alternate, so that the noise of the machine hits both; a ratio compares measurements of one round.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::retry::BoxError;
use redrive::{BusError, Event, EventBus};
use tokio::runtime::Runtime;

use super::figure::{Figure, Goal, Unit, count};
use super::fill::{self, Fill};
use super::{ROUNDS, progress};
use crate::report::median;

/// Events in flight.
const IN_FLIGHT: u32 = 512;

/// Goal: share of the rate in an empty file.
const AIM: f64 = 0.8;

pub(super) fn measure(
    folder: &Path,
    sizes: [u32; 3],
    slice: Duration,
    runtime: &Runtime,
) -> Result<Vec<Figure>, BoxError> {
    let (grown, empty) = (folder.join("grown.db"), folder.join("empty.db"));
    let mut figures = Vec::new();
    for size in sizes {
        let began = Instant::now();
        let fill = Fill::open(&grown)?;
        fill.done(size.saturating_sub(fill.rows()?))?;
        fill.finish()?;
        let bytes = std::fs::metadata(&grown)?.len();
        progress(&format!(
            "made a file with {} finished events, {} MiB, in {:.0} s",
            count(size),
            bytes >> 20,
            began.elapsed().as_secs_f64()
        ));
        let (mut rates, mut ratios) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let on_empty = || {
                let rate = runtime.block_on(cycles(&empty, slice));
                std::fs::remove_file(&empty)?;
                Ok::<f64, BoxError>(rate?)
            };
            let on_grown = || runtime.block_on(cycles(&grown, slice));
            // The two alternate in going first.
            let (base, rate) = if round % 2 == 0 {
                let base = on_empty()?;
                (base, on_grown()?)
            } else {
                let rate = on_grown()?;
                (on_empty()?, rate)
            };
            progress(&format!("{} finished: {rate:.0} cycles/s; empty file: {base:.0}", count(size)));
            rates.push(rate);
            ratios.push(rate / base);
        }
        let what = format!("{} finished in the file: full cycles", count(size));
        figures.push(Figure::new(format!("cycle_{size}"), &what, median(rates), Unit::PerSecond));
        let ratio = Figure::new(
            format!("cycle_ratio_{size}"),
            format!("{what}, to empty"),
            median(ratios),
            Unit::Ratio,
        );
        figures.push(if size == 0 {
            ratio.note("two empty files: the noise")
        } else {
            ratio.goal(Goal::AtLeast(AIM))
        });
    }
    Ok(figures)
}

/// Events per second that were published, handled and settled.
async fn cycles(path: &Path, time: Duration) -> Result<f64, BusError> {
    let bus = EventBus::open(path).await?;
    bus.subscribe("order.*", |_: Event| async { Ok::<_, BoxError>(()) }).register()?;
    bus.start().await?;
    let payload = Arc::new(fill::payload());
    let began = Instant::now();
    let publishers: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (bus, payload) = (bus.clone(), Arc::clone(&payload));
            tokio::spawn(async move {
                let mut done = 0_u32;
                while began.elapsed() < time {
                    bus.publish("order.created", &*payload).await?;
                    done += 1;
                }
                Ok::<_, BusError>(done)
            })
        })
        .collect();
    let mut done = 0;
    for publisher in publishers {
        done += publisher.await.expect("a publisher does not panic")?;
    }
    let rate = f64::from(done) / began.elapsed().as_secs_f64();
    bus.shutdown().await?;
    Ok(rate)
}
