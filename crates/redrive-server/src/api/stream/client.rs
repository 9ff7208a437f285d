//! One client of the stream.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Bytes;
use futures_util::Stream;
use redrive::subscription::Pattern;
use redrive_api::stream::{StreamEnd, StreamLagged};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, interval_at};

use super::feed::Subscribed;
use super::update::StreamUpdate;
use crate::api::auth::{Caller, VALIDITY_CHECK_INTERVAL};
use crate::api::{Api, reply};

/// Checks of the token without a message after which a comment keeps the connection alive: 15 s.
const KEEPALIVE_CHECKS: u32 = 60;

/// One client of the stream.
#[derive(Debug)]
pub(super) struct Client {
    api: Arc<Api>,
    caller: Caller,
    pattern: Pattern,
    subscribed: Subscribed,
    stopping: watch::Receiver<bool>,
    clock: Interval,
    quiet: u32,
    state: State,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    Watching,
    Over,
}

impl Client {
    pub(super) fn new(api: Arc<Api>, caller: Caller, pattern: Pattern, subscribed: Subscribed) -> Self {
        let stopping = api.http.stopping.clone();
        let clock = interval_at(Instant::now() + VALIDITY_CHECK_INTERVAL, VALIDITY_CHECK_INTERVAL);
        Client { api, caller, pattern, subscribed, stopping, clock, quiet: 0, state: State::Greeting }
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        futures_util::stream::unfold(self, |mut client| async move {
            let text = client.next().await?;
            Some((Ok(Bytes::from(text)), client))
        })
    }

    async fn next(&mut self) -> Option<String> {
        if self.state == State::Over {
            return None;
        }
        loop {
            if *self.stopping.borrow_and_update() {
                return self.end("shutting_down");
            }
            tokio::select! {
                biased;
                _ = self.stopping.changed() => {}
                _ = self.clock.tick() => {
                    if !self.caller.is_still_valid(&self.api.http).await {
                        return self.end("token");
                    }
                    self.quiet += 1;
                    if self.quiet >= KEEPALIVE_CHECKS {
                        self.quiet = 0;
                        return Some(": still here\n\n".to_owned());
                    }
                }
                // Events after the greeting are reported: it waits for the first poll.
                () = self.subscribed.first_poll.wait(), if self.state == State::Greeting => {
                    self.state = State::Watching;
                    return Some("retry: 2000\n: watching\n\n".to_owned());
                }
                update = self.subscribed.updates.recv() => {
                    let text = match update {
                        Ok(update) => self.matching_message(&update),
                        Err(RecvError::Lagged(missed)) => Some(lagged(Some(missed))),
                        Err(RecvError::Closed) => return None,
                    };
                    if text.is_some() {
                        self.quiet = 0;
                        return text;
                    }
                }
            }
        }
    }

    fn matching_message(&self, update: &StreamUpdate) -> Option<String> {
        match update {
            StreamUpdate::Event { what, event_type, id, data } => {
                self.pattern.matches(event_type.as_str()).then(|| message(what, Some(id), data))
            }
            StreamUpdate::Skipped => Some(lagged(None)),
        }
    }

    fn end(&mut self, reason: &str) -> Option<String> {
        self.state = State::Over;
        Some(message("end", None, &reply::to_json(&StreamEnd { reason: reason.to_owned() })))
    }
}

fn lagged(missed: Option<u64>) -> String {
    message("lagged", None, &reply::to_json(&StreamLagged { missed }))
}

/// `data` is JSON on one line, so nothing in it can be taken for another field.
fn message(what: &str, id: Option<&str>, data: &str) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("event: {what}\n{id}data: {data}\n\n")
}
