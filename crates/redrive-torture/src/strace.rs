//! A worker under `strace`: its system calls on the files of a database are written down, and some of them go wrong.
//!
//! `strace` counts the calls that are to go wrong for each thread and each kind of call. Only calls on the given files count,
//! so neither the runtime's nor the journal's are ever hit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Whether it is there; if not, what to do.
pub fn available() -> Result<(), String> {
    let found = Command::new("strace").arg("-V").stdin(Stdio::null()).output();
    match found {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err("strace is missing, so nothing was tried: install it with the package manager (apt-get install strace)".into()),
    }
}

/// How a call goes wrong.
#[derive(Clone, Debug)]
pub enum Wrong {
    /// The process is killed as it makes the call.
    Kill,
    /// The call fails with an error, such as `EIO`, and does nothing.
    Error(&'static str),
}

/// Which calls go wrong.
#[derive(Clone, Debug)]
pub struct Injection {
    /// The kind of call.
    pub call: &'static str,
    /// How.
    pub wrong: Wrong,
    /// Which of them, in the words of `strace`: `3`, `3+`, `3..5`.
    pub when: String,
}

/// A run under `strace`.
#[derive(Clone, Debug)]
pub struct Strace {
    /// Where the calls are written down.
    pub log: PathBuf,
    /// The kinds of calls.
    pub calls: Vec<&'static str>,
    /// On these files only.
    pub files: Vec<PathBuf>,
    /// What goes wrong; nothing if there is nothing here.
    pub injections: Vec<Injection>,
}

impl Strace {
    /// The command that runs a program so.
    pub fn command(&self, program: &Path, arguments: &[String]) -> Command {
        let mut command = Command::new("strace");
        // Threads are followed and named, descriptors are shown as paths, contents are not shown.
        command.args(["-f", "-qq", "-Y", "-y", "-s0", "-o"]).arg(&self.log);
        // Stops the process only at the calls that are meant, which is much faster; but signals do not get through.
        if !self.injections.iter().any(|injection| matches!(injection.wrong, Wrong::Kill)) {
            command.arg("--seccomp-bpf");
        }
        command.arg("-e").arg(format!("trace={}", self.calls.join(",")));
        for file in &self.files {
            command.arg("-P").arg(file);
        }
        for Injection { call, wrong, when } in &self.injections {
            let how = match wrong {
                Wrong::Kill => "signal=KILL".to_owned(),
                Wrong::Error(name) => format!("error={name}"),
            };
            command.arg("-e").arg(format!("inject={call}:{how}:when={when}"));
        }
        command.arg(program).args(arguments);
        command
    }

    /// What was written down.
    pub fn read(&self) -> Log {
        let text = std::fs::read(&self.log).unwrap_or_default();
        Log::parse(&String::from_utf8_lossy(&text))
    }
}

/// The calls of a run, in their order.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Every call.
    pub calls: Vec<Call>,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which thread made it.
    pub thread: u32,
    /// What the thread is called.
    pub thread_name: String,
    /// Its kind.
    pub name: String,
    /// The name of the file, without its folder.
    pub file: String,
    /// Where it writes, if it says so: from there so many bytes.
    pub place: Option<(u64, u64)>,
    /// Whether it was made to fail.
    pub is_injected: bool,
    /// Whether the process ended in it.
    pub is_cut_off: bool,
}

impl Log {
    fn parse(text: &str) -> Self {
        let mut log = Log::default();
        for line in text.lines() {
            if let Some(call) = Call::parse(line) {
                log.calls.push(call);
            } else if line.contains(" resumed>") {
                // The second half of a call during which another thread made one.
                let thread = line.split('<').next().and_then(|id| id.trim().parse::<u32>().ok());
                let begun = log.calls.iter_mut().rev().find(|call| Some(call.thread) == thread);
                if let Some(call) = begun {
                    call.is_injected = line.contains("(INJECTED)");
                    call.is_cut_off = line.ends_with("= ?");
                }
            }
        }
        log
    }

    /// The calls that a count hits in threads of this name: kind and number. The first thread to make so many calls of a kind
    /// is hit, so what another thread had reached before is not among them.
    pub fn hit_in(&self, thread_name: &str) -> Vec<(&str, u64)> {
        let mut made: BTreeMap<(u32, &str), u64> = BTreeMap::new();
        let mut most: BTreeMap<&str, u64> = BTreeMap::new();
        let mut hit = Vec::new();
        for call in &self.calls {
            let number = made.entry((call.thread, &call.name)).or_default();
            *number += 1;
            let most = most.entry(&call.name).or_default();
            if *number > *most {
                *most = *number;
                if call.thread_name == thread_name {
                    hit.push((call.name.as_str(), *number));
                }
            }
        }
        hit
    }
}

impl Call {
    /// `4711<redrive-writer> pwrite64(6</tmp/events.db-wal>, ""..., 24, 32) = 24`
    fn parse(line: &str) -> Option<Self> {
        let (thread, rest) = line.split_once('<')?;
        let (thread_name, rest) = rest.split_once("> ")?;
        let (name, arguments) = rest.split_once('(')?;
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if name.is_empty() || !is_name {
            return None;
        }
        // `6</tmp/events.db>` or `"/tmp/events.db"`.
        let path = arguments.split_once(['<', '"']).map_or("", |(_, path)| path);
        let path = path.split(['>', '"']).next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        // `…, ""..., 24, 32) = 24`: how much, and where.
        let place = arguments.split_once("..., ").and_then(|(_, rest)| {
            let (length, rest) = rest.split_once(", ")?;
            let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
            Some((rest[..digits].parse().ok()?, length.parse().ok()?))
        });
        Some(Call {
            thread: thread.trim().parse().ok()?,
            thread_name: thread_name.to_owned(),
            name: name.to_owned(),
            file: file.to_owned(),
            place,
            is_injected: line.contains("(INJECTED)"),
            is_cut_off: line.ends_with("= ?"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read() {
        let log = Log::parse(
            "7<redrive-writer> pwrite64(6</tmp/a/e.db-wal>, \"\"..., 24, 32) = 24\n\
             8<tokio-rt-worker> unlink(\"/tmp/a/e.db-journal\") = 0\n\
             7<redrive-writer> fsync(6</tmp/a/e.db-wal> <unfinished ...>\n\
             8<tokio-rt-worker> ftruncate(5</tmp/a/e.db>, 0) = -1 EIO (Input/output error) (INJECTED)\n\
             7<redrive-writer> <... fsync resumed>) = -1 EIO (Input/output error) (INJECTED)\n\
             7<redrive-writer> +++ killed by SIGKILL +++\n",
        );
        let calls: Vec<_> =
            log.calls.iter().map(|call| (call.thread, &*call.name, &*call.file, call.is_injected)).collect();
        assert_eq!(
            calls,
            [
                (7, "pwrite64", "e.db-wal", false),
                (8, "unlink", "e.db-journal", false),
                (7, "fsync", "e.db-wal", true),
                (8, "ftruncate", "e.db", true)
            ]
        );
        let places: Vec<_> = log.calls.iter().map(|call| call.place).collect();
        assert_eq!(places, [Some((32, 24)), None, None, None]);
        assert_eq!(log.hit_in("redrive-writer"), [("pwrite64", 1), ("fsync", 1)]);
    }

    #[test]
    fn what_another_thread_has_reached_before_is_not_hit() {
        let line = |thread: &str| format!("{thread} fsync(6</tmp/a/e.db-wal>) = 0\n");
        let log = Log::parse(&["1<a>", "2<b>", "2<b>", "1<a>", "1<a>"].map(line).concat());
        assert_eq!(log.hit_in("a"), [("fsync", 1), ("fsync", 3)]);
        assert_eq!(log.hit_in("b"), [("fsync", 2)]);
    }
}
