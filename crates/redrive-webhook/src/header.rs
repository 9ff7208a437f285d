//! Validated custom header of an endpoint.

use hyper::header::{HeaderName, HeaderValue};
use thiserror::Error;

/// Maximum length of a value in bytes.
const MAX_VALUE_BYTES: usize = 4096;

/// A custom header is refused. The message never shows the value, which may be secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// The name is not a valid header name.
    #[error("{0:?} is not a valid header name")]
    Name(String),
    /// Redrive or the connection sets this header.
    #[error("{0} is set by Redrive or by the connection, and cannot be changed")]
    Reserved(String),
    /// The value contains a control character or is too long.
    #[error(
        "the value of {0} contains a line break or another control character, or is longer than {MAX_VALUE_BYTES} bytes"
    )]
    Value(String),
}

/// A custom header with a permitted name and a valid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    name: HeaderName,
    value: HeaderValue,
}

/// Names that Redrive or the connection sets. Names that begin with `webhook-` or `svix-` are reserved as well.
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
    /// Validates name and value.
    pub fn new(name: &str, value: &str) -> Result<Self, HeaderError> {
        let known =
            HeaderName::try_from(name).map_err(|_| HeaderError::Name(name.chars().take(100).collect()))?;
        let has_reserved_prefix =
            known.as_str().starts_with("webhook-") || known.as_str().starts_with("svix-");
        if has_reserved_prefix || RESERVED.contains(&known.as_str()) {
            return Err(HeaderError::Reserved(known.to_string()));
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(HeaderError::Value(known.to_string()));
        }
        let mut value = HeaderValue::try_from(value).map_err(|_| HeaderError::Value(known.to_string()))?;
        value.set_sensitive(true);
        Ok(Header { name: known, value })
    }

    /// The name in lower case.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The value.
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
    fn reserved_headers_are_refused() {
        for name in
            RESERVED.into_iter().chain(["Host", "WEBHOOK-ID", "webhook-anything", "Transfer-Encoding"])
        {
            let refused = Header::new(name, "x").unwrap_err();
            assert_eq!(refused, HeaderError::Reserved(name.to_ascii_lowercase()), "{name}");
        }
        assert_eq!(Header::new("Authorization", "Bearer x").unwrap().name(), "authorization");
    }

    #[test]
    fn values_with_line_breaks_are_refused() {
        for value in ["a\r\nHost: evil", "a\nb", "a\rb", "a\0b", "\u{7f}"] {
            assert_eq!(Header::new("x-note", value), Err(HeaderError::Value("x-note".into())), "{value:?}");
        }
        for name in ["", "a b", "a:b", "a\r\nb", "ü"] {
            assert_eq!(Header::new(name, "x"), Err(HeaderError::Name(name.into())), "{name:?}");
        }
        assert!(Header::new("x-note", &"x".repeat(MAX_VALUE_BYTES + 1)).is_err());
    }

    #[test]
    fn debug_output_hides_the_value() {
        let header = Header::new("authorization", "Bearer s3cret").unwrap();
        assert!(!format!("{header:?}").contains("s3cret"));
        assert_eq!(header.value(), "Bearer s3cret");
    }
}
