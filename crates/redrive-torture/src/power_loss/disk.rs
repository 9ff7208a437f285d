//! Model of a disk with a write cache: which data is durable at a moment of a run, and which may be lost.
//!
//! Rules, pessimistic wherever SQLite claims to be safe:
//!
//! - A completed sync of a file makes its length and its writes durable, as far as their calls had returned before the sync
//!   began. Nothing else does: neither closing nor the end of the process nor time.
//! - Any other change may or may not be on the disk: each write as a whole, not at all, or some of its sectors of 512 bytes; each
//!   change of a length; each file independently of the others.
//! - If a file became longer and its bytes did not arrive, it contains zeros or garbage.
//! - A name is created or removed durably only by a sync of the folder. A sync of the file is not enough, as it would be on some
//!   file systems; SQLite syncs the folder after it has created a log. Until then each name may be in any of its states since the
//!   last sync, independently of the others.
//! - Bytes beside written ones do not change, also in the same sector. SQLite relies on that ("powersafe overwrite"), and so does
//!   Redrive.

use std::collections::BTreeMap;

use super::images::below;
use super::luck::{Fate, Luck};
use super::trace::{Call, Step};
use crate::dice::Dice;

/// Atomic unit of a write.
const SECTOR: usize = 512;

/// Files after a power loss, by name.
pub(super) type Image = BTreeMap<String, Vec<u8>>;

/// State of the disk at one moment.
#[derive(Debug, Default)]
pub(super) struct Disk<'t> {
    /// All files, also those without a name.
    files: Vec<File<'t>>,
    /// Current names.
    names: BTreeMap<&'t str, usize>,
    durable_names: BTreeMap<&'t str, usize>,
    /// Changes of names since the last sync of the folder, in order.
    renamed: Vec<Renamed<'t>>,
    /// Coverage of unfinished syncs, by the step at which they began.
    syncs: BTreeMap<usize, Reach>,
    /// Number of steps taken.
    taken: usize,
}

/// A name that now refers to a file, or to none.
#[derive(Clone, Debug)]
struct Renamed<'t> {
    at: usize,
    name: &'t str,
    file: Option<usize>,
}

impl<'t> Renamed<'t> {
    fn apply(&self, names: &mut BTreeMap<&'t str, usize>) {
        match self.file {
            Some(file) => drop(names.insert(self.name, file)),
            None => drop(names.remove(self.name)),
        }
    }
}

#[derive(Debug, Default)]
struct File<'t> {
    /// Durable content.
    durable: Vec<u8>,
    /// Changes that are not durable, in order.
    pending: Vec<Change<'t>>,
    /// Current length.
    length: usize,
}

#[derive(Clone, Debug)]
struct Change<'t> {
    /// Step at which it began.
    began: usize,
    has_ended: bool,
    what: What<'t>,
}

#[derive(Clone, Debug)]
enum What<'t> {
    Write { offset: usize, bytes: &'t [u8] },
    Length(usize),
}

#[derive(Debug)]
enum Reach {
    /// Changes of a file, by the steps at which they began.
    File { file: usize, changes: Vec<usize> },
    /// Changes of names before this step.
    Folder { before: usize },
}

impl<'t> Disk<'t> {
    /// A disk with these files.
    pub(super) fn new(found: &'t Image) -> Self {
        let file = |bytes: &Vec<u8>| File { durable: bytes.clone(), length: bytes.len(), ..File::default() };
        let names: BTreeMap<&str, usize> = found.keys().map(String::as_str).zip(0..).collect();
        let files = found.values().map(file).collect();
        Disk { files, durable_names: names.clone(), names, ..Disk::default() }
    }

    /// Applies the next step of a trace.
    pub(super) fn step(&mut self, step: &'t Step) {
        let now = self.taken;
        self.taken += 1;
        match step {
            Step::Begin(call) => self.begin(now, call),
            Step::End(began) => self.end(*began),
            Step::Noted(_) => {}
        }
    }

    fn begin(&mut self, now: usize, call: &'t Call) {
        match call {
            Call::Create { name } => {
                self.file(name);
            }
            Call::Remove { name } => {
                self.names.remove(name.as_str());
                self.renamed.push(Renamed { at: now, name, file: None });
            }
            Call::Write { name, offset, bytes } => {
                let file = self.file(name);
                let offset =
                    offset.map_or(file.length, |offset| usize::try_from(offset).unwrap_or(usize::MAX));
                file.length = file.length.max(offset + bytes.len());
                file.pending.push(Change {
                    began: now,
                    has_ended: false,
                    what: What::Write { offset, bytes },
                });
            }
            Call::Resize { name, length } => {
                let length = usize::try_from(*length).unwrap_or(usize::MAX);
                let file = self.file(name);
                file.length = length;
                file.pending.push(Change { began: now, has_ended: false, what: What::Length(length) });
            }
            Call::Sync { name } => {
                let pending = self.file(name).pending.iter();
                let changes = pending.filter(|change| change.has_ended).map(|change| change.began).collect();
                let file = self.names[name.as_str()];
                self.syncs.insert(now, Reach::File { file, changes });
            }
            Call::SyncFolder => {
                self.syncs.insert(now, Reach::Folder { before: now });
            }
        }
    }

    fn end(&mut self, began: usize) {
        match self.syncs.remove(&began) {
            Some(Reach::File { file, changes }) => self.files[file].make_durable(&changes),
            Some(Reach::Folder { before }) => {
                let durable = self.renamed.partition_point(|renamed| renamed.at < before);
                for renamed in self.renamed.drain(..durable) {
                    renamed.apply(&mut self.durable_names);
                }
            }
            None => {
                for file in &mut self.files {
                    if let Ok(index) = file.pending.binary_search_by_key(&began, |change| change.began) {
                        file.pending[index].has_ended = true;
                    }
                }
            }
        }
    }

    /// The file of this name; a new one if there is none.
    fn file(&mut self, name: &'t str) -> &mut File<'t> {
        let index = *self.names.entry(name).or_insert_with(|| {
            self.files.push(File::default());
            let file = self.files.len() - 1;
            self.renamed.push(Renamed { at: self.taken - 1, name, file: Some(file) });
            file
        });
        &mut self.files[index]
    }

    /// Files without a power loss.
    pub(super) fn everything(&self) -> Image {
        let whole = |file: &File<'t>| {
            let mut bytes = file.durable.clone();
            file.pending.iter().for_each(|change| change.apply(&mut bytes));
            bytes
        };
        self.names.iter().map(|(name, file)| ((*name).to_owned(), whole(&self.files[*file]))).collect()
    }

    /// Files after a power loss now.
    pub(super) fn image(&self, dice: &mut Dice) -> Image {
        let mut names = self.durable_names.clone();
        let mut changed: Vec<&str> = self.renamed.iter().map(|renamed| renamed.name).collect();
        changed.sort_unstable();
        changed.dedup();
        for name in changed {
            let changes: Vec<_> = self.renamed.iter().filter(|renamed| renamed.name == name).collect();
            let kept = below(changes.len() + 1, dice);
            changes.iter().take(kept).for_each(|renamed| renamed.apply(&mut names));
        }
        names.into_iter().map(|(name, file)| (name.to_owned(), self.files[file].after_loss(dice))).collect()
    }
}

impl File<'_> {
    fn make_durable(&mut self, changes: &[usize]) {
        let durable = &mut self.durable;
        self.pending.retain(|change| {
            let is_durable = changes.binary_search(&change.began).is_ok();
            if is_durable {
                change.apply(durable);
            }
            !is_durable
        });
    }

    /// Content with a random part of the changes that were not durable.
    fn after_loss(&self, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        if self.pending.is_empty() {
            return bytes;
        }
        let luck = Luck::throw(self.pending.len(), dice);
        for (index, change) in self.pending.iter().enumerate() {
            match (luck.of(index, dice), &change.what) {
                (Fate::Lost, _) => {}
                (Fate::Torn, What::Write { offset, bytes: written }) => {
                    tear(&mut bytes, *offset, written, dice);
                }
                (Fate::Whole | Fate::Torn, _) => change.apply(&mut bytes),
            }
        }
        bytes
    }
}

impl Change<'_> {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self.what {
            What::Write { offset, bytes: written } => {
                grow(bytes, offset + written.len(), |_| {});
                bytes[offset..offset + written.len()].copy_from_slice(written);
            }
            What::Length(length) => bytes.resize(length, 0),
        }
    }
}

fn grow(bytes: &mut Vec<u8>, length: usize, fill: impl FnOnce(&mut [u8])) {
    let before = bytes.len();
    if before < length {
        bytes.resize(length, 0);
        fill(&mut bytes[before..]);
    }
}

/// Writes some of the sectors.
fn tear(bytes: &mut Vec<u8>, offset: usize, written: &[u8], dice: &mut Dice) {
    // Long enough for all sectors, or only for those that arrive.
    if dice.percent(50) {
        let is_rubbish = dice.percent(50);
        let mut rubbish = dice.clone();
        grow(bytes, offset + written.len(), |new| {
            if is_rubbish {
                new.fill_with(|| rubbish.roll().to_le_bytes()[0]);
            }
        });
    }
    let mut start = 0;
    while start < written.len() {
        // Sectors are aligned to the file, not to the write.
        let end = written.len().min((offset + start) / SECTOR * SECTOR + SECTOR - offset);
        if dice.percent(50) {
            grow(bytes, offset + end, |_| {});
            bytes[offset + start..offset + end].copy_from_slice(&written[start..end]);
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(name: &str, offset: u64, byte: u8, length: usize) -> Call {
        Call::Write { name: name.into(), offset: Some(offset), bytes: vec![byte; length] }
    }

    fn sync(name: &str) -> Call {
        Call::Sync { name: name.into() }
    }

    /// Calls that do not overlap.
    fn one_by_one(calls: impl IntoIterator<Item = Call>) -> Vec<Step> {
        (0..).zip(calls).flat_map(|(index, call)| [Step::Begin(call), Step::End(index * 2)]).collect()
    }

    fn disk(steps: &[Step]) -> Disk<'_> {
        let mut disk = Disk::default();
        steps.iter().for_each(|step| disk.step(step));
        disk
    }

    fn images(steps: &[Step]) -> Vec<Image> {
        let disk = disk(steps);
        (0..500).map(|number| disk.image(&mut Dice::split(7, number))).collect()
    }

    #[test]
    fn synced_data_is_in_every_image() {
        let steps =
            one_by_one([write("a", 0, 1, 1024), sync("a"), Call::SyncFolder, write("a", 512, 2, 512)]);
        for image in images(&steps) {
            assert_eq!(image["a"].len(), 1024);
            assert!(image["a"][..512].iter().all(|byte| *byte == 1));
        }
    }

    #[test]
    fn unsynced_data_is_present_absent_or_torn_at_a_sector() {
        let steps =
            one_by_one([write("a", 0, 1, 4096), sync("a"), Call::SyncFolder, write("a", 100, 2, 1000)]);
        let (mut whole, mut lost, mut torn) = (0, 0, 0);
        for image in images(&steps) {
            let second = |from: usize, to: usize| {
                let count = image["a"][from..to].iter().filter(|byte| **byte == 2).count();
                assert!(count == 0 || count == to - from, "torn inside of a sector: {from} to {to}");
                count
            };
            match second(100, 512) + second(512, 1024) + second(1024, 1100) {
                1000 => whole += 1,
                0 => lost += 1,
                _ => torn += 1,
            }
            assert!(image["a"][..100].iter().chain(&image["a"][1100..]).all(|byte| *byte == 1));
        }
        assert!(whole > 50 && lost > 50 && torn > 50, "whole {whole}, lost {lost}, torn {torn}");
    }

    #[test]
    fn a_later_write_may_arrive_without_an_earlier_one_and_a_file_may_keep_its_old_length() {
        let resize = Call::Resize { name: "a".into(), length: 512 };
        let steps = one_by_one([
            write("a", 0, 1, 2048),
            sync("a"),
            Call::SyncFolder,
            resize,
            write("a", 0, 2, 512),
            write("b", 0, 3, 512),
        ]);
        let images = images(&steps);
        let has = |length: usize, byte: u8| {
            images.iter().any(|image| image["a"].len() == length && image["a"][0] == byte)
        };
        assert!(has(2048, 1) && has(2048, 2) && has(512, 1) && has(512, 2));
        assert!(images.iter().any(|image| image.contains_key("b") && image["a"][0] == 1));
    }

    #[test]
    fn a_sync_covers_only_what_had_ended_before_it_began_and_only_once_it_has_ended() {
        let steps = [
            Step::Begin(Call::Create { name: "a".into() }),
            Step::Begin(Call::SyncFolder),
            Step::End(1),
            Step::Begin(write("a", 0, 1, 512)),
            Step::Begin(write("a", 512, 2, 512)),
            Step::End(3),
            Step::Begin(sync("a")),
            Step::End(4),
            Step::End(6),
        ];
        assert!(images(&steps[..8]).iter().any(|image| image["a"].is_empty()), "the sync had not ended");
        let after = images(&steps);
        assert!(
            after.iter().all(|image| image["a"][..512] == [1; 512]),
            "the first had ended before the sync"
        );
        assert!(after.iter().any(|image| image["a"].len() == 512), "the second had not");
    }

    #[test]
    fn a_name_is_certain_only_after_a_sync_of_the_folder() {
        let remove = || Call::Remove { name: "a".into() };
        let create = || Call::Create { name: "a".into() };
        let steps = one_by_one([
            write("a", 0, 1, 1),
            sync("a"),
            Call::SyncFolder,
            remove(),
            create(),
            write("a", 0, 2, 1),
            sync("a"),
            Call::SyncFolder,
        ]);
        let found = |steps: &[Step]| {
            let mut found: Vec<_> = images(steps).iter().map(|image| image.get("a").cloned()).collect();
            found.sort();
            found.dedup();
            found
        };
        assert_eq!(found(&steps[..4]), [None, Some(vec![1])], "synced itself, but not its name");
        assert_eq!(found(&steps[..6]), [Some(vec![1])]);
        assert_eq!(
            found(&steps[..14]),
            [None, Some(vec![1]), Some(vec![2])],
            "the old one, none, or the new one"
        );
        assert_eq!(found(&steps), [Some(vec![2])]);
    }

    #[test]
    fn with_the_power_on_everything_is_there() {
        let append = |text: &str| Call::Write { name: "log".into(), offset: None, bytes: text.into() };
        let steps = one_by_one([append("one\n"), append("two\n"), write("a", 1, 7, 2)]);
        let image = disk(&steps).everything();
        assert_eq!(image["log"], b"one\ntwo\n");
        assert_eq!(image["a"], [0, 7, 7]);
    }
}
