//! Fills a small file system in memory under a working bus, and empties it again.
//!
//! While the disk is full, the bus refuses every change with an error that says so, and stores nothing in part. As soon as
//! there is space, the process continues. Sometimes it is killed while the disk is full.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::dice::Dice;
use crate::journal::{Fact, Reader, Refusal};
use crate::options::Options;
use crate::oracle::Oracle;
use crate::parallel::ParallelRuns;
use crate::process::{Site, Worker, this_program};
use crate::report::Report;
use crate::subject::Counting;

/// Space for the events of some lives, and more.
const SIZE: &str = "32m";

/// Number of times that the disk of one database is full.
const FULL_TIMES: std::ops::Range<u64> = 3..8;

/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Fills disks.
pub fn run(options: &Options) -> Report {
    match this_program() {
        Ok(program) => run_with(options, &program),
        Err(error) => Report::failed(error),
    }
}

/// Fills disks under a worker of another program.
pub fn run_with(options: &Options, program: &Path) -> Report {
    let report = Report::of("full disk", "times full", options.seed);
    ParallelRuns::run(options.begin(), report, |runs, runner, runtime| {
        let mut dice = Dice::split(options.seed, runner);
        while !runs.is_broken() && runs.another() {
            if let Err(error) = one_disk(runs, &mut dice, program, runtime) {
                runs.take_back();
                return runs.fail(error.to_string());
            }
        }
    })
}

fn one_disk(runs: &ParallelRuns, dice: &mut Dice, program: &Path, runtime: &Runtime) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let disk = Disk::mount(SIZE)?;
    let counting = if dice.percent(50) { Counting::Event } else { Counting::Subscription };
    let site = Site::with_database(folder.path(), disk.path().join("events.db"), counting);
    let mut oracle = Oracle::new(counting);
    let mut watch = Watch { site: &site, reader: Reader::default() };
    let mut worker: Option<Worker> = None;
    for time in 0..dice.within(FULL_TIMES) {
        if time > 0 && !runs.another() {
            break;
        }
        let running = match &mut worker {
            Some(worker) => worker,
            None => worker.insert(site.start(program, dice.roll(), &["--rest"])?),
        };
        match one_time(&disk, &mut watch, running, dice)? {
            Ok(true) => {}
            // No call was refused.
            Ok(false) => runs.take_back(),
            Err(why) => {
                oracle.complain(why);
                break;
            }
        }
        // Killed while the disk is full or after it was emptied; otherwise the process meets the next time.
        if dice.percent(40) {
            let full = dice.percent(50).then(|| disk.fill()).transpose()?;
            std::thread::sleep(dice.millis(0..20));
            running.kill()?;
            worker = None;
            runtime.block_on(oracle.look_at_file(&site.database, &site.journal));
            drop(full);
        }
    }
    // The process that met the full disk drains by itself.
    if let Some(mut worker) = worker {
        worker.signal(Signal::TERM)?;
        match worker.wait(TIMEOUT * 3)? {
            Some(status) if status.success() => {}
            Some(status) => {
                oracle.complain(format!("the worker ended with {status}: {}", worker.complaints()));
            }
            None => oracle.complain("the worker that was asked to end did not".to_owned()),
        }
    }
    runtime.block_on(oracle.examine(&site.database, &site.journal));
    runs.report(|report| oracle.add_to(report));
    Ok(())
}

/// Fills the disk for a moment. Returns whether a call was refused; `Err` says what the bus did wrong.
fn one_time(
    disk: &Disk,
    watch: &mut Watch<'_>,
    worker: &mut Worker,
    dice: &mut Dice,
) -> io::Result<Result<bool, String>> {
    let is_ack = |fact: &Fact| matches!(fact, Fact::Ack { .. });
    watch.forget()?;
    if let Err(why) = watch.until(worker, "acknowledges anything", is_ack)? {
        return Ok(Err(why));
    }
    let full = disk.fill()?;
    // Does not wait for a refusal: all publishers may wait for the end of an event, which needs space.
    std::thread::sleep(dice.millis(20..150));
    drop(full);
    let refused = match watch.read()? {
        Ok(facts) => facts.iter().any(|fact| matches!(fact, Fact::Refused { .. })),
        Err(why) => return Ok(Err(why)),
    };
    Ok(watch.until(worker, "goes on though there is room again", is_ack)?.map(|()| refused))
}

/// Reads the worker's journal.
struct Watch<'a> {
    site: &'a Site,
    reader: Reader,
}

impl Watch<'_> {
    /// Skips the facts so far.
    fn forget(&mut self) -> io::Result<()> {
        self.reader.read(&self.site.journal).map(drop)
    }

    /// New facts. The bus must not report a full disk as anything else.
    fn read(&mut self) -> io::Result<Result<Vec<Fact>, String>> {
        let facts = self.reader.read(&self.site.journal)?;
        for fact in &facts {
            if let Fact::Refused { refusal, why, .. } = fact
                && *refusal != Refusal::DiskFull
            {
                return Ok(Err(format!("a full disk was not called one: {refusal}: {why}")));
            }
        }
        Ok(Ok(facts))
    }

    /// Waits for a fact.
    fn until(
        &mut self,
        worker: &mut Worker,
        what: &str,
        wanted: impl Fn(&Fact) -> bool,
    ) -> io::Result<Result<(), String>> {
        let began = Instant::now();
        loop {
            match self.read()? {
                Err(why) => return Ok(Err(why)),
                Ok(facts) if facts.iter().any(&wanted) => return Ok(Ok(())),
                Ok(_) => {}
            }
            if !worker.is_running()? {
                return Ok(Err(format!("the worker ended by itself: {}", worker.complaints())));
            }
            if began.elapsed() > TIMEOUT {
                return Ok(Err(format!("for {} s the worker never {what}", TIMEOUT.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A file system of a fixed size. Gone when dropped.
struct Disk {
    folder: TempDir,
}

impl Disk {
    fn mount(size: &str) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(folder.path())
            .output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!(
                "no small file system can be mounted ({}): run as root, or under `unshare --map-root-user --mount`",
                said.trim()
            )));
        }
        Ok(Disk { folder })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Fills the disk until the returned value is dropped.
    fn fill(&self) -> io::Result<Ballast> {
        let path = self.path().join("ballast");
        let mut file = File::create(&path)?;
        let mut size = 1 << 20;
        while size > 0 {
            match file.write_all(&vec![0; size]) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => size /= 4,
                Err(error) => return Err(error),
            }
        }
        Ok(Ballast { path })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, as a process may still use it; the folder is removed next.
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

/// File that fills the disk.
struct Ballast {
    path: PathBuf,
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // if it stays, the next round fails
    }
}
