//! The bytes of a message, as they stand in JSON: readable where they can be.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// `{"text": "…"}` where the bytes are UTF-8 without NUL, which no database would keep as text; else `{"base64": "…"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Payload {
    /// As it is.
    Text(String),
    /// In base64, with padding.
    Base64(String),
}

impl Payload {
    /// Of these bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Payload::Text(text),
            Ok(text) => Payload::Base64(STANDARD.encode(text)),
            Err(bytes) => Payload::Base64(STANDARD.encode(bytes.as_bytes())),
        }
    }

    /// The bytes again. Base64 that somebody has broken by hand is an error.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>, base64::DecodeError> {
        match self {
            Payload::Text(text) => Ok(Cow::Borrowed(text.as_bytes())),
            Payload::Base64(text) => STANDARD.decode(text).map(Cow::Owned),
        }
    }
}

impl Default for Payload {
    fn default() -> Self {
        Payload::Text(String::new())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_stays_text_and_nothing_else_does() {
        assert_eq!(Payload::of(b"{\"a\":1}".to_vec()), Payload::Text("{\"a\":1}".into()));
        assert_eq!(Payload::of(b"a\0b".to_vec()), Payload::Base64("YQBi".into()));
        assert_eq!(Payload::of(vec![0xff]), Payload::Base64("/w==".into()));
        assert!(Payload::Base64("?".into()).bytes().is_err());
    }

    proptest! {
        #[test]
        fn bytes_come_back_as_they_were(bytes: Vec<u8>) {
            let payload = Payload::of(bytes.clone());
            let json = serde_json::to_string(&payload).unwrap();
            prop_assert!(!json.contains("\\u0000"));
            let read: Payload = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(read.bytes().unwrap().into_owned(), bytes);
        }
    }
}
