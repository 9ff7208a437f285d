//! Parses the log of `strace`: system calls that changed the files of one folder, in order.
//!
//! A call has a start and an end, because other threads run in between: a write may reach the disk as soon as it has
//! started, and a sync covers only writes that ended before it started, once it has ended. `strace` holds threads until
//! their line is written, so the order of lines is a possible order of events.
//!
//! A call that changes a file in an unknown way is an error: the images would be wrong.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::recording::RecordingError;

/// Recorded system calls: all that can change a file, its length or its name, or make it durable.
pub(super) const RECORDED: &str = "openat,open,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,\
    fsync,fdatasync,sync,syncfs,sync_file_range,unlink,unlinkat,rename,renameat,renameat2,link,linkat,copy_file_range,\
    sendfile,mmap";

/// A change of a file of the folder, or a sync. Files are named relative to the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Opens a file, and creates it if needed.
    Create { name: String },
    /// Bytes at an offset, or at the end: writes without an offset only append.
    Write { name: String, offset: Option<u64>, bytes: Vec<u8> },
    /// Truncated or extended.
    Resize { name: String, length: u64 },
    /// The file's content and length are durable.
    Sync { name: String },
    /// The folder's names are durable.
    SyncFolder,
    /// The name is removed.
    Remove { name: String },
}

/// A step of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The call started.
    Begin(Call),
    /// The call of this step has returned successfully.
    End(usize),
    /// The worker writes a fact to its journal: it knows it from now on, whether the line arrives or not.
    Noted(String),
}

/// Steps of one folder, in order.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub(super) steps: Vec<Step>,
}

impl Trace {
    /// Reads the lines of `strace -f -y -xx`. The journal is not in the folder.
    pub(super) fn parse(text: &[u8], folder: &Path, journal: &Path) -> Result<Self, RecordingError> {
        let (folder, journal) = (folder.to_owned(), journal.to_owned());
        let mut reader = Reader { folder, journal, trace: Trace::default(), open: HashMap::new() };
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            reader.line(line)?;
        }
        Ok(reader.trace)
    }
}

struct Reader {
    folder: PathBuf,
    journal: PathBuf,
    trace: Trace,
    /// Unfinished call of each thread.
    open: HashMap<u32, OpenCall>,
}

enum OpenCall {
    /// A call on the folder, with its step.
    Begun(usize),
    /// A call that opens a file. The file is known only when the call returns.
    Opening { creates: bool, empties: bool },
    /// Whether the file existed is known only when it returns.
    Removing { name: String },
    /// Something else.
    Other,
}

impl Reader {
    fn line(&mut self, line: &[u8]) -> Result<(), RecordingError> {
        // With -xx all ambiguous text is hexadecimal.
        let odd = || RecordingError::Odd(shorten(line));
        let line = std::str::from_utf8(line).map_err(|_| odd())?;
        let (thread, rest) = line.split_once(' ').ok_or_else(odd)?;
        let thread: u32 = thread.parse().map_err(|_| odd())?;
        let rest = rest.trim_start();
        if rest.starts_with("+++") {
            let open_call = self.open.remove(&thread); // the thread has ended
            return open_call.map_or(Ok(()), |open_call| self.never_ends(&open_call));
        }
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let (_, end) = resumed.split_once(" resumed>").ok_or_else(odd)?;
            let open_call = self.open.remove(&thread).ok_or_else(odd)?;
            return self.end(open_call, end, line);
        }
        let (name, arguments) = rest.split_once('(').ok_or_else(odd)?;
        let (arguments, end) = match arguments.strip_suffix(" <unfinished ...>") {
            Some(arguments) => (arguments, None),
            None => came_back(arguments).map(|(all, _)| (all, Some(arguments))).ok_or_else(odd)?,
        };
        let open_call = self.begin(name, arguments, line)?;
        match end {
            Some(end) => self.end(open_call, end, line),
            None => {
                self.open.insert(thread, open_call);
                Ok(())
            }
        }
    }

    fn begin(&mut self, name: &str, arguments: &str, line: &str) -> Result<OpenCall, RecordingError> {
        let odd = || RecordingError::Odd(shorten(line.as_bytes()));
        let unknown = || RecordingError::Unknown(shorten(line.as_bytes()));
        let parts = split(arguments);
        let part = |index: usize| parts.get(index).copied().ok_or_else(odd);
        let call = match name {
            "open" | "openat" | "creat" => {
                let creates = name == "creat" || arguments.contains("O_CREAT");
                let empties = name == "creat" || arguments.contains("O_TRUNC");
                return Ok(OpenCall::Opening { creates, empties });
            }
            "write" | "pwrite64" => {
                let Some(name) = self.descriptor(part(0)?) else { return Ok(OpenCall::Other) };
                if part(1)?.ends_with("...") {
                    return Err(odd()); // the bytes were cut off
                }
                let bytes = text(part(1)?).ok_or_else(odd)?;
                let offset = parts.get(3).map(|at| at.parse()).transpose().map_err(|_| odd())?;
                Call::Write { name, offset, bytes }
            }
            "writev" if path_of(part(0)?).as_ref() == Some(&self.journal) => {
                let lines = arguments.split_once("iov_base=").and_then(|(_, vector)| vector.split_once(", "));
                let lines =
                    lines.and_then(|(lines, _)| String::from_utf8(text(lines)?).ok()).ok_or_else(odd)?;
                self.trace.steps.push(Step::Noted(lines));
                return Ok(OpenCall::Other);
            }
            "ftruncate" => {
                let Some(name) = self.descriptor(part(0)?) else { return Ok(OpenCall::Other) };
                Call::Resize { name, length: part(1)?.parse().map_err(|_| odd())? }
            }
            "fsync" | "fdatasync" => match path_of(part(0)?) {
                Some(path) if path == self.folder => Call::SyncFolder,
                path => match path.and_then(|path| self.name(&path)) {
                    Some(name) => Call::Sync { name },
                    None => return Ok(OpenCall::Other),
                },
            },
            "unlink" => {
                let path = text(part(0)?).and_then(|path| String::from_utf8(path).ok()).ok_or_else(odd)?;
                let Some(name) = self.name(Path::new(&path)) else { return Ok(OpenCall::Other) };
                return Ok(OpenCall::Removing { name });
            }
            "mmap" => {
                let is_written = arguments.contains("PROT_WRITE") && arguments.contains("MAP_SHARED");
                if is_written && self.descriptor(part(4)?).is_some() {
                    return Err(unknown());
                }
                return Ok(OpenCall::Other);
            }
            "sync" | "syncfs" => return Err(unknown()),
            _ if parts.iter().any(|part| self.is_about(part)) => return Err(unknown()),
            _ => return Ok(OpenCall::Other),
        };
        self.trace.steps.push(Step::Begin(call));
        Ok(OpenCall::Begun(self.trace.steps.len() - 1))
    }

    fn end(&mut self, open_call: OpenCall, end: &str, line: &str) -> Result<(), RecordingError> {
        let odd = || RecordingError::Odd(shorten(line.as_bytes()));
        let (_, result) = came_back(end).ok_or_else(odd)?;
        match open_call {
            OpenCall::Other => Ok(()),
            OpenCall::Opening { creates, empties } => {
                let Some(name) = self.descriptor(result) else { return Ok(()) };
                if creates {
                    self.at_once(Call::Create { name: name.clone() });
                }
                if empties {
                    self.at_once(Call::Resize { name, length: 0 });
                }
                Ok(())
            }
            OpenCall::Removing { name } => {
                if result == "0" {
                    self.at_once(Call::Remove { name });
                }
                Ok(())
            }
            OpenCall::Begun(began) => {
                let expected = match &self.trace.steps[began] {
                    Step::Begin(Call::Write { bytes, .. }) => bytes.len().to_string(),
                    _ => "0".to_owned(),
                };
                if result == expected {
                    self.trace.steps.push(Step::End(began));
                    return Ok(());
                }
                if result == "?" {
                    return self.never_ends(&open_call);
                }
                // No failures are injected here, so a failed call is an error.
                Err(RecordingError::Unknown(shorten(line.as_bytes())))
            }
        }
    }

    /// The process ended during the call. The effect of a write is unknown then.
    fn never_ends(&self, open_call: &OpenCall) -> Result<(), RecordingError> {
        let OpenCall::Begun(began) = open_call else { return Ok(()) };
        match &self.trace.steps[*began] {
            Step::Begin(Call::Write { .. } | Call::Resize { .. }) => Err(RecordingError::CutOff),
            _ => Ok(()),
        }
    }

    fn at_once(&mut self, call: Call) {
        self.trace.steps.push(Step::Begin(call));
        self.trace.steps.push(Step::End(self.trace.steps.len() - 1));
    }

    /// The file of the folder behind `11</folder/file>`.
    fn descriptor(&self, part: &str) -> Option<String> {
        self.name(&path_of(part)?)
    }

    /// Name of a file of the folder. The log's index is shared memory and is rebuilt after a power loss.
    fn name(&self, path: &Path) -> Option<String> {
        let name = path.file_name()?.to_str()?;
        (path.parent() == Some(&self.folder) && !name.ends_with("-shm")).then(|| name.to_owned())
    }

    /// Whether an argument of any kind names a file of the folder.
    fn is_about(&self, part: &str) -> bool {
        let given = text(part).and_then(|path| String::from_utf8(path).ok()).map(PathBuf::from);
        given.and_then(|path| self.name(&path)).is_some() || self.descriptor(part).is_some()
    }
}

/// Splits at `) = `. The result comes last and cannot contain it: names are hexadecimal.
fn came_back(line: &str) -> Option<(&str, &str)> {
    let (call, result) = line.rsplit_once(" = ")?;
    Some((call.trim_end().strip_suffix(')')?, result.trim()))
}

/// Splits the arguments. Commas and brackets inside of strings and names are hexadecimal.
fn split(arguments: &str) -> Vec<&str> {
    arguments.split(", ").collect()
}

/// Path in `11<path>`; a deleted file has none.
fn path_of(part: &str) -> Option<PathBuf> {
    let inside = part.trim().split_once('<')?.1.strip_suffix('>')?;
    String::from_utf8(bytes(inside)?).ok().map(PathBuf::from)
}

/// The bytes of `"\x61\x62"`.
fn text(part: &str) -> Option<Vec<u8>> {
    bytes(part.strip_prefix('"')?.strip_suffix('"')?)
}

fn bytes(hexadecimal: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let (parts, rest) = hexadecimal.as_bytes().as_chunks::<4>();
    if !rest.is_empty() {
        return None;
    }
    parts
        .iter()
        .map(|part| match part {
            [b'\\', b'x', high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

fn shorten(line: &[u8]) -> String {
    let (start, end) =
        (&line[..line.len().min(120)], &line[line.len().saturating_sub(60).max(line.len().min(120))..]);
    let between = if line.len() > 180 { " … " } else { "" };
    format!("{}{between}{}", String::from_utf8_lossy(start), String::from_utf8_lossy(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hexadecimal(text: &str) -> String {
        use std::fmt::Write;
        text.bytes().fold(String::new(), |mut all, byte| {
            write!(all, "\\x{byte:02x}").unwrap();
            all
        })
    }

    fn read(text: &str) -> Result<Vec<Step>, RecordingError> {
        // Names and strings are written between ⟨ and ⟩ here, for readability.
        let mut line = String::new();
        for (index, part) in text.split(['⟨', '⟩']).enumerate() {
            line += &if index % 2 == 0 { part.to_owned() } else { hexadecimal(part) };
        }
        Trace::parse(line.as_bytes(), Path::new("/run"), Path::new("/journal")).map(|trace| trace.steps)
    }

    #[test]
    fn calls_on_files_of_the_folder_are_read_with_their_bytes() {
        let steps = read(
            "7  openat(AT_FDCWD<⟨/run⟩>, \"⟨/run/a.db⟩\", O_RDWR|O_CREAT, 0644) = 9<⟨/run/a.db⟩>\n\
             7  pwrite64(9<⟨/run/a.db⟩>, \"⟨page, (one)⟩\", 11, 4096) = 11\n\
             7  ftruncate(9<⟨/run/a.db⟩>, 8192) = 0\n\
             7  fsync(9<⟨/run/a.db⟩>) = 0\n\
             7  fsync(3<⟨/run⟩>) = 0\n\
             7  unlink(\"⟨/run/a.db⟩\") = 0\n\
             7  +++ exited with 0 +++\n",
        )
        .unwrap();
        let name = || "a.db".to_owned();
        let calls = [
            Call::Create { name: name() },
            Call::Write { name: name(), offset: Some(4096), bytes: b"page, (one)".to_vec() },
            Call::Resize { name: name(), length: 8192 },
            Call::Sync { name: name() },
            Call::SyncFolder,
            Call::Remove { name: name() },
        ];
        let expected: Vec<Step> =
            (0..).zip(calls).flat_map(|(index, call)| [Step::Begin(call), Step::End(index * 2)]).collect();
        assert_eq!(steps, expected);
    }

    #[test]
    fn a_call_that_others_overtake_ends_where_it_comes_back() {
        let steps = read(
            "7  fsync(9<⟨/run/a.db-wal⟩> <unfinished ...>\n\
             8  write(4<⟨/run/lock⟩>, \"⟨line⟩\", 4 <unfinished ...>\n\
             7  <... fsync resumed>)                = 0\n\
             8  <... write resumed>) = 4\n",
        )
        .unwrap();
        assert!(
            matches!(&steps[..], [Step::Begin(_), Step::Begin(_), Step::End(0), Step::End(1)]),
            "{steps:?}"
        );
    }

    #[test]
    fn an_unfinished_sync_has_not_ended_and_an_unfinished_write_is_an_error() {
        let steps = read("7  fsync(9<⟨/run/a⟩> <unfinished ...>\n7  +++ killed by SIGKILL +++\n").unwrap();
        assert_eq!(steps, [Step::Begin(Call::Sync { name: "a".into() })]);
        let steps = read("7  ftruncate(9<⟨/run/a⟩>, 0 <unfinished ...>\n7  +++ killed by SIGKILL +++\n");
        assert!(matches!(steps, Err(RecordingError::CutOff)), "{steps:?}");
    }

    #[test]
    fn a_line_of_the_journal_is_known_when_it_begins_to_be_written() {
        let steps = read(
            "7  writev(4<⟨/journal⟩>, [{iov_base=\"⟨ack 1, 2\nack 3\n⟩\", iov_len=16}], 1 <unfinished ...>\n\
             7  <... writev resumed>) = 16\n\
             7  fdatasync(4<⟨/journal⟩>) = 0\n",
        );
        assert_eq!(steps.unwrap(), [Step::Noted("ack 1, 2\nack 3\n".into())]);
    }

    #[test]
    fn the_shared_memory_and_other_folders_are_left_out() {
        let steps = read(
            "7  openat(AT_FDCWD<⟨/⟩>, \"⟨/run/a.db-shm⟩\", O_RDWR|O_CREAT, 0644) = 9<⟨/run/a.db-shm⟩>\n\
             7  mmap(NULL, 32768, PROT_READ|PROT_WRITE, MAP_SHARED, 9<⟨/run/a.db-shm⟩>, 0) = 0x7f6f6b56d000\n\
             7  mmap(NULL, 32768, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f6f6b56d000\n\
             7  write(1<⟨/dev/pts/0⟩>, \"⟨hello⟩\"..., 70001) = 70001\n\
             7  close(9<⟨/run/a.db-shm⟩>(deleted)) = 0\n\
             7  unlink(\"⟨/elsewhere/a.db⟩\") = -1 ENOENT (No such file or directory)\n",
        )
        .unwrap();
        assert_eq!(steps, []);
    }

    #[test]
    fn unknown_calls_are_errors() {
        for line in [
            "7  rename(\"⟨/run/a⟩\", \"⟨/run/b⟩\") = 0\n",
            "7  fallocate(9<⟨/run/a⟩>, 0, 0, 4096) = 0\n",
            "7  mmap(NULL, 32768, PROT_READ|PROT_WRITE, MAP_SHARED, 9<⟨/run/a⟩>, 0) = 0x7f6f6b56d000\n",
            "7  fsync(9<⟨/run/a⟩>) = -1 EIO (Input/output error)\n",
            "7  write(9<⟨/run/a⟩>, \"⟨hello⟩\", 5) = 4\n",
        ] {
            let steps = read(line);
            assert!(matches!(steps, Err(RecordingError::Unknown(_))), "{line}: {steps:?}");
        }
        let cut_off = read("7  write(9<⟨/run/a⟩>, \"⟨hello⟩\"..., 70001) = 70001\n");
        assert!(matches!(cut_off, Err(RecordingError::Odd(_))), "{cut_off:?}");
    }
}
