//! Writes an image into a folder, asks the oracle, and keeps images with violations.

use std::fmt::Write;
use std::hash::Hasher;
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use redrive::store::{SqliteOptions, SqliteStore, StoreError};
use redrive_retry::fault;
use redrive_store::traits::*;
use tokio::runtime::Runtime;

use super::disk::Image;
use super::images::Loss;
use super::recording::DATABASE;
use crate::journal::Fact;
use crate::oracle::{Oracle, integrity};
use crate::process::in_memory;
use crate::report::Report;
use crate::subject::{AUDIT, Counting, FRAGILE, WORK};

/// Depth of an examination.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Open it, compare it with the journal, check the file.
    Once,
    /// Also drain it with a bus, and compare again.
    ToTheEnd,
}

/// Examines the images of one recording.
#[derive(Debug)]
pub(super) struct Evidence<'e> {
    /// Folder of the recording.
    recorded: &'e Path,
    /// Folder of images.
    scratch: &'e Path,
    /// Folder of kept images, if any.
    kept: Option<PathBuf>,
}

impl<'e> Evidence<'e> {
    pub(super) fn new(recorded: &'e Path, scratch: &'e Path) -> Self {
        Evidence { recorded, scratch, kept: None }
    }

    /// Reports the violations of an image.
    pub(super) fn examine(
        &self,
        loss: &Loss<'_>,
        counting: Counting,
        look: Look,
        runtime: &Runtime,
    ) -> io::Result<Report> {
        let folder = self.scratch.join("image");
        put(&loss.image, &folder)?;
        if look == Look::ToTheEnd {
            put_facts(loss.facts, &folder)?;
            return Ok(look_to_the_end(&folder, counting, runtime));
        }
        let mut oracle = Oracle::after_power_loss(counting);
        oracle.hear(loss.facts.iter().cloned());
        let database = folder.join(DATABASE);
        if let Err(error) = runtime.block_on(look_once(&mut oracle, &database)) {
            oracle.complain(format!("after the power loss the store does not work: {error}"));
        }
        integrity(&database).err().into_iter().for_each(|damage| oracle.complain(damage));
        Ok(Report { duplicates: 0, ..report(&oracle) })
    }

    /// Keeps an image with all that is needed to examine it again, and returns its folder. Images of planted bugs are not
    /// kept.
    pub(super) fn keep(
        &mut self,
        loss: &Loss<'_>,
        counting: Counting,
        wrong: &[String],
    ) -> io::Result<Option<PathBuf>> {
        if std::env::var_os(fault::VARIABLE).is_some() {
            return Ok(None);
        }
        let kept = match &self.kept {
            Some(kept) => kept,
            None => self.kept.insert(keep_traces(self.recorded)?),
        };
        let folder = kept.join(format!("image-{}", loss.number));
        put(&loss.image, &folder)?;
        put_facts(loss.facts, &folder)?;
        let counting = counting.to_possible_value().map(|value| value.get_name().to_owned());
        std::fs::write(folder.join(COUNTING), counting.unwrap_or_default())?;
        std::fs::write(folder.join("wrong"), wrong.join("\n") + "\n")?;
        Ok(Some(folder))
    }
}

/// File of the facts, beside the files of an image.
const FACTS: &str = "facts";

/// File that names the tracking.
const COUNTING: &str = "counting";

fn keep_traces(recorded: &Path) -> io::Result<PathBuf> {
    let folder = tempfile::Builder::new().prefix("redrive-power-loss-").tempdir()?.keep();
    for entry in std::fs::read_dir(recorded)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("trace-") {
            std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
        }
    }
    Ok(folder)
}

/// Examines a copy of a kept image again.
pub(super) fn examine_kept(kept: &Path, runtime: &Runtime) -> io::Result<Report> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let counting = std::fs::read_to_string(kept.join(COUNTING))?;
    let counting = Counting::from_str(counting.trim(), true).map_err(invalid)?;
    let copy = in_memory()?;
    for entry in std::fs::read_dir(kept)? {
        let entry = entry?;
        std::fs::copy(entry.path(), copy.path().join(entry.file_name()))?;
    }
    Ok(look_to_the_end(copy.path(), counting, runtime))
}

/// Drains an image with a bus.
fn look_to_the_end(folder: &Path, counting: Counting, runtime: &Runtime) -> Report {
    let journal = folder.join(FACTS);
    let mut oracle = Oracle::after_power_loss(counting);
    oracle.read(&journal);
    let before = oracle.duplicates();
    runtime.block_on(oracle.examine(&folder.join(DATABASE), &journal));
    let report = report(&oracle);
    // Only duplicates that the power loss caused.
    Report { duplicates: report.duplicates.saturating_sub(before), ..report }
}

fn report(oracle: &Oracle) -> Report {
    let mut report = Report::default();
    oracle.add_to(&mut report);
    report
}

/// Opens the image itself, which is not needed any more.
async fn look_once(oracle: &mut Oracle, database: &Path) -> Result<(), StoreError> {
    let store = SqliteStore::open(database, SqliteOptions { owner: false, ..SqliteOptions::default() })?;
    oracle.look(&store).await;
    // Before the first publish the bus has started and stored its subscriptions.
    if oracle.account().acknowledged() > 0 {
        let there = store.subscriptions().await?;
        for name in [FRAGILE, WORK, AUDIT] {
            if !there.iter().any(|subscription| subscription.name.as_str() == name) {
                oracle.complain(format!("the subscription {name} is lost"));
            }
        }
    }
    store.close().await
}

/// Replaces the folder's content by the image: no log and no index of the last one stays.
pub(super) fn put(image: &Image, folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => std::fs::create_dir_all(folder)?,
    }
    image.iter().try_for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes))
}

/// Writes facts as a journal.
fn put_facts(facts: &[Fact], folder: &Path) -> io::Result<()> {
    let lines = facts.iter().fold(String::new(), |mut lines, fact| {
        let _ = writeln!(lines, "{fact}");
        lines
    });
    std::fs::write(folder.join(FACTS), lines)
}

/// Hash of an image's content.
pub(super) fn fingerprint(image: &Image) -> u64 {
    let mut all = std::hash::DefaultHasher::new();
    for (name, bytes) in image {
        all.write(name.as_bytes());
        let (words, rest) = bytes.as_chunks::<8>();
        // Fast rather than strong: the bytes are not adversarial.
        let words = words.iter().fold(0, |sum: u64, word| {
            (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x517c_c1b7_2722_0a95)
        });
        all.write_u64(words);
        all.write(rest);
        all.write_usize(bytes.len());
    }
    all.finish()
}
