//! JSON representation of message bytes: text where possible, otherwise base64.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Message bytes as `{"text": "…"}` if they are UTF-8 without NUL (which databases refuse in text), else as `{"base64": "…"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Payload {
    /// UTF-8 text.
    Text(String),
    /// Standard base64 with padding.
    Base64(String),
}

impl Payload {
    /// Represents these bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Payload::Text(text),
            Ok(text) => Payload::Base64(STANDARD.encode(text)),
            Err(bytes) => Payload::Base64(STANDARD.encode(bytes.as_bytes())),
        }
    }

    /// The bytes. Fails if edited base64 is invalid.
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
    fn only_utf8_without_nul_is_text() {
        assert_eq!(Payload::of(b"{\"a\":1}".to_vec()), Payload::Text("{\"a\":1}".into()));
        assert_eq!(Payload::of(b"a\0b".to_vec()), Payload::Base64("YQBi".into()));
        assert_eq!(Payload::of(vec![0xff]), Payload::Base64("/w==".into()));
        assert!(Payload::Base64("?".into()).bytes().is_err());
    }

    proptest! {
        #[test]
        fn bytes_round_trip(bytes: Vec<u8>) {
            let payload = Payload::of(bytes.clone());
            let json = serde_json::to_string(&payload).unwrap();
            prop_assert!(!json.contains("\\u0000"));
            let read: Payload = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(read.bytes().unwrap().into_owned(), bytes);
        }
    }
}
