//! Validated URL of an endpoint.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;
use thiserror::Error;
use url::Url;

/// Maximum length in bytes.
const MAX_BYTES: usize = 2048;

/// A text is not a valid endpoint URL. The message never shows the URL, which may hold a token.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UrlError {
    /// Not a URL.
    #[error("it is not a URL: {0}")]
    Unreadable(url::ParseError),
    /// The URL is too long.
    #[error("it is longer than {MAX_BYTES} bytes")]
    Length,
    /// Neither `https` nor `http`.
    #[error("it begins with neither https:// nor http://")]
    Scheme,
    /// It contains a user name or a password.
    #[error(
        "it contains a user name or a password; put them into a header (`Authorization: Basic …`) instead"
    )]
    Credentials,
    /// It has a fragment, which is never sent.
    #[error("it has a #fragment, which is never sent; leave it out")]
    Fragment,
    /// It has no host, or port 0.
    #[error("it has no host, or port 0")]
    Host,
}

/// The URL of an endpoint: `https` or `http`, with a host, without credentials.
///
/// An IPv4 address in any spelling (`0x7f.1`, `2130706433`, `0177.0.0.1`) is normalised, so that the guard sees the real address.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EndpointUrl {
    url: Url,
    uri: Uri,
}

impl EndpointUrl {
    /// The whole URL.
    pub fn as_str(&self) -> &str {
        self.url.as_str()
    }

    /// Scheme, host and port, without path and query, which often contain a token.
    pub fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// The host name or address.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Whether the scheme is `http`, without encryption.
    pub fn is_plain(&self) -> bool {
        self.url.scheme() == "http"
    }

    pub(crate) fn port(&self) -> u16 {
        self.url.port_or_known_default().unwrap_or(443)
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }
}

impl FromStr for EndpointUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if text.len() > MAX_BYTES {
            return Err(UrlError::Length);
        }
        let url = Url::parse(text).map_err(UrlError::Unreadable)?;
        if !matches!(url.scheme(), "https" | "http") {
            return Err(UrlError::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::Credentials);
        }
        if url.fragment().is_some() {
            return Err(UrlError::Fragment);
        }
        if url.host().is_none() || url.port() == Some(0) {
            return Err(UrlError::Host);
        }
        let uri = Uri::try_from(url.as_str()).map_err(|_| UrlError::Host)?;
        Ok(EndpointUrl { url, uri })
    }
}

impl fmt::Display for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Shows no path and query, which often contain a token.
impl fmt::Debug for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/…", self.url.scheme(), self.host())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<EndpointUrl, UrlError> {
        text.parse()
    }

    #[test]
    fn every_spelling_of_an_address_is_normalised() {
        let spellings = [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://0177.0.0.1/",
            "http://0x7f.0.0.1/",
            "http://0x7f000001/",
            "http://2130706433/",
            "http://017700000001/",
            "http://127.0.0.1./",
            "http://１２７.0.0.1/",
            "http://127。0。0。1/",
            "http://%31%32%37.0.0.1/",
            "HTTP://127.0.0.1:80/",
        ];
        for text in spellings {
            let url = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(url.host(), "127.0.0.1", "{text}");
        }
        assert_eq!(parse("https://[::1]:8443/x").unwrap().host(), "[::1]");
        assert_eq!(parse("https://example.com/x").unwrap().host(), "example.com");
    }

    #[test]
    fn invalid_endpoint_urls_are_refused() {
        let cases = [
            ("ftp://example.com/", UrlError::Scheme),
            ("file:///etc/passwd", UrlError::Scheme),
            ("gopher://example.com:6379/_x", UrlError::Scheme),
            ("https://user:pass@example.com/", UrlError::Credentials),
            ("https://token@example.com/", UrlError::Credentials),
            ("https://example.com/#top", UrlError::Fragment),
            ("https://example.com:0/", UrlError::Host),
            ("example.com", UrlError::Unreadable(url::ParseError::RelativeUrlWithoutBase)),
            ("https://", UrlError::Unreadable(url::ParseError::EmptyHost)),
        ];
        for (text, error) in cases {
            assert_eq!(parse(text), Err(error), "{text}");
        }
        let long = format!("https://example.com/{}", "x".repeat(MAX_BYTES));
        assert_eq!(parse(&long), Err(UrlError::Length));
    }

    #[test]
    fn debug_output_hides_path_and_query() {
        let url = parse("https://example.com/hooks/s3cret?key=s3cret").unwrap();
        assert_eq!(format!("{url:?}"), "https://example.com/…");
        assert_eq!(url.as_str(), "https://example.com/hooks/s3cret?key=s3cret");
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(text in "(https?://)?.{0,80}") {
            if let Ok(url) = text.parse::<EndpointUrl>() {
                assert!(!url.host().is_empty());
            }
        }
    }
}
