//! Random kills: kills a worker by SIGKILL at random moments, again and again.
//!
//! One database lives through many kills, because each meets the remains of the last: charged attempts, suspects, circuits,
//! an incomplete log. The oracle looks after every kill; at the end a bus drains the database and the oracle judges it.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::dice::Dice;
use crate::judge;
use crate::options::Options;
use crate::oracle::Oracle;
use crate::parallel::ParallelRuns;
use crate::process::{Site, this_program};
use crate::report::Report;
use crate::subject::Counting;

/// Number of kills of one database.
const DEATHS: std::ops::Range<u64> = 10..40;

/// Timeout of the first acknowledgement of a worker.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Kills workers until the time is over.
pub fn run(options: &Options) -> Report {
    match this_program() {
        Ok(program) => run_with(options, &program),
        Err(error) => Report::failed(error),
    }
}

/// Kills workers of another program.
pub fn run_with(options: &Options, program: &Path) -> Report {
    let report = Report::of("random kills", "kills", options.seed);
    ParallelRuns::run(options.begin(), report, |runs, runner, runtime| {
        let mut dice = Dice::split(options.seed, runner);
        // The first round of every database is counted below.
        while runs.another() {
            if let Err(error) = one_database(runs, &mut dice, program, runtime) {
                runs.fail(error.to_string());
            }
            if runs.is_broken() {
                return;
            }
        }
    })
}

fn one_database(runs: &ParallelRuns, dice: &mut Dice, program: &Path, runtime: &Runtime) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let counting = if dice.percent(50) { Counting::Event } else { Counting::Subscription };
    let site = Site::new(folder.path(), counting);
    let mut oracle = Oracle::new(counting);
    for death in 0..dice.within(DEATHS) {
        if death > 0 && !runs.another() {
            break;
        }
        let seed = dice.roll();
        if let Err(why) = one_life(&site, dice, program, seed)? {
            runs.take_back();
            oracle.complain(format!("{why} (worker seed {seed})"));
            break;
        }
        runtime.block_on(oracle.look_at_file(&site.database, &site.journal));
    }
    runtime.block_on(oracle.examine(&site.database, &site.journal));
    runs.report(|report| {
        oracle.add_to(report);
        if !oracle.is_content() {
            judge::keep(folder, counting, report);
        }
    });
    Ok(())
}

/// Starts a worker and kills it: while it begins, or at work.
fn one_life(site: &Site, dice: &mut Dice, program: &Path, seed: u64) -> io::Result<Result<(), String>> {
    let before = site.journal_length();
    let is_alone = dice.percent(25);
    let mut further = if is_alone { vec!["--publishers", "1", "--alone"] } else { vec!["--publishers", "4"] };
    if dice.percent(25) {
        further.push("--sync-journal"); // slower, so the kill hits other moments
    }
    let mut worker = site.start(program, seed, &further)?;
    let life = if dice.percent(25) {
        // While it opens, recovers and migrates.
        dice.millis(0..12)
    } else {
        // Its first line only says that it has started.
        let started = Instant::now();
        while site.journal_length() <= before + 40 {
            if !worker.is_running()? {
                return Ok(Err(format!("the worker ended by itself: {}", worker.complaints())));
            }
            if started.elapsed() > START_TIMEOUT {
                return Ok(Err("the worker does nothing".into()));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        dice.millis(0..80)
    };
    // The moment of the kill is random: nothing is waited for.
    std::thread::sleep(life);
    if worker.kill()? {
        return Ok(Ok(()));
    }
    Ok(Err(format!("the worker ended by itself: {}", worker.complaints())))
}
