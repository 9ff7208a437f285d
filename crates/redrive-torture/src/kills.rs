//! Random kills: a worker that does everything at once dies by SIGKILL, at any moment, again and again.
//!
//! One database lives through many deaths, because what one leaves behind the next one meets: attempts that were charged,
//! suspects, circuits, half a log. After every death the oracle looks; in the end everything is brought to its end and judged.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::dice::Dice;
use crate::judge;
use crate::lanes::Lanes;
use crate::options::Options;
use crate::oracle::Oracle;
use crate::process::{Site, this_program};
use crate::report::Report;
use crate::subject::Counting;

/// So many deaths one database lives through.
const DEATHS: std::ops::Range<u64> = 10..40;

/// A worker that has not acknowledged anything after this long hangs.
const LONGEST_START: Duration = Duration::from_secs(20);

/// Kills workers until the time is over.
pub fn run(options: &Options) -> Report {
    match this_program() {
        Ok(program) => run_with(options, &program),
        Err(error) => Report::failed(error),
    }
}

/// The same with a worker from elsewhere.
pub fn run_with(options: &Options, program: &Path) -> Report {
    let report = Report::of("random kills", "kills", options.seed);
    Lanes::run(options.begin(), report, |lanes, lane, runtime| {
        let mut dice = Dice::split(options.seed, lane);
        // The first kill of every database is asked for below.
        while lanes.another() {
            if let Err(error) = one_database(lanes, &mut dice, program, runtime) {
                lanes.fail(error.to_string());
            }
            if lanes.is_broken() {
                return;
            }
        }
    })
}

fn one_database(lanes: &Lanes, dice: &mut Dice, program: &Path, runtime: &Runtime) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let counting = if dice.percent(50) { Counting::Event } else { Counting::Subscription };
    let site = Site::new(folder.path(), counting);
    let mut oracle = Oracle::new(counting);
    for death in 0..dice.within(DEATHS) {
        if death > 0 && !lanes.another() {
            break;
        }
        let seed = dice.roll();
        if let Err(why) = one_life(&site, dice, program, seed)? {
            lanes.take_back();
            oracle.complain(format!("{why} (worker seed {seed})"));
            break;
        }
        runtime.block_on(oracle.look_at_file(&site.database, &site.journal));
    }
    runtime.block_on(oracle.examine(&site.database, &site.journal));
    lanes.report(|report| {
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
        further.push("--sync-journal"); // slower, and so at other moments
    }
    let mut worker = site.start(program, seed, &further)?;
    let life = if dice.percent(25) {
        // Opening, recovering, migrating.
        dice.millis(0..12)
    } else {
        // Its first line says only that it has begun.
        let started = Instant::now();
        while site.journal_length() <= before + 40 {
            if !worker.is_running()? {
                return Ok(Err(format!("the worker ended by itself: {}", worker.complaints())));
            }
            if started.elapsed() > LONGEST_START {
                return Ok(Err("the worker does nothing".into()));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        dice.millis(0..80)
    };
    // The moment of the kill is the experiment; nothing is waited for.
    std::thread::sleep(life);
    if worker.kill()? {
        return Ok(Ok(()));
    }
    Ok(Err(format!("the worker ended by itself: {}", worker.complaints())))
}
