//! Hides values that may hold a password in the errors of the command line.

use clap::error::{ContextKind, ContextValue};

/// Text in place of a hidden value.
const HIDDEN: &str = "…";

/// Replaces the values that an error repeats: every value of a flag whose value is a URL, and everything that may be an address with a
/// password, such as one that was given without its flag.
pub(super) fn hide(mut error: clap::Error) -> clap::Error {
    let text = |error: &clap::Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let is_url = text(&error, ContextKind::InvalidArg).is_some_and(|arg| arg.contains("URL>"));
    for kind in [ContextKind::InvalidValue, ContextKind::InvalidArg, ContextKind::InvalidSubcommand] {
        let Some(said) = text(&error, kind) else { continue };
        if may_hold_password(&said) || is_url && kind == ContextKind::InvalidValue && !said.is_empty() {
            error.insert(kind, ContextValue::String(HIDDEN.to_owned()));
            error.remove(ContextKind::Suggested); // repeats the value
        }
    }
    error
}

fn may_hold_password(text: &str) -> bool {
    text.contains("://") || text.contains('@') || text.to_ascii_lowercase().contains("password=")
}
