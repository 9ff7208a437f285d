//! An endpoint as the API shows it, and how people read it.

use std::io::Write;

use redrive::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::api::time::Instant;
use crate::failure::Failure;
use crate::place::Place;
use crate::screen::{Screen, Style};
use crate::{label, moment};

/// What is shown of an endpoint.
#[derive(Debug, Deserialize)]
pub(super) struct Endpoint {
    pub(super) id: String,
    version: u64,
    pub(super) url: String,
    pub(super) patterns: Vec<String>,
    pub(super) description: String,
    enabled: bool,
    disabled: Option<Disabled>,
    header_names: Vec<String>,
    retry: Option<Retry>,
    timeout_ms: u64,
    per_second: Option<f64>,
    concurrency: u32,
    created_at: Instant,
    updated_at: Instant,
    state: State,
}

#[derive(Debug, Deserialize)]
struct Disabled {
    reason: String,
    since: Instant,
}

#[derive(Debug, Deserialize)]
struct State {
    /// Not known to a database.
    circuit: Option<String>,
    circuit_until: Option<Instant>,
    throttled_until: Option<Instant>,
    failing_since: Option<Instant>,
}

#[derive(Debug, Deserialize)]
struct Retry {
    max_attempts: Option<u32>,
    base_delay_ms: Option<u64>,
    max_delay_ms: Option<u64>,
    multiplier: Option<f64>,
    jitter: Option<String>,
}

/// Only a server knows how its circuits stand; what a database cannot say is left out.
pub(super) fn without_guesses(place: &Place, endpoint: &mut Value) {
    if place.is_database()
        && let Some(state) = endpoint.get_mut("state").and_then(Value::as_object_mut)
    {
        for name in ["circuit", "circuit_until", "throttled_until"] {
            state.remove(name);
        }
    }
}

impl Endpoint {
    /// As the API shows it.
    pub(super) fn read(value: &Value) -> Result<Self, Failure> {
        Endpoint::deserialize(value)
            .map_err(|error| Failure::Failed(format!("the answer cannot be read: {error}")))
    }

    /// In a word or two.
    pub(super) fn status(&self, now: Timestamp) -> String {
        match (&self.disabled, &self.state) {
            (Some(disabled), _) => format!("disabled ({})", reason(&disabled.reason)),
            (None, _) if !self.enabled => "disabled".to_owned(),
            (None, State { failing_since: Some(since), .. }) => {
                format!("failing for {}", moment::age(since.0, now))
            }
            (None, State { throttled_until: Some(until), .. }) => {
                format!("throttled, {}", moment::relative(until.0, now))
            }
            (None, State { circuit: Some(circuit), .. }) if circuit != "closed" => {
                format!("circuit {}", circuit.replace('_', " "))
            }
            _ => "enabled".to_owned(),
        }
    }

    pub(super) fn print(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let now = moment::now();
        let when = |at: &Instant| format!("{} ({})", at.0, moment::relative(at.0, now));
        let mut line = |name: &str, value: &str| writeln!(out, "  {name:12} {value}");
        line("url", &label::one_line(&self.url))?;
        line("patterns", &label::one_line(&self.patterns.join(" ")))?;
        if !self.description.is_empty() {
            line("description", &label::one_line(&self.description))?;
        }
        let style = if self.status(now) == "enabled" { Style::Good } else { Style::Bad };
        line("status", &screen.paint(style, self.status(now)))?;
        if let Some(disabled) = &self.disabled {
            line("since", &when(&disabled.since))?;
        }
        if !self.header_names.is_empty() {
            line("headers", &label::one_line(&self.header_names.join(", ")))?;
        }
        line("timeout", &label::duration(self.timeout_ms))?;
        let rate = self
            .per_second
            .map_or_else(|| "as fast as it goes".to_owned(), |rate| format!("{rate} a second"));
        line("rate", &format!("{rate}, {} at once", self.concurrency))?;
        line("retries", &self.retry.as_ref().map_or_else(|| "as the server has it".to_owned(), Retry::text))?;
        if let Some(circuit) = &self.state.circuit {
            let until = self
                .state
                .circuit_until
                .as_ref()
                .map_or_else(String::new, |at| format!(" until {}", when(at)));
            line("circuit", &format!("{}{until}", circuit.replace('_', " ")))?;
        }
        line("made", &when(&self.created_at))?;
        line("changed", &format!("{}, version {}", when(&self.updated_at), self.version))?;
        Ok(())
    }
}

/// As the API names it, for people.
fn reason(name: &str) -> String {
    match name {
        "by_hand" => "by hand".to_owned(),
        "gone" => "it answered 410 Gone".to_owned(),
        "failing" => "no success for five days".to_owned(),
        other => label::one_line(other),
    }
}

impl Retry {
    fn text(&self) -> String {
        let parts = [
            self.max_attempts.map(|n| label::counted(n.into(), "attempt")),
            self.base_delay_ms.map(|wait| format!("first wait {}", label::duration(wait))),
            self.max_delay_ms.map(|wait| format!("longest {}", label::duration(wait))),
            self.multiplier.map(|x| format!("×{x}")),
            self.jitter.as_ref().map(|jitter| format!("jitter {}", label::one_line(jitter))),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}
