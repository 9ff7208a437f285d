//! Encoding of idempotency keys as entry names.
//!
//! A bucket allows letters, digits, `-`, `/`, `_`, `=` and separating dots. Every other byte is encoded as `=` and two hexadecimal
//! digits, as in quoted-printable text. The encoding is injective.

use std::fmt::Write;

use redrive_retry::idempotency::IdempotencyKey;

/// Entry whose stamp is the server's time.
pub(crate) const CLOCK: &str = "clock";

/// Prefix of all keys, which separates them from other entries.
pub(crate) const KEYS: &str = "key";

/// Entry name of a key.
pub(crate) fn of(key: &IdempotencyKey) -> String {
    let mut name = format!("{KEYS}.");
    for byte in key.as_str().bytes() {
        match byte {
            b'-' | b'/' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => name.push(char::from(byte)),
            // Writing to a string does not fail.
            _ => drop(write!(name, "={byte:02X}")),
        }
    }
    name
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is a failed test
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_key_has_a_unique_name_that_a_bucket_allows() {
        let keys =
            ["a", "A", "a.b", "a=2Eb", "a b", "a*", ">", "é", "=", "charge/7", "..", "a/", "\u{10FFFF}"];
        let names: HashSet<_> = keys.iter().map(|key| of(&IdempotencyKey::new(*key).unwrap())).collect();
        assert_eq!(names.len(), keys.len());
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-/_=.".contains(c);
        assert!(names.iter().all(|name| name.chars().all(allowed) && !name.ends_with('.')), "{names:?}");
        assert_eq!(of(&IdempotencyKey::new("charge/7 é").unwrap()), "key.charge/7=20=C3=A9");
    }
}
