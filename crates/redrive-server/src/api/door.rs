//! What every request passes on its way in and out, whichever service it is for.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Limits, Meter};
use crate::telemetry::RequestSpans;
use crate::tokens::book::TokenBook;

/// Who may come in, how many at once, and what is noted of them.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) tokens: TokenBook,
    pub(crate) limits: Limits,
    pub(crate) meter: Meter,
    /// Where there is a collector.
    pub(crate) request_spans: Option<RequestSpans>,
    /// Whether the service shuts down.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// What handlers work with, if requests come to it by a door.
pub(crate) trait BehindDoor: Send + Sync {
    fn door(&self) -> &Door;
}

impl<T: BehindDoor> BehindDoor for Arc<T> {
    fn door(&self) -> &Door {
        self.as_ref().door()
    }
}
