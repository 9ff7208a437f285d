//! The machine: the engine, room on the disk, and how fast it syncs.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::finding::Finding;
use crate::label;

const SYNCS: usize = 50;
const PAGE: [u8; 4096] = [0x5a; 4096];

/// Below this, the next write-ahead log may not fit.
const TOO_LITTLE: u64 = 128 << 20;
const LITTLE: u64 = 1 << 30;

/// Slower than this, one publisher alone gets less than fifty events a second.
const SLOW: Duration = Duration::from_millis(20);
/// No storage that keeps its word is as fast as this.
const TOO_FAST: Duration = Duration::from_micros(10);

pub(super) fn check(database: &Path, checks: &mut Vec<Finding>) {
    checks.push(Finding::ok("engine", format!("SQLite {}, built in", rusqlite::version())));
    let folder = match database.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    checks.push(room(folder));
    checks.push(syncs(folder));
}

fn room(folder: &Path) -> Finding {
    match fs4::available_space(folder) {
        Err(error) => Finding::fail("disk", format!("{}: {error}", folder.display()), "check the folder"),
        Ok(free) => {
            let found = format!("{} free", label::bytes(free));
            let advice =
                "make room: when the disk is full, publishing fails (nothing breaks, and nothing is lost)";
            match free {
                0..TOO_LITTLE => Finding::fail("disk", found, advice),
                TOO_LITTLE..LITTLE => Finding::warn("disk", found, advice),
                _ => Finding::ok("disk", found),
            }
        }
    }
}

fn syncs(folder: &Path) -> Finding {
    let mut times = match measure(folder) {
        Ok(times) => times,
        Err(error) => {
            let found = format!("cannot write in {}: {error}", folder.display());
            return Finding::fail("sync", found, "check the permissions of the folder");
        }
    };
    times.sort_unstable();
    let (median, slowest) = (times[SYNCS / 2], times[SYNCS - 1]);
    let found = format!(
        "{:.2} ms for 4 KiB (slowest of {SYNCS}: {:.2} ms): up to {:.0} publishes/s one at a time, many more at once",
        median.as_secs_f64() * 1e3,
        slowest.as_secs_f64() * 1e3,
        1.0 / median.as_secs_f64().max(1e-9)
    );
    if median > SLOW {
        return Finding::warn(
            "sync",
            found,
            "a slow disk: publish from several tasks at once, which share a sync",
        );
    }
    if median < TOO_FAST {
        let advice =
            "too fast to be true (memory, or a disk that does not flush): power loss may take events";
        return Finding::warn("sync", found, advice);
    }
    Finding::ok("sync", found)
}

/// Overwrites the beginning of a file of our own, as a log does, and syncs each time.
fn measure(folder: &Path) -> std::io::Result<[Duration; SYNCS]> {
    let mut file = tempfile::tempfile_in(folder)?;
    let mut times = [Duration::ZERO; SYNCS];
    for time in &mut times {
        file.seek(SeekFrom::Start(0))?;
        let began = Instant::now();
        file.write_all(&PAGE)?;
        file.sync_data()?;
        *time = began.elapsed();
    }
    Ok(times)
}
