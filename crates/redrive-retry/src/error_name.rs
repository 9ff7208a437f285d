//! Names the type of an error for audit events: the name that an operator would search for.
//!
//! `std::io::Error(TimedOut)`, `ShipError`, `serde_json::Error`. An error without a type of its own (`anyhow::Error`, a box) has the name
//! of the innermost typed error inside it.

use std::error::Error;
use std::fmt::{self, Write};
use std::io;

use crate::failure::{Failure, chain};

/// Longest name that is read from the `Debug` text of an error whose type was erased.
const MAX_NAME_BYTES: usize = 100;

/// Returns the name of a failure's error.
pub(crate) fn error_name(failure: &Failure) -> String {
    let declared = failure.type_name();
    if !is_erased(declared) {
        return match failure.get_ref().downcast_ref::<io::Error>() {
            Some(error) => io_name(error),
            None => declared_name(declared),
        };
    }
    let typed: Vec<String> = failure.chain().filter_map(typed_name).collect();
    typed.into_iter().next_back().unwrap_or_else(|| declared_name(declared))
}

/// Whether the type holds any error, or only text.
fn is_erased(type_name: &str) -> bool {
    type_name.contains("dyn ") || ["anyhow::Error", "&str", "alloc::string::String"].contains(&type_name)
}

/// `std::io::Error(TimedOut)`, or the name of the typed error inside.
fn io_name(error: &io::Error) -> String {
    let inside = error.get_ref().filter(|_| error.kind() == io::ErrorKind::Other);
    let inside = inside.and_then(|inside| chain(inside).filter_map(typed_name).last());
    inside.unwrap_or_else(|| format!("std::io::Error({:?})", error.kind()))
}

/// Name of one error of a chain; `None` for text and for errors that only wrap another one.
fn typed_name(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return (!is_erased(failure.type_name())).then(|| error_name(failure));
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return Some(io_name(error));
    }
    debug_name(error)
}

/// Last part of a type's path; a type that is only called `Error` keeps its crate: `serde_json::Error`.
fn declared_name(type_name: &str) -> String {
    let short = short_name(type_name);
    match type_name.split_once("::") {
        Some((crate_name, _)) if short == "Error" => format!("{crate_name}::Error"),
        _ => short,
    }
}

/// Strips module paths from a type name: `TimeoutError`, `Box<dyn Error + Send + Sync>`.
fn short_name(type_name: &str) -> String {
    let parts = type_name.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    parts.map(|part| part.rsplit("::").next().unwrap_or(part)).collect()
}

/// Name at the beginning of the `Debug` text. Deriving `Debug` writes the name of the struct or of the enum's variant there, which is
/// all that an erased type tells.
fn debug_name(error: &(dyn Error + 'static)) -> Option<String> {
    let mut start = Start { text: String::new() };
    let _ = write!(start, "{error:?}"); // ends with an error when enough is written
    let end = start.text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(start.text.len());
    let (name, rest) = start.text.split_at(end);
    let is_type = name.starts_with(char::is_uppercase) && name != "Error";
    (is_type && (rest.is_empty() || rest.starts_with('(') || rest.starts_with(" {"))).then(|| name.to_owned())
}

/// Keeps the beginning of a text and refuses the rest.
struct Start {
    text: String,
}

impl Write for Start {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.text.push_str(part.get(..MAX_NAME_BYTES).unwrap_or(part));
        if self.text.len() > MAX_NAME_BYTES { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{BoxError, ClassifyError};
    use std::time::Duration;

    #[derive(Debug, thiserror::Error)]
    #[error("no such address")]
    struct AddressError {
        street: &'static str,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the carrier did not answer")]
    struct CarrierError(#[source] io::Error);

    fn timed_out() -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, "Connection timeout")
    }

    fn name(error: impl Into<BoxError> + 'static) -> String {
        error_name(&Failure::new(error))
    }

    #[test]
    fn an_io_error_is_named_with_its_kind() {
        assert_eq!(name(timed_out()), "std::io::Error(TimedOut)");
        assert_eq!(
            name(io::Error::from(io::ErrorKind::ConnectionRefused)),
            "std::io::Error(ConnectionRefused)"
        );
        assert_eq!(name(io::Error::other("text")), "std::io::Error(Other)");
        assert_eq!(name(io::Error::other(AddressError { street: "x" })), "AddressError");
    }

    #[test]
    fn a_typed_error_has_its_own_name() {
        assert_eq!(name(CarrierError(timed_out())), "CarrierError");
        assert_eq!(name("x".parse::<u8>().unwrap_err()), "ParseIntError");
        assert_eq!(name(serde_json::from_str::<u8>("x").unwrap_err()), "serde_json::Error");
        assert_eq!(error_name(&Failure::timeout(Duration::from_secs(1))), "TimeoutError");
        assert_eq!(name(CarrierError(timed_out()).permanent()), "CarrierError");
    }

    #[test]
    fn anyhow_and_boxed_errors_are_named_by_the_innermost_typed_error() {
        let boxed: BoxError = CarrierError(timed_out()).into();
        assert_eq!(name(boxed), "std::io::Error(TimedOut)");
        let boxed: BoxError = AddressError { street: "x" }.into();
        assert_eq!(name(boxed), "AddressError");
        let any =
            anyhow::Error::new(AddressError { street: "x" }).context("shipping order 7").context("again");
        assert_eq!(name(any), "AddressError");
        assert_eq!(name(anyhow::Error::new(timed_out()).context("connecting")), "std::io::Error(TimedOut)");
        let marked: BoxError =
            anyhow::Error::new(CarrierError(timed_out()).transient()).context("outer").into();
        assert_eq!(name(marked), "std::io::Error(TimedOut)");
    }

    #[test]
    fn errors_that_are_only_text_have_the_name_of_their_container() {
        assert_eq!(name("text"), "&str");
        assert_eq!(name(String::from("text")), "String");
        assert_eq!(name(anyhow::anyhow!("text").context("more")), "anyhow::Error");
        let boxed: BoxError = "Text that begins like a name".into();
        assert_eq!(name(boxed), "Box<dyn Error + Send + Sync>");
    }

    #[test]
    fn a_long_debug_text_is_not_written_whole() {
        #[derive(Debug)]
        struct Huge(#[allow(dead_code)] String);
        impl fmt::Display for Huge {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("huge")
            }
        }
        impl Error for Huge {}
        let boxed: BoxError = Huge("é".repeat(1 << 20)).into();
        assert_eq!(name(boxed), "Huge");
    }
}
