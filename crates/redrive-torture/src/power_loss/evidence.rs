//! Puts an image into a folder, asks the oracle, and keeps what can be looked at again.

use std::fmt::Write;
use std::hash::Hasher;
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use redrive::{SqliteOptions, SqliteStore, Store, StoreError};
use redrive_retry::planted::Planted;
use tokio::runtime::Runtime;

use super::disk::Image;
use super::images::Loss;
use super::recording::DATABASE;
use crate::journal::Fact;
use crate::oracle::{Oracle, integrity};
use crate::process::in_memory;
use crate::report::Report;
use crate::subject::{AUDIT, Counting, FRAGILE, WORK};

/// How closely an image is looked at.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Open it, compare everything in it with the journal, check the file.
    Once,
    /// The same, and then let a bus do all that is left, and compare again.
    ToTheEnd,
}

/// What is found in the images of one recording.
#[derive(Debug)]
pub(super) struct Evidence<'e> {
    /// Where the recording is.
    recorded: &'e Path,
    /// Where images are put.
    scratch: &'e Path,
    /// Where something is kept, if anything is.
    kept: Option<PathBuf>,
}

impl<'e> Evidence<'e> {
    pub(super) fn new(recorded: &'e Path, scratch: &'e Path) -> Self {
        Evidence { recorded, scratch, kept: None }
    }

    /// Says what is wrong with an image.
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
            oracle.complain(format!("after the loss of power the store does not work: {error}"));
        }
        integrity(&database).err().into_iter().for_each(|damage| oracle.complain(damage));
        Ok(Report { duplicates: 0, ..report(&oracle) })
    }

    /// Keeps an image with all that is needed to look at it again, and says where. Of a bug that was planted nothing is kept.
    pub(super) fn keep(
        &mut self,
        loss: &Loss<'_>,
        counting: Counting,
        wrong: &[String],
    ) -> io::Result<Option<PathBuf>> {
        if std::env::var_os(Planted::VARIABLE).is_some() {
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

/// Where the facts are, beside the files of an image.
const FACTS: &str = "facts";

/// Where it stands how failures are counted.
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

/// Looks at a kept image again. What was kept stays as it is.
pub(super) fn look_again(kept: &Path, runtime: &Runtime) -> io::Result<Report> {
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

/// Lets a bus do what is left in an image.
fn look_to_the_end(folder: &Path, counting: Counting, runtime: &Runtime) -> Report {
    let journal = folder.join(FACTS);
    let mut oracle = Oracle::after_power_loss(counting);
    oracle.read(&journal);
    let before = oracle.duplicates();
    runtime.block_on(oracle.examine(&folder.join(DATABASE), &journal));
    let report = report(&oracle);
    // Only those that the loss of power has made.
    Report { duplicates: report.duplicates.saturating_sub(before), ..report }
}

fn report(oracle: &Oracle) -> Report {
    let mut report = Report::default();
    oracle.add_to(&mut report);
    report
}

/// Opens the image itself, and not a copy of it: nobody needs it any more.
async fn look_once(oracle: &mut Oracle, database: &Path) -> Result<(), StoreError> {
    let store = SqliteStore::open(database, SqliteOptions { owner: false, ..SqliteOptions::default() })?;
    oracle.look(&store).await;
    // Nothing is published before the bus has started, and then its subscriptions are on record.
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

/// Nothing but the image is in the folder afterwards: no log and no index of the one before.
pub(super) fn put(image: &Image, folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => std::fs::create_dir_all(folder)?,
    }
    image.iter().try_for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes))
}

/// As a journal that can be read, and written on.
fn put_facts(facts: &[Fact], folder: &Path) -> io::Result<()> {
    let lines = facts.iter().fold(String::new(), |mut lines, fact| {
        let _ = writeln!(lines, "{fact}");
        lines
    });
    std::fs::write(folder.join(FACTS), lines)
}

/// Images with the same content have the same number, and others hardly ever.
pub(super) fn fingerprint(image: &Image) -> u64 {
    let mut all = std::hash::DefaultHasher::new();
    for (name, bytes) in image {
        all.write(name.as_bytes());
        let (words, rest) = bytes.as_chunks::<8>();
        // Quick rather than strong: nobody chooses these bytes to deceive it.
        let words = words.iter().fold(0, |sum: u64, word| {
            (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x517c_c1b7_2722_0a95)
        });
        all.write_u64(words);
        all.write(rest);
        all.write_usize(bytes.len());
    }
    all.finish()
}
