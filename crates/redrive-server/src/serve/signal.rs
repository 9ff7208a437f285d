//! The signals that end a server.

use std::io;

use crate::failure::Failure;

/// Hears SIGTERM and SIGINT.
#[cfg(unix)]
#[derive(Debug)]
pub(crate) struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

/// Hears Ctrl-C.
#[cfg(not(unix))]
#[derive(Debug)]
pub(crate) struct Stop;

/// From now on.
pub(crate) fn listen() -> Result<Stop, Failure> {
    Stop::new().map_err(|error| Failure::Failed(format!("the system lets nobody hear its signals: {error}")))
}

#[cfg(unix)]
impl Stop {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Stop { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Resolves at the next one.
    pub(crate) async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(not(unix))]
impl Stop {
    fn new() -> io::Result<Self> {
        Ok(Stop)
    }

    /// Resolves at the next one.
    pub(crate) async fn recv(&mut self) {
        // If it cannot be heard, whoever wants to end the server ends the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
