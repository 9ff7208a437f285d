//! Ends a server with the process that started it, however that process ends.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The signal that ends a server at once.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// For servers that must end their child processes.
    Quit,
    /// For servers without child processes.
    Kill,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Signal::Quit => "QUIT",
            Signal::Kill => "KILL",
        }
    }
}

/// Waits for the end of its input, then signals every process, waits for their ends and deletes the folder.
const SCRIPT: &str = r#"
signal=$1 folder=$2
shift 2
cat >/dev/null
pids=$(for file; do head -n 1 "$file" 2>/dev/null; done)
for pid in $pids; do kill -"$signal" "$pid" 2>/dev/null; done
for _ in 1 2 3 4 5 6 7 8 9 10; do
    left=0
    for pid in $pids; do kill -0 "$pid" 2>/dev/null && left=1; done
    [ $left = 0 ] && break
    sleep 0.2
done
rm -rf "$folder"
"#;

/// Ends the server when this is dropped, or when the process ends.
///
/// A shell waits for the end of its input, which the system closes with this process, also after SIGKILL. Then it ends the
/// server by the process id in the server's pid file, and deletes the folder.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
}

impl Guard {
    /// Starts the shell. Each of `pid_files` has a process id in its first line, or does not exist; `folder` is deleted at the
    /// end.
    pub(crate) fn set(signal: Signal, pid_files: &[&Path], folder: &Path) -> std::io::Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh", signal.name()])
            .arg(folder)
            .args(pid_files)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C ends the tests, not the shell.
            .process_group(0)
            .spawn()?;
        Ok(Guard { shell })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait(); // its exit status says nothing
    }
}
