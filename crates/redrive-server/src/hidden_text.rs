//! A text that may hold a password or token.

use std::fmt;

/// Unparsed value of a flag that may hold a secret: it is never shown, and it is parsed where no error repeats it.
#[derive(Clone)]
pub(crate) struct HiddenText(pub(crate) String);

impl From<String> for HiddenText {
    fn from(text: String) -> Self {
        HiddenText(text)
    }
}

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HiddenText(…)")
    }
}
