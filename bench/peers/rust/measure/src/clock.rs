//! Takes the five measurements, with their preparation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::handler::Handler;
use crate::job::sent_now;
use crate::peer::{BoxError, Peer};
use crate::report::Report;
use crate::request::{Measure, Request};

const BATCH: usize = 1000;
/// Interval of 200 jobs per second.
const TICK: Duration = Duration::from_millis(5);
/// Time for a worker to start before the first job, and to handle the last one.
const UP: Duration = Duration::from_millis(300);
const LAST: Duration = Duration::from_secs(5);

pub(crate) async fn measure<P: Peer>(request: &Request) -> Result<Report, BoxError> {
    let began = Instant::now();
    let peer = P::open(&request.file, &request.setting).await?;
    match request.measure {
        Measure::Setup => Ok(Report::rate(0, began.elapsed(), false)),
        Measure::One => callers(peer, request, 1).await,
        Measure::Callers(count) => callers(peer, request, count).await,
        Measure::Batch => batch(&peer, request).await,
        Measure::Process => process(&peer, request).await,
        Measure::Latency => latency(peer, request).await,
    }
}

async fn callers<P: Peer>(peer: P, request: &Request, callers: usize) -> Result<Report, BoxError> {
    let job = Arc::new(sent_now());
    once_each(&peer, &job, callers).await?;
    let (taken, jobs, time) = (Arc::new(AtomicUsize::new(0)), request.jobs, request.time);
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (peer, job, taken) = (peer.clone(), Arc::clone(&job), Arc::clone(&taken));
        tasks.spawn(async move {
            let mut stored = 0;
            while taken.fetch_add(1, Ordering::Relaxed) < jobs && began.elapsed() < time {
                peer.enqueue(&job).await?;
                stored += 1;
            }
            Ok::<usize, BoxError>(stored)
        });
    }
    let mut stored = 0;
    while let Some(caller) = tasks.join_next().await {
        stored += caller??;
    }
    Ok(Report::rate(stored, began.elapsed(), stored < jobs))
}

/// Connections are opened and statements prepared before the clock runs.
async fn once_each<P: Peer>(peer: &P, job: &Arc<Value>, callers: usize) -> Result<(), BoxError> {
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (peer, job) = (peer.clone(), Arc::clone(job));
        tasks.spawn(async move { peer.enqueue(&job).await });
    }
    while let Some(caller) = tasks.join_next().await {
        caller??;
    }
    Ok(())
}

async fn batch(peer: &impl Peer, request: &Request) -> Result<Report, BoxError> {
    let jobs = vec![sent_now(); request.jobs];
    let began = Instant::now();
    let mut stored = 0;
    for jobs in jobs.chunks(BATCH) {
        if began.elapsed() > request.time {
            break;
        }
        peer.enqueue_batch(jobs).await?;
        stored += jobs.len();
    }
    Ok(Report::rate(stored, began.elapsed(), stored < request.jobs))
}

async fn process(peer: &impl Peer, request: &Request) -> Result<Report, BoxError> {
    for jobs in vec![sent_now(); request.jobs].chunks(BATCH) {
        peer.enqueue_batch(jobs).await?;
    }
    let handler = Handler::counting(request.jobs);
    let began = Instant::now();
    let ended = timeout(request.time, peer.handle(handler.clone())).await;
    let took = began.elapsed();
    match ended {
        Ok(result) => result?,
        Err(_) => return Ok(Report::rate(handler.begun(), took, true)),
    }
    match peer.unsettled().await? {
        0 => Ok(Report::rate(request.jobs, took, false)),
        left => {
            Err(format!("the clock has stopped, but {left} of {} jobs are not settled", request.jobs).into())
        }
    }
}

async fn latency<P: Peer>(peer: P, request: &Request) -> Result<Report, BoxError> {
    let jobs = usize::try_from(request.time.as_millis() / TICK.as_millis())?;
    let handler = Handler::timing(jobs);
    let worker = tokio::spawn({
        let (peer, handler) = (peer.clone(), handler.clone());
        async move { peer.handle(handler).await }
    });
    sleep(UP).await;
    let mut ticks = interval(TICK);
    // A slow enqueue must not be followed by a burst: that would be another rate than 200 a second.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for _ in 0..jobs {
        ticks.tick().await;
        peer.enqueue(&sent_now()).await?;
    }
    let ended = timeout(LAST, worker).await;
    if let Ok(result) = ended {
        result??;
    }
    Ok(Report::latency(handler.ages(), handler.begun() < jobs))
}
