//! Parses the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::peer::BoxError;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Measure {
    /// Only creates the tables.
    Setup,
    /// One caller enqueues one job after the other.
    One,
    /// This many callers enqueue one job after the other.
    Callers(usize),
    /// One caller enqueues a thousand with each call.
    Batch,
    /// Jobs that wait on disk are handled.
    Process,
    /// 200 jobs a second are enqueued and handled.
    Latency,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) measure: Measure,
    /// A file, or the address of a server.
    pub(crate) file: PathBuf,
    pub(crate) setting: String,
    pub(crate) jobs: usize,
    /// When to stop even if not all is done; for latency, how long to enqueue.
    pub(crate) time: Duration,
}

impl Request {
    pub(crate) fn from_args() -> Result<Self, BoxError> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let [measure, file, setting, jobs, seconds] = args.as_slice() else {
            return Err(
                "usage: <setup|one|callers|callers-32|batch|process|latency> <file> <setting> <jobs> <seconds>"
                    .into(),
            );
        };
        let measure = match measure.as_str() {
            "setup" => Measure::Setup,
            "one" => Measure::One,
            "callers" => Measure::Callers(64),
            "callers-32" => Measure::Callers(32),
            "batch" => Measure::Batch,
            "process" => Measure::Process,
            "latency" => Measure::Latency,
            other => return Err(format!("{other} is not a measure").into()),
        };
        let time = Duration::try_from_secs_f64(seconds.parse()?)?;
        Ok(Request { measure, file: file.into(), setting: setting.clone(), jobs: jobs.parse()?, time })
    }
}
