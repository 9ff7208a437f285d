//! Where a webhook goes.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hyper::Uri;
use thiserror::Error;
use url::{Host, Url};

/// The longest one that is taken, in bytes.
const LONGEST: usize = 2048;

/// Why a text is no URL of an endpoint. What is in the URL may be secret, so none of it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UrlError {
    /// It cannot be read at all.
    #[error("it is not a URL: {0}")]
    Unreadable(url::ParseError),
    /// Too long.
    #[error("it is longer than {LONGEST} bytes")]
    Length,
    /// Neither `https` nor `http`.
    #[error("it begins with neither https:// nor http://")]
    Scheme,
    /// It has a name or a password in it.
    #[error(
        "it has a user name or a password in it; put them into a header (`Authorization: Basic …`) instead"
    )]
    Credentials,
    /// It has a part that no server sees.
    #[error("it has a #fragment, which is never sent; leave it out")]
    Fragment,
    /// It has no host, or one that nobody can be at.
    #[error("it has no host, or port 0")]
    Host,
}

/// The URL of an endpoint: `https` or `http`, with a host, without credentials.
///
/// An IPv4 address in any spelling (`0x7f.1`, `2130706433`, `0177.0.0.1`) is read as what it is, so that it cannot hide.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EndpointUrl {
    url: Url,
    uri: Uri,
}

impl EndpointUrl {
    /// As text.
    pub fn as_str(&self) -> &str {
        self.url.as_str()
    }

    /// Without its path and query, in which a token often stands.
    pub fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// Its host, as people write it.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Whether what is sent can be read by anybody on the way.
    pub fn is_plain(&self) -> bool {
        self.url.scheme() == "http"
    }

    /// Its address, if it is one and no name.
    pub fn address(&self) -> Option<IpAddr> {
        match self.url.host()? {
            Host::Domain(_) => None,
            Host::Ipv4(address) => Some(address.into()),
            Host::Ipv6(address) => Some(address.into()),
        }
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
        if text.len() > LONGEST {
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

/// Without path and query: a token often stands there.
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
    fn every_spelling_of_an_address_is_seen_through() {
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
            let address = parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).address();
            assert_eq!(address, Some("127.0.0.1".parse().unwrap()), "{text}");
        }
        assert_eq!(parse("https://[::1]:8443/x").unwrap().address(), Some("::1".parse().unwrap()));
        assert_eq!(parse("https://example.com/x").unwrap().address(), None);
    }

    #[test]
    fn what_no_endpoint_can_have_is_refused() {
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
        let long = format!("https://example.com/{}", "x".repeat(LONGEST));
        assert_eq!(parse(&long), Err(UrlError::Length));
    }

    #[test]
    fn logs_do_not_show_what_may_be_a_token() {
        let url = parse("https://example.com/hooks/s3cret?key=s3cret").unwrap();
        assert_eq!(format!("{url:?}"), "https://example.com/…");
        assert_eq!(url.as_str(), "https://example.com/hooks/s3cret?key=s3cret");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(text in "(https?://)?.{0,80}") {
            if let Ok(url) = text.parse::<EndpointUrl>() {
                assert!(!url.host().is_empty());
            }
        }
    }
}
