//! When a deferred delivery or a retry is due: at an instant, or whenever its subscription's backlog is claimed.

use redrive_retry::Timestamp;

/// The number that stands for [`Due::Backlog`] in the `due_at` column of both stores. The statements and the partial indexes of the
/// schemas contain it. It lies in the year 287,168, so ordinary claims never reach it.
const BACKLOG_MILLIS: i64 = 9_000_000_000_000_000;

/// The time at which a delivery may be claimed again. An instant sorts before the backlog.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// At this instant.
    At(Timestamp),
    /// When a limit frees: [`WorkQueue::claim_backlog`](crate::WorkQueue::claim_backlog) takes it, [`WorkQueue::claim`](crate::WorkQueue::claim) does not.
    Backlog,
}

impl Due {
    /// The instant; `None` for the backlog.
    pub fn at(self) -> Option<Timestamp> {
        match self {
            Due::At(at) => Some(at),
            Due::Backlog => None,
        }
    }

    /// The value of a `due_at` column.
    pub(crate) fn to_sql_millis(self) -> i64 {
        self.at().map_or(BACKLOG_MILLIS, Timestamp::as_millis)
    }

    /// Reads the value of a `due_at` column.
    pub(crate) fn from_sql_millis(millis: i64) -> Self {
        if millis == BACKLOG_MILLIS { Due::Backlog } else { Due::At(Timestamp::from_millis(millis)) }
    }
}

impl From<Timestamp> for Due {
    fn from(at: Timestamp) -> Self {
        Due::At(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs;
    use std::path::{Path, PathBuf};

    /// The texts that contain SQL: statements in Rust files, and schemas.
    const FOLDERS: [&str; 3] = ["src/sqlite", "src/postgres", "src/sql"];

    /// Long numbers in SQL with another meaning: the largest key, and the last second that a date can show.
    const OTHER_NUMBERS: [i64; 2] = [i64::MAX, 253_402_300_799_000];

    /// A number in SQL with this many digits must be one of the known ones. Today's time has 13.
    const MIN_DIGITS: usize = 14;

    fn files_in(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files_in(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "sql") {
                found.push(path);
            }
        }
    }

    fn long_numbers(text: &str) -> impl Iterator<Item = &str> {
        text.split(|character: char| !character.is_ascii_digit()).filter(|digits| digits.len() >= MIN_DIGITS)
    }

    #[test]
    fn every_sql_text_writes_the_backlog_as_the_constant_does() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        // `BETWEEN` includes its end, so statements about instants end one millisecond before the backlog.
        let known = [BACKLOG_MILLIS, BACKLOG_MILLIS - 1].map(|millis| millis.to_string());
        let other = OTHER_NUMBERS.map(|number| number.to_string());
        let mut in_backends = [0; FOLDERS.len()];
        for (folder, seen) in FOLDERS.iter().zip(&mut in_backends) {
            let mut files = Vec::new();
            files_in(&root.join(folder), &mut files);
            for file in files {
                let text = fs::read_to_string(&file).unwrap();
                for number in long_numbers(&text).filter(|number| !other.iter().any(|other| other == number))
                {
                    assert!(known.iter().any(|known| known == number), "{number} in {}", file.display());
                    *seen += 1;
                }
            }
        }
        assert!(in_backends[0] > 10 && in_backends[1] > 10, "the statements were read: {in_backends:?}");
    }
}
