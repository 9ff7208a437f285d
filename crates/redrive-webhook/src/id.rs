//! Format of the crate's identifiers: a prefix and the 32 hexadecimal digits of a version 7 UUID, so that they sort by time.

use uuid::Uuid;

/// A new identifier, which sorts after all earlier ones.
pub(crate) fn generate(prefix: &str) -> String {
    format!("{prefix}{}", Uuid::now_v7().simple())
}

/// Checks an identifier. Fails with its first 64 characters, for the error message.
pub(crate) fn parse(text: &str, prefix: &str) -> Result<String, String> {
    let is_valid = text.strip_prefix(prefix).is_some_and(|digits| {
        digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    });
    if is_valid { Ok(text.to_owned()) } else { Err(text.chars().take(64).collect()) }
}
