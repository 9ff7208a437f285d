//! A header that the owner of an endpoint wants to be sent along.

use hyper::header::{HeaderName, HeaderValue};
use thiserror::Error;

/// The longest value, in bytes.
const LONGEST: usize = 4096;

/// Why a header is refused. Its value may be secret, and is not shown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// No such name can be.
    #[error("{0:?} is not a name of a header")]
    Name(String),
    /// The name is ours, or the connection's.
    #[error("{0} is set by Redrive or by the connection, and cannot be changed")]
    Reserved(String),
    /// The value has bytes that cannot be sent, such as a line break, or is too long.
    #[error(
        "the value of {0} has a line break or another control character in it, or is longer than {LONGEST} bytes"
    )]
    Value(String),
}

/// A header with a name that may be set and a value that can be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    name: HeaderName,
    value: HeaderValue,
}

/// What says how the message is carried, or by whom. Beside these, everything that begins with `webhook-`.
const RESERVED: [&str; 14] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

impl Header {
    /// Checks both.
    pub fn new(name: &str, value: &str) -> Result<Self, HeaderError> {
        let known =
            HeaderName::try_from(name).map_err(|_| HeaderError::Name(name.chars().take(100).collect()))?;
        // The standard's own prefix, and that of those who were there before it.
        let is_ours = known.as_str().starts_with("webhook-") || known.as_str().starts_with("svix-");
        if is_ours || RESERVED.contains(&known.as_str()) {
            return Err(HeaderError::Reserved(known.to_string()));
        }
        if value.len() > LONGEST {
            return Err(HeaderError::Value(known.to_string()));
        }
        let mut value = HeaderValue::try_from(value).map_err(|_| HeaderError::Value(known.to_string()))?;
        value.set_sensitive(true);
        Ok(Header { name: known, value })
    }

    /// Its name, in small letters.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Its value.
    pub fn value(&self) -> &str {
        self.value.to_str().unwrap_or_default()
    }

    pub(crate) fn parts(&self) -> (HeaderName, HeaderValue) {
        (self.name.clone(), self.value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_how_a_message_is_carried_is_ours() {
        for name in
            RESERVED.into_iter().chain(["Host", "WEBHOOK-ID", "webhook-anything", "Transfer-Encoding"])
        {
            let refused = Header::new(name, "x").unwrap_err();
            assert_eq!(refused, HeaderError::Reserved(name.to_ascii_lowercase()), "{name}");
        }
        assert_eq!(Header::new("Authorization", "Bearer x").unwrap().name(), "authorization");
    }

    #[test]
    fn nobody_smuggles_a_second_header() {
        for value in ["a\r\nHost: evil", "a\nb", "a\rb", "a\0b", "\u{7f}"] {
            assert_eq!(Header::new("x-note", value), Err(HeaderError::Value("x-note".into())), "{value:?}");
        }
        for name in ["", "a b", "a:b", "a\r\nb", "ü"] {
            assert_eq!(Header::new(name, "x"), Err(HeaderError::Name(name.into())), "{name:?}");
        }
        assert!(Header::new("x-note", &"x".repeat(LONGEST + 1)).is_err());
    }

    #[test]
    fn logs_do_not_show_the_value() {
        let header = Header::new("authorization", "Bearer s3cret").unwrap();
        assert!(!format!("{header:?}").contains("s3cret"));
        assert_eq!(header.value(), "Bearer s3cret");
    }
}
