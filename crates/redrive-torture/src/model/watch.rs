//! Observes the real bus through its documented attempt spans, in the order of events.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::plain::{PlainBus, Said};

/// Reports every attempt of this thread, and every warning and error of the bus, to the model.
pub(super) struct Watch {
    model: Arc<Mutex<PlainBus>>,
    next: AtomicU64,
    /// Fields of attempts that have not ended.
    said: Mutex<Vec<(u64, Said)>>,
}

impl Watch {
    pub(super) fn new(model: Arc<Mutex<PlainBus>>) -> Self {
        Watch { model, next: AtomicU64::new(1), said: Mutex::default() }
    }
}

const ATTEMPT: &str = "redrive::event";

impl Subscriber for Watch {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_attempt = metadata.is_span() && metadata.target() == ATTEMPT;
        is_attempt || (metadata.is_event() && *metadata.level() <= Level::WARN)
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let span = self.next.fetch_add(1, Ordering::Relaxed);
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let mut model = lock(&self.model);
        match fields.event_id.parse() {
            Ok(id) => {
                let attempt = u32::try_from(fields.attempt).unwrap_or(0);
                model.began(span, id, fields.subscription, attempt);
            }
            Err(error) => model.violations.push(format!("a span without an id: {error}")),
        }
        Id::from_u64(span)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        let mut all = lock(&self.said);
        let place = match all.iter().position(|(known, _)| *known == span.into_u64()) {
            Some(place) => place,
            None => {
                all.push((span.into_u64(), Said::default()));
                all.len() - 1
            }
        };
        let said = &mut all[place].1;
        let (ends_well, ends_badly) = (fields.split_off.is_some(), fields.delay_ms.is_some());
        said.outcome = fields.outcome.or(said.outcome.take());
        said.split_off = fields.split_off.unwrap_or(said.split_off);
        said.failed = fields.failed.or(said.failed.take());
        said.error = fields.error.or(said.error.take());
        said.class = fields.class.or(said.class.take());
        said.delay_ms = fields.delay_ms.or(said.delay_ms);
        // Fields arrive one by one; the last one differs if the attempt failed.
        let mut model = lock(&self.model);
        if ends_badly || (ends_well && !model.expects_failure(span.into_u64())) {
            let (span, said) = all.swap_remove(place);
            model.ended(span, &said);
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let target = event.metadata().target();
        // Warnings and errors are unexpected here, except those of retries.
        if target.starts_with("redrive") && target != "redrive::retry" {
            lock(&self.model).complain(target, &text.0);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Recorded fields of a span.
#[derive(Default)]
struct Fields {
    event_id: String,
    attempt: u64,
    subscription: Option<String>,
    outcome: Option<String>,
    split_off: Option<u64>,
    failed: Option<String>,
    error: Option<String>,
    class: Option<String>,
    delay_ms: Option<u64>,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "attempt" => self.attempt = value,
            "split_off" => self.split_off = Some(value),
            "delay_ms" => self.delay_ms = Some(value),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "outcome" => self.outcome = Some(value.to_owned()),
            "failed_subscription" => self.failed = Some(value.to_owned()),
            "error" => self.error = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "event_id" => self.event_id = format!("{value:?}"),
            "subscription" => self.subscription = Some(format!("{value:?}")),
            "class" => self.class = Some(format!("{value:?}")),
            _ => {}
        }
    }
}

/// All fields of a log event as text.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name()); // writing to memory does not fail
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
