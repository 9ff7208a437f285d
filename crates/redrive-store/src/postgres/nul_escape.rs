//! Escapes NUL in texts, which PostgreSQL cannot store.
//!
//! An error message may contain any character, and reading it back returns it unchanged. NUL is written as the noncharacter
//! U+10FFFE and a `0`; U+10FFFE itself is written twice. All other characters, and so nearly every text, are stored as they
//! are.

use std::borrow::Cow;

const ESCAPE: char = '\u{10FFFE}';

/// Escapes a text for storage.
pub(super) fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', ESCAPE]) {
        return Cow::Borrowed(text);
    }
    let mut stored = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\0' => stored.extend([ESCAPE, '0']),
            ESCAPE => stored.extend([ESCAPE, ESCAPE]),
            other => stored.push(other),
        }
    }
    Cow::Owned(stored)
}

/// Restores an escaped text.
pub(super) fn unescape(stored: String) -> String {
    if !stored.contains(ESCAPE) {
        return stored;
    }
    let mut text = String::with_capacity(stored.len());
    let mut characters = stored.chars();
    while let Some(c) = characters.next() {
        match c {
            ESCAPE => text.extend(characters.next().map(|next| if next == '0' { '\0' } else { next })),
            other => text.push(other),
        }
    }
    text
}

/// Escapes a text and encodes it as a JSON string, for the array of errors.
pub(super) fn json_string(text: &str) -> String {
    serde_json::to_string(&*escape(text)).expect("a string always serialises")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_text_is_restored(text in proptest::collection::vec(prop_oneof![
            Just('\0'), Just(ESCAPE), Just('0'), any::<char>()
        ], 0..20)) {
            let text: String = text.into_iter().collect();
            let stored = escape(&text).into_owned();
            prop_assert!(!stored.contains('\0'));
            prop_assert_eq!(unescape(stored), text);
        }
    }
}
