//! Checks the machine: SQLite version, free disk space and sync latency.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::finding::Finding;
use crate::format;

const SYNCS: usize = 50;
const PAGE: [u8; 4096] = [0x5a; 4096];

/// Free space below which the next write-ahead log may not fit.
const FAIL_FREE_BYTES: u64 = 128 << 20;
const WARN_FREE_BYTES: u64 = 1 << 30;

/// Sync latency above which a single publisher gets less than fifty events per second.
const SLOW_SYNC: Duration = Duration::from_millis(20);
/// Sync latency below which the storage cannot be flushing.
const IMPLAUSIBLE_SYNC: Duration = Duration::from_micros(10);

pub(super) fn check(database: &Path, checks: &mut Vec<Finding>) {
    checks.push(Finding::ok("engine", format!("SQLite {}, built in", rusqlite::version())));
    let folder = match database.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    checks.push(free_space(folder));
    checks.push(syncs(folder));
}

fn free_space(folder: &Path) -> Finding {
    match fs4::available_space(folder) {
        Err(error) => Finding::fail("disk", format!("{}: {error}", folder.display()), "check the folder"),
        Ok(free) => {
            let found = format!("{} free", format::bytes(free));
            let advice = "free space: on a full disk publishing fails (nothing is damaged or lost)";
            match free {
                0..FAIL_FREE_BYTES => Finding::fail("disk", found, advice),
                FAIL_FREE_BYTES..WARN_FREE_BYTES => Finding::warn("disk", found, advice),
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
        "{:.2} ms for 4 KiB (slowest of {SYNCS}: {:.2} ms): up to {:.0} publishes/s one at a time, more when concurrent",
        median.as_secs_f64() * 1e3,
        slowest.as_secs_f64() * 1e3,
        1.0 / median.as_secs_f64().max(1e-9)
    );
    if median > SLOW_SYNC {
        return Finding::warn(
            "sync",
            found,
            "the disk is slow: publish from several tasks at once, which share a sync",
        );
    }
    if median < IMPLAUSIBLE_SYNC {
        let advice = "implausibly fast (memory, or a disk that does not flush): power loss may lose events";
        return Finding::warn("sync", found, advice);
    }
    Finding::ok("sync", found)
}

/// Overwrites the start of a temporary file, as a write-ahead log does, and syncs after each write.
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
