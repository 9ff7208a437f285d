//! One who watches.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::Stream;
use redrive::Pattern;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, interval_at};

use super::feed::{News, Subscribed};
use crate::api::Api;
use crate::api::auth::Caller;

/// How often it is looked whether the client may still watch.
const CHECKED_EVERY: Duration = Duration::from_secs(1);

/// After so many looks without news, a comment keeps the connection alive.
const QUIET_LOOKS: u32 = 15;

/// One who watches.
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
        let stopping = api.door.stopping.clone();
        let clock = interval_at(Instant::now() + CHECKED_EVERY, CHECKED_EVERY);
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
                    if !self.caller.is_still_welcome(&self.api.door).await {
                        return self.end("token");
                    }
                    self.quiet += 1;
                    if self.quiet >= QUIET_LOOKS {
                        self.quiet = 0;
                        return Some(": still here\n\n".to_owned());
                    }
                }
                // What is published after the greeting is told: it waits for the first look.
                () = self.subscribed.beginning.wait(), if self.state == State::Greeting => {
                    self.state = State::Watching;
                    return Some("retry: 2000\n: watching\n\n".to_owned());
                }
                news = self.subscribed.news.recv() => {
                    let text = match news {
                        Ok(news) => self.told(&news),
                        Err(RecvError::Lagged(missed)) => Some(message("lagged", None, &format!("{{\"missed\":{missed}}}"))),
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

    fn told(&self, news: &News) -> Option<String> {
        match news {
            News::Event { what, event_type, id, data } => {
                self.pattern.matches(event_type.as_str()).then(|| message(what, Some(id), data))
            }
            News::Skipped => Some(message("lagged", None, "{\"missed\":null}")),
        }
    }

    fn end(&mut self, why: &str) -> Option<String> {
        self.state = State::Over;
        Some(message("end", None, &format!("{{\"reason\":\"{why}\"}}")))
    }
}

/// `data` is JSON on one line, so nothing in it can be taken for another field.
fn message(what: &str, id: Option<&str>, data: &str) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("event: {what}\n{id}data: {data}\n\n")
}
