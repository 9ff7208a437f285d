//! Fields of a log line, with the values that a span or an event has recorded.

use std::fmt;

use serde_json::Value;
use tracing::field::{Field, Visit};

/// Fields in the order of their first recording; a later value replaces an earlier one.
#[derive(Debug, Default)]
pub(super) struct Fields(pub(super) Vec<(&'static str, Value)>);

impl Fields {
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    fn set(&mut self, field: &Field, value: Value) {
        let name = field.name();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }

    pub(super) fn add_missing(&mut self, other: &Fields) {
        for (name, value) in &other.0 {
            if self.get(name).is_none() {
                self.0.push((name, value.clone()));
            }
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, text: &str) {
        self.set(field, text.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}").into());
    }
}
