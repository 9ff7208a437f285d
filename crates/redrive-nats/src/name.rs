//! How a key is called in the bucket.
//!
//! A bucket allows letters, digits, `-`, `/`, `_`, `=` and dots that separate. Everything else is written as `=` and two
//! hexadecimal digits for each byte, as in quoted-printable text: what can be read stays readable, and no two keys share a name.

use std::fmt::Write;

use redrive_retry::idempotency::IdempotencyKey;

/// The entry whose stamp is the server's time.
pub(crate) const CLOCK: &str = "clock";

/// Before every key, so that none is called like something else.
pub(crate) const KEYS: &str = "key";

/// The name of the key's entry.
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
    fn every_key_has_a_name_of_its_own_that_a_bucket_allows() {
        let keys =
            ["a", "A", "a.b", "a=2Eb", "a b", "a*", ">", "é", "=", "charge/7", "..", "a/", "\u{10FFFF}"];
        let names: HashSet<_> = keys.iter().map(|key| of(&IdempotencyKey::new(*key).unwrap())).collect();
        assert_eq!(names.len(), keys.len());
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-/_=.".contains(c);
        assert!(names.iter().all(|name| name.chars().all(allowed) && !name.ends_with('.')), "{names:?}");
        assert_eq!(of(&IdempotencyKey::new("charge/7 é").unwrap()), "key.charge/7=20=C3=A9");
    }
}
