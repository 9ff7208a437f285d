//! Waits for the signals that stop a server.

use std::io;

use crate::failure::Failure;

/// Listens for SIGTERM and SIGINT.
#[cfg(unix)]
#[derive(Debug)]
pub(crate) struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

/// Listens for Ctrl-C.
#[cfg(not(unix))]
#[derive(Debug)]
pub(crate) struct Stop;

/// Starts to listen; a signal from now on is not missed.
pub(crate) fn listen() -> Result<Stop, Failure> {
    Stop::new().map_err(|error| Failure::Failed(format!("cannot listen for signals: {error}")))
}

impl Stop {
    /// Runs a shutdown, unless a second signal interrupts it.
    pub(crate) async fn or_interrupt(
        &mut self,
        shutdown: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        tokio::select! {
            ended = shutdown => ended,
            () = self.recv() => Err(Failure::Failed("stopped at once by a second signal".to_owned())),
        }
    }
}

#[cfg(unix)]
impl Stop {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Stop { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Resolves at the next signal.
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

    /// Resolves at the next signal.
    pub(crate) async fn recv(&mut self) {
        // Without Ctrl-C the server runs until its process is killed.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
