//! Carries requests over HTTP or HTTPS, to certificates that the machine trusts.

use std::error::Error as _;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::{Client, Error, ResponseFuture, Retries, Transport};

/// Time until a response begins: longer than the server's own timeout.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(70);

/// Address of a server: scheme, host, port, and a path if the API is not at the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl(String);

impl FromStr for ServerUrl {
    type Err = InvalidServer;

    fn from_str(text: &str) -> Result<Self, InvalidServer> {
        let uri: Uri = text.parse().map_err(|_| InvalidServer::Url)?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        // A password in the address would be shown, and never sent.
        let is_plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        if !is_http || !is_plain || uri.query().is_some() {
            return Err(InvalidServer::Url);
        }
        Ok(ServerUrl(text.trim_end_matches('/').to_owned()))
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Invalid server address or token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidServer {
    /// The address has the wrong form.
    #[error("use an address such as https://events.example.com or http://127.0.0.1:8080")]
    Url,
    /// The token cannot be a header value.
    #[error("the token has characters in it that no token has: it begins with rdt_")]
    Token,
    /// TLS has no usable protocol version.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

/// HTTP transport to one server, with its bearer token.
pub struct HttpTransport {
    url: ServerUrl,
    token: Option<HeaderValue>,
    http: HyperClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl HttpTransport {
    /// Sends requests to this address, with this bearer token.
    pub fn new(url: ServerUrl, token: Option<&str>) -> Result<Self, InvalidServer> {
        let mut token = token
            .map(|token| HeaderValue::try_from(format!("Bearer {}", token.trim())))
            .transpose()
            .map_err(|_| InvalidServer::Token)?;
        token.iter_mut().for_each(|token| token.set_sensitive(true));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| InvalidServer::Tls(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        Ok(HttpTransport { url, token, http: HyperClient::builder(TokioExecutor::new()).build(https) })
    }
}

impl Client {
    /// A client of the server at this address, with this bearer token. It repeats failed requests by [`Retries::default`].
    pub fn http(url: ServerUrl, token: Option<&str>) -> Result<Self, InvalidServer> {
        Ok(Client::new(HttpTransport::new(url, token)?).with_retries(Retries::default()))
    }
}

impl Transport for HttpTransport {
    fn call(&self, request: Request<Bytes>) -> ResponseFuture<'_> {
        Box::pin(async move {
            let url = &self.url;
            let failed = |why: &dyn fmt::Display| {
                let say = "check the address, and that `redrive serve` runs there";
                Error::Unreachable(format!("cannot reach {url}: {why}; {say}"))
            };
            let mut request = request.map(Full::new);
            let uri = format!("{url}{}", request.uri());
            *request.uri_mut() = uri.parse().map_err(|error| failed(&error))?;
            if let Some(token) = &self.token {
                request.headers_mut().insert(header::AUTHORIZATION, token.clone());
            }
            match tokio::time::timeout(RESPONSE_TIMEOUT, self.http.request(request)).await {
                Ok(Ok(response)) => Ok(response.map(|body| body.map_err(Into::into).boxed_unsync())),
                Ok(Err(error)) => {
                    // The innermost error says the most.
                    let mut innermost = error.source();
                    while let Some(deeper) = innermost.and_then(std::error::Error::source) {
                        innermost = Some(deeper);
                    }
                    Err(innermost.map_or_else(|| failed(&error), |cause| failed(&cause)))
                }
                Err(_) => Err(Error::TimedOut(RESPONSE_TIMEOUT)),
            }
        })
    }
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpTransport").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_url_is_http_and_has_no_secret() {
        for good in ["http://127.0.0.1:8080", "https://events.example.com/", "https://example.com/redrive"] {
            assert!(good.parse::<ServerUrl>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "localhost:8080",
            "ftp://x",
            "https://anna:pw@example.com",
            "https://example.com/?a=b",
            "postgres://x/y",
        ] {
            assert_eq!(bad.parse::<ServerUrl>(), Err(InvalidServer::Url), "{bad}");
        }
        assert_eq!("https://a.b/".parse::<ServerUrl>().unwrap().to_string(), "https://a.b");
    }

    #[test]
    fn debug_hides_the_token() {
        let server: ServerUrl = "http://127.0.0.1:1".parse().unwrap();
        let transport = HttpTransport::new(server.clone(), Some("rdt_s3cret")).unwrap();
        assert!(!format!("{transport:?} {:?}", transport.token).contains("s3cret"));
        assert!(HttpTransport::new(server, Some("a\nb")).is_err());
    }
}
