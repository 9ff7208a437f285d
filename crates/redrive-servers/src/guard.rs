//! Ends a server with the process that started it, however that process ends.

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// While this lives, the server lives.
///
/// A shell waits for the end of its input, which comes when this process is gone, also by SIGKILL; then it ends the server by
/// the process id that the server left in a file, and deletes the folder.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
}

impl Guard {
    /// `pid_file` has the server's process id in its first line; `folder` is deleted.
    pub(crate) fn set(pid_file: &Path, folder: &Path) -> std::io::Result<Self> {
        let script = "cat >/dev/null; pid=$(head -n 1 \"$1\" 2>/dev/null) && kill -QUIT \"$pid\" 2>/dev/null; \
                      for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 \"$pid\" 2>/dev/null || break; sleep 0.2; done; rm -rf \"$2\"";
        let shell = Command::new("sh")
            .args(["-c", script, "sh"])
            .args([pid_file, folder])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
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
