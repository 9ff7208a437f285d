//! The harness's own log of acknowledgements, handler runs and requests, apart from the database.
//!
//! One line is one fact, written by one call: it is complete or absent. It survives the death of its process, because the
//! system has it; where the power fails, every line is synced as well.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use redrive::{EventId, EventType};

use crate::plan::Plan;

/// A fact that is certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A process began to work, with this seed.
    Begin {
        /// The process's seed.
        seed: u64,
    },
    /// A publisher was told that its event is on stable storage.
    Ack {
        /// The event.
        id: EventId,
        /// Planned outcome.
        plan: Plan,
        /// The event's type.
        event_type: EventType,
        /// Published at this time in milliseconds or later.
        since: i64,
        /// Hash of the rest of its content: see [`Payload::content`](crate::plan::Payload::content).
        content: u64,
    },
    /// A publisher was told that its event is done or dead.
    Finished {
        /// The event.
        id: EventId,
    },
    /// A handler ran to its end.
    Handled {
        /// The event.
        id: EventId,
        /// The subscription.
        subscription: String,
        /// The life: seed of its process.
        life: u64,
    },
    /// A handler failed.
    Failed {
        /// The event.
        id: EventId,
        /// The subscription whose handler failed.
        subscription: String,
        /// Number of the attempt.
        attempt: u32,
        /// When the event was published, in milliseconds, as the handler saw it.
        created: i64,
    },
    /// A redrive of a dead event begins.
    RedriveBegin {
        /// The event.
        id: EventId,
        /// The event's new plan, if its payload is edited.
        edited: Option<Plan>,
    },
    /// The redrive succeeded.
    Redriven {
        /// The event.
        id: EventId,
        /// The event's new plan, if its payload was edited.
        edited: Option<Plan>,
    },
    /// A purge of dead events begins.
    PurgeBegin {
        /// Published until then, in milliseconds.
        until: i64,
        /// One of them, published in that very millisecond: dead, and not owed to any subscription.
        last: EventId,
        /// Number of dead events that were old enough just before; the maximum if there were more than the list showed.
        candidates: u64,
    },
    /// The purge succeeded.
    Purged {
        /// Published until then, in milliseconds.
        until: i64,
        /// Number of deleted events.
        count: u64,
    },
    /// The bus refused a request.
    Refused {
        /// Object of the request.
        whom: Whom,
        /// Kind of refusal.
        refusal: Refusal,
        /// The bus's error message.
        why: String,
    },
}

/// Object of a refused request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// An event.
    Event(EventId),
    /// All events of a batch, by its key.
    Batch(u64),
    /// Anything else.
    Other,
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whom::Event(id) => id.fmt(f),
            Whom::Batch(key) => key.fmt(f),
            Whom::Other => f.write_str("-"),
        }
    }
}

impl FromStr for Whom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let event = || text.parse().ok().map(Whom::Event);
        let batch = || text.parse().ok().map(Whom::Batch);
        let found = if text == "-" { Some(Whom::Other) } else { event().or_else(batch) };
        found.ok_or_else(|| format!("{text:?} is neither an event nor a batch"))
    }
}

/// Kind of a refusal.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Nothing was stored, because the disk is full.
    DiskFull,
    /// Nothing was stored, because another process holds the file.
    Busy,
    /// It may be stored or not.
    Unknown,
    /// The store has stopped.
    Stopped,
    /// The bus did not answer in time.
    NoAnswer,
    /// Anything else.
    Other,
}

impl Refusal {
    const ALL: [(Refusal, &str); 6] = [
        (Refusal::DiskFull, "disk-full"),
        (Refusal::Busy, "busy"),
        (Refusal::Unknown, "unknown"),
        (Refusal::Stopped, "stopped"),
        (Refusal::NoAnswer, "no answer"),
        (Refusal::Other, "other"),
    ];

    /// Whether it says that nothing was stored.
    pub fn promises_nothing_stored(self) -> bool {
        matches!(self, Refusal::DiskFull | Refusal::Busy)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(refusal, _)| refusal == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

fn or_dash(part: Option<&impl fmt::Display>) -> String {
    part.map_or_else(|| "-".to_owned(), ToString::to_string)
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fact::Begin { seed } => write!(f, "begin {seed}"),
            Fact::Ack { id, plan, event_type, since, content } => {
                write!(f, "ack {id} {plan} {event_type} {since} {content}")
            }
            Fact::Finished { id } => write!(f, "finished {id}"),
            Fact::Handled { id, subscription, life } => write!(f, "handled {id} {subscription} {life}"),
            Fact::Failed { id, subscription, attempt, created } => {
                write!(f, "failed {id} {subscription} {attempt} {created}")
            }
            Fact::RedriveBegin { id, edited } => write!(f, "redrive-begin {id} {}", or_dash(edited.as_ref())),
            Fact::Redriven { id, edited } => write!(f, "redriven {id} {}", or_dash(edited.as_ref())),
            Fact::PurgeBegin { until, last, candidates } => {
                write!(f, "purge-begin {until} {last} {candidates}")
            }
            Fact::Purged { until, count } => write!(f, "purged {until} {count}"),
            Fact::Refused { whom, refusal, why } => {
                write!(f, "refused {whom} {refusal} {}", why.replace(['\n', '\r'], " "))
            }
        }
    }
}

impl FromStr for Fact {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        fn next<T: FromStr>(line: &str, parts: &mut std::str::SplitN<'_, char>) -> Result<T, String> {
            let part = parts.next().and_then(|part| part.parse().ok());
            part.ok_or_else(|| format!("the journal cannot be read: {line:?}"))
        }
        let mut parts = line.splitn(6, ' ');
        let kind: String = next(line, &mut parts)?;
        let parts = &mut parts;
        Ok(match kind.as_str() {
            "begin" => Fact::Begin { seed: next(line, parts)? },
            "ack" => {
                let (id, plan) = (next(line, parts)?, next(line, parts)?);
                let event_type: String = next(line, parts)?;
                let event_type = EventType::new(event_type).map_err(|error| error.to_string())?;
                let since = next(line, parts)?;
                Fact::Ack { id, plan, event_type, since, content: next(line, parts)? }
            }
            "finished" => Fact::Finished { id: next(line, parts)? },
            "handled" => Fact::Handled {
                id: next(line, parts)?,
                subscription: next(line, parts)?,
                life: next(line, parts)?,
            },
            "failed" => Fact::Failed {
                id: next(line, parts)?,
                subscription: next(line, parts)?,
                attempt: next(line, parts)?,
                created: next(line, parts)?,
            },
            "redrive-begin" | "redriven" => {
                let id = next(line, parts)?;
                let plan: String = next(line, parts)?;
                let edited = if plan == "-" { None } else { Some(plan.parse()?) };
                match kind.as_str() {
                    "redriven" => Fact::Redriven { id, edited },
                    _ => Fact::RedriveBegin { id, edited },
                }
            }
            "purge-begin" => Fact::PurgeBegin {
                until: next(line, parts)?,
                last: next(line, parts)?,
                candidates: next(line, parts)?,
            },
            "purged" => Fact::Purged { until: next(line, parts)?, count: next(line, parts)? },
            "refused" => {
                let whom = next(line, parts)?;
                let name: String = next(line, parts)?;
                let found = Refusal::ALL.into_iter().find(|(_, known)| *known == name);
                let (refusal, _) = found.ok_or_else(|| format!("the journal knows no refusal {name:?}"))?;
                let why = parts.collect::<Vec<_>>().join(" ");
                Fact::Refused { whom, refusal, why }
            }
            _ => return Err(format!("the journal cannot be read: {line:?}")),
        })
    }
}

/// A journal that is being written. Several processes write to it one after the other, never at the same time.
#[derive(Debug)]
pub struct Journal {
    // A std mutex: held for one write.
    file: Mutex<File>,
    life: u64,
    is_synced: bool,
}

impl Journal {
    /// Opens or creates it for a process with a name of its own, as process ids are reused. An incomplete last line of a
    /// process that died is cut off.
    pub fn open(path: &Path, life: u64, is_synced: bool) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
        let mut text = Vec::new();
        // Only the end matters; lines are shorter than this.
        let from = file.metadata()?.len().saturating_sub(4096);
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut text)?;
        if text.last().is_some_and(|last| *last != b'\n') {
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            file.set_len(from + u64::try_from(whole).unwrap_or(0))?;
        }
        Ok(Journal { file: Mutex::new(file), life, is_synced })
    }

    /// The life that writes it.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Writes a fact. A harness without its log can prove nothing, so the process ends if this fails.
    pub fn note(&self, fact: &Fact) {
        self.note_all(std::slice::from_ref(fact));
    }

    /// Writes facts that became true at the same time.
    pub fn note_all(&self, facts: &[Fact]) {
        let lines: String = facts.iter().map(|fact| format!("{fact}\n")).collect();
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if write_at_once(&mut file, lines.as_bytes(), self.is_synced).is_err() {
            std::process::exit(NO_JOURNAL);
        }
    }
}

/// Exit code of a process that could not write its journal.
pub const NO_JOURNAL: i32 = 70;

/// Writes with one call that databases do not use: faults that are injected into their calls spare it.
fn write_at_once(file: &mut File, bytes: &[u8], is_synced: bool) -> io::Result<()> {
    let written = file.write_vectored(&[IoSlice::new(bytes)])?;
    if written != bytes.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    if is_synced { file.sync_data() } else { Ok(()) }
}

/// Reads a journal, and later what was added since.
#[derive(Debug, Default)]
pub struct Reader {
    /// End of the part that was read, in bytes.
    position: u64,
}

impl Reader {
    /// Reads new facts. An incomplete last line is left for later; it may still be cut off.
    pub fn read(&mut self, path: &Path) -> io::Result<Vec<Fact>> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        file.seek(SeekFrom::Start(self.position))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        self.position += u64::try_from(whole).unwrap_or(0);
        let parse =
            |line: &str| line.parse().map_err(|why: String| io::Error::new(io::ErrorKind::InvalidData, why));
        text[..whole].lines().map(parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Vec<Fact> {
        let id = EventId::new();
        let subscription = "work".to_owned();
        vec![
            Fact::Begin { seed: 7 },
            Fact::Ack {
                id,
                plan: Plan::Fail(2),
                event_type: EventType::new("t.work").unwrap(),
                since: 5,
                content: u64::MAX,
            },
            Fact::Finished { id },
            Fact::Handled { id, subscription: subscription.clone(), life: u64::MAX },
            Fact::Failed { id, subscription, attempt: 2, created: 6 },
            Fact::RedriveBegin { id, edited: None },
            Fact::RedriveBegin { id, edited: Some(Plan::Succeed) },
            Fact::Redriven { id, edited: Some(Plan::Panic(1)) },
            Fact::PurgeBegin { until: 9, last: id, candidates: 4 },
            Fact::Purged { until: 9, count: 3 },
            Fact::Refused {
                whom: Whom::Event(id),
                refusal: Refusal::DiskFull,
                why: "no room at all, none".into(),
            },
            Fact::Refused { whom: Whom::Batch(77), refusal: Refusal::Busy, why: "b".into() },
            Fact::Refused { whom: Whom::Other, refusal: Refusal::Other, why: String::new() },
        ]
    }

    #[test]
    fn facts_are_read_back_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let (mut reader, facts) = (Reader::default(), facts());
        assert_eq!(reader.read(&path).unwrap(), []);
        let journal = Journal::open(&path, 1, true).unwrap();
        facts.iter().for_each(|fact| journal.note(fact));
        assert_eq!(reader.read(&path).unwrap(), facts);
        journal.note(&facts[0]);
        assert_eq!(reader.read(&path).unwrap(), facts[..1]);
    }

    #[test]
    fn half_a_line_is_no_fact_and_is_cut_off_by_the_next_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        std::fs::write(&path, "begin 1\nbegi").unwrap();
        let mut reader = Reader::default();
        assert_eq!(reader.read(&path).unwrap(), [Fact::Begin { seed: 1 }]);
        Journal::open(&path, 1, false).unwrap().note(&Fact::Begin { seed: 2 });
        assert_eq!(reader.read(&path).unwrap(), [Fact::Begin { seed: 2 }]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "begin 1\nbegin 2\n");
    }

    #[test]
    fn a_journal_of_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        std::fs::write(&path, "once upon a time\n").unwrap();
        assert!(Reader::default().read(&path).unwrap_err().to_string().contains("once upon"));
    }
}
