//! Runs a worker under `strace`: records its system calls on the files of a database and injects faults into them.
//!
//! `strace` counts injected calls per thread and kind of call. Only calls on the given files count, so those of the runtime
//! and the journal are never hit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Checks that `strace` is installed; the error says what to do.
pub fn available() -> Result<(), String> {
    let found = Command::new("strace").arg("-V").stdin(Stdio::null()).output();
    match found {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err("strace is missing, so nothing was tried: install it with the package manager (apt-get install strace)".into()),
    }
}

/// Injected fault.
#[derive(Clone, Debug)]
pub enum Wrong {
    /// The process is killed at the call.
    Kill,
    /// The call fails with an error, such as `EIO`, and does nothing.
    Error(&'static str),
}

/// Calls to disturb.
#[derive(Clone, Debug)]
pub struct Injection {
    /// The kind of call.
    pub call: &'static str,
    /// The fault.
    pub wrong: Wrong,
    /// Selection in `strace` syntax: `3`, `3+`, `3..5`.
    pub when: String,
}

/// A run under `strace`.
#[derive(Clone, Debug)]
pub struct Strace {
    /// Path of the log.
    pub log: PathBuf,
    /// Recorded calls.
    pub calls: Vec<&'static str>,
    /// Files to which the run is confined.
    pub files: Vec<PathBuf>,
    /// Injected faults.
    pub injections: Vec<Injection>,
}

impl Strace {
    /// Builds the command.
    pub fn command(&self, program: &Path, arguments: &[String]) -> Command {
        let mut command = Command::new("strace");
        // Follows and names threads, shows descriptors as paths, hides contents.
        command.args(["-f", "-qq", "-Y", "-y", "-s0", "-o"]).arg(&self.log);
        // Stops the process only at selected calls, which is much faster; but kills do not get through.
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

    /// Reads the log.
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
    /// Thread id.
    pub thread: u32,
    /// Thread name.
    pub thread_name: String,
    /// Name of the call.
    pub name: String,
    /// File name without its folder.
    pub file: String,
    /// Offset and length of a write.
    pub place: Option<(u64, u64)>,
    /// Whether it was injected.
    pub is_injected: bool,
    /// Whether the process ended during the call.
    pub is_cut_off: bool,
}

impl Log {
    fn parse(text: &str) -> Self {
        let mut log = Log::default();
        for line in text.lines() {
            if let Some(call) = Call::parse(line) {
                log.calls.push(call);
            } else if line.contains(" resumed>") {
                // Second half of a call that another thread interrupted.
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

    /// Calls that a count hits in threads of this name: kind and number. `strace` hits the first thread that reaches the
    /// count, so counts that another thread reached before are left out.
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
    fn counts_that_another_thread_reached_before_are_left_out() {
        let line = |thread: &str| format!("{thread} fsync(6</tmp/a/e.db-wal>) = 0\n");
        let log = Log::parse(&["1<a>", "2<b>", "2<b>", "1<a>", "1<a>"].map(line).concat());
        assert_eq!(log.hit_in("a"), [("fsync", 1), ("fsync", 3)]);
        assert_eq!(log.hit_in("b"), [("fsync", 2)]);
    }
}
