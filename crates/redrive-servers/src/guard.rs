//! Ends a server with the process that started it, however that process ends.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// How a server is told to end at once.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ends its own processes before it ends.
    Quit,
    /// Has nothing to clean up.
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

/// Waits for the end of its input, then ends every process and waits until each is gone.
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

/// While this lives, the server lives.
///
/// A shell waits for the end of its input, which comes when this process is gone, also by SIGKILL; then it ends the server by
/// the process id that the server left in a file, and deletes the folder.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
}

impl Guard {
    /// Each of `pid_files` has the id of a process in its first line, or is not there; `folder` is deleted.
    pub(crate) fn set(signal: Signal, pid_files: &[&Path], folder: &Path) -> std::io::Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh", signal.name()])
            .arg(folder)
            .args(pid_files)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Whoever presses Ctrl-C ends the tests, not this.
            .process_group(0)
            .spawn()?;
        Ok(Guard { shell })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait(); // it has nothing to say
    }
}
