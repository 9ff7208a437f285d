//! Start after a crash: time until running events are recovered, and until the first of them runs again.

use std::path::Path;
use std::time::Instant;

use redrive::retry::BoxError;
use redrive::{Event, EventBus};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::figure::{Figure, Goal, Unit, count};
use super::fill::Fill;
use super::{ROUNDS, progress};
use crate::report::median;

/// Specified for 100 stuck events, in milliseconds.
const SPECIFIED: f64 = 500.0;

/// Few and many stuck events alone in the file, and few among `finished` ones.
pub(super) fn measure(
    folder: &Path,
    [few, many]: [u32; 2],
    finished: u32,
    runtime: &Runtime,
) -> Result<Vec<Figure>, BoxError> {
    let mut figures = Vec::new();
    for (stuck, done) in [(few, 0), (many, 0), (few, finished)] {
        progress(&format!(
            "making {} stuck and {} finished events, {ROUNDS} times",
            count(stuck),
            count(done)
        ));
        let (mut starts, mut firsts) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let path = folder.join(format!("{stuck}-{done}-{round}.db"));
            let fill = Fill::open(&path)?;
            fill.done(done)?;
            fill.stuck(stuck)?;
            fill.finish()?;
            let (start, first) = runtime.block_on(recover(&path, stuck))?;
            starts.push(start);
            firsts.push(first);
            std::fs::remove_file(&path)?;
        }
        let (key, among) = match done {
            0 => (String::new(), String::new()),
            _ => (format!("_of_{done}"), format!(" among {} finished", count(done))),
        };
        let figure = |key: String, what: &str, times| {
            Figure::new(
                key,
                format!("{} stuck{among}: start() {what}", count(stuck)),
                median(times),
                Unit::Millis,
            )
        };
        figures.push(figure(format!("recovery_start_{stuck}{key}_ms"), "returns", starts));
        let first = figure(format!("recovery_{stuck}{key}_ms"), "to the first handler", firsts);
        figures.push(if stuck == few { first.goal(Goal::Within(SPECIFIED)) } else { first });
    }
    Ok(figures)
}

/// Milliseconds until `start` returns, and until the first handler begins.
async fn recover(path: &Path, size: u32) -> Result<(f64, f64), BoxError> {
    let bus = EventBus::open(path).await?;
    let (sender, mut begun) = mpsc::unbounded_channel();
    bus.subscribe("*", move |_: Event| {
        let _ = sender.send(Instant::now()); // only the first is received
        async { Ok::<_, BoxError>(()) }
    })
    .register()?;
    let began = Instant::now();
    let recovered = bus.start().await?;
    let start = began.elapsed();
    let first = begun.recv().await.ok_or("no handler was called")?.duration_since(began);
    bus.shutdown().await?;
    if recovered != size as usize {
        return Err(format!("{recovered} of {size} stuck events were recovered").into());
    }
    Ok((start.as_secs_f64() * 1e3, first.as_secs_f64() * 1e3))
}
