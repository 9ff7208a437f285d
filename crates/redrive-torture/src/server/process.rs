//! Runs `redrive serve` as a process that is killed and started again, with one address and one file.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::http::ask;

/// Timeout of the first answer.
const START_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Server {
    program: PathBuf,
    db: String,
    key: PathBuf,
    pub(super) address: SocketAddr,
    child: Option<Child>,
}

impl Server {
    /// A server that is not started yet.
    pub(super) fn new(program: &Path, folder: &Path, db: Option<&str>) -> io::Result<Self> {
        // Free now; another process is unlikely to take it.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let file = folder.join("events.db");
        let db = db.map_or_else(|| file.to_string_lossy().into_owned(), str::to_owned);
        let key = folder.join("secret.key");
        Ok(Server { program: program.to_owned(), db, key, address, child: None })
    }

    pub(super) fn start(&mut self) -> io::Result<()> {
        let child = Command::new(&self.program)
            .arg("serve")
            .args(["--db", &self.db, "--listen", &self.address.to_string(), "--allow-range", "127.0.0.0/8"])
            .arg("--secret-key-file")
            .arg(&self.key)
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until it answers.
    pub(super) fn is_ready(&mut self) -> io::Result<()> {
        let began = Instant::now();
        loop {
            if matches!(ask(self.address, "GET", "/readyz", "", ""), Ok((200, _))) {
                return Ok(());
            }
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                return Err(io::Error::other(format!("the server ended by itself: {status}")));
            }
            if began.elapsed() > START_TIMEOUT {
                return Err(io::Error::other("the server does not answer"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills it by SIGKILL.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
