//! The signals that end a server.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Hears SIGTERM and SIGINT.
#[derive(Debug)]
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

/// From now on.
pub(crate) fn listen() -> Result<Stop, Failure> {
    let on = |kind| {
        signal(kind)
            .map_err(|error| Failure::Failed(format!("the system lets nobody hear its signals: {error}")))
    };
    Ok(Stop { terminate: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())? })
}

impl Stop {
    /// Resolves at the next one.
    pub(crate) async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
