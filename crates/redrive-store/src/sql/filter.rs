//! Translates a dead-letter filter into SQL conditions.

use crate::dead_letter::DlqFilter;

/// The conditions that the two databases write differently. `?` stands for the value.
pub(crate) struct Dialect {
    /// An error of the dead letter contains the text.
    pub(crate) any_error_contains: &'static str,
    pub(crate) fingerprint: &'static str,
}

/// A value of a condition.
#[derive(Debug)]
pub(crate) enum Param<'f> {
    Text(&'f str),
    Millis(i64),
}

/// Returns the conditions of a filter over `dead_letter d`, each with `?` for its value.
pub(crate) fn conditions<'f>(filter: &'f DlqFilter, dialect: &Dialect) -> Vec<(&'static str, Param<'f>)> {
    let DlqFilter { event_type, since, until, reason, text, fingerprint, subscription } = filter;
    let all = [
        ("d.type = ?", event_type.as_ref().map(|name| Param::Text(name.as_str()))),
        ("d.created_at >= ?", since.map(|at| Param::Millis(at.as_millis()))),
        ("d.created_at < ?", until.map(|at| Param::Millis(at.as_millis()))),
        ("d.reason = ?", reason.as_deref().map(Param::Text)),
        (dialect.any_error_contains, text.as_deref().map(Param::Text)),
        (dialect.fingerprint, fingerprint.as_deref().map(Param::Text)),
        ("d.target = ?", subscription.as_ref().map(|name| Param::Text(name.as_str()))),
    ];
    all.into_iter().filter_map(|(condition, value)| Some((condition, value?))).collect()
}
