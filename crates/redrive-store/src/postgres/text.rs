//! Texts as PostgreSQL can keep them: without NUL.
//!
//! An error may hold any character, and comes back letter by letter. NUL is written as a character that no text has a use for
//! (U+10FFFE is no character at all, by definition) and a `0`; that character itself is written twice. Everything else, and so
//! nearly every text, is stored as it is.

use std::borrow::Cow;

const ESCAPE: char = '\u{10FFFE}';

/// As it is stored.
pub(super) fn stored(text: &str) -> Cow<'_, str> {
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

/// As it was.
pub(super) fn read(stored: String) -> String {
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

/// A text as one entry of a JSON array of errors.
pub(super) fn json_entry(text: &str) -> String {
    serde_json::to_string(&*stored(text)).expect("a text always serialises")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_text_comes_back(text in proptest::collection::vec(prop_oneof![
            Just('\0'), Just(ESCAPE), Just('0'), any::<char>()
        ], 0..20)) {
            let text: String = text.into_iter().collect();
            let stored = stored(&text).into_owned();
            prop_assert!(!stored.contains('\0'));
            prop_assert_eq!(read(stored), text);
        }
    }
}
