//! HTTP(S) client for the OTLP collector; trusts the system's CA certificates and those given.

use std::error::Error;
use std::sync::Arc;

use axum::body::HttpBody;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;

use crate::failure::Failure;

/// HTTP client with a connection pool.
pub(crate) type HttpsClient<B> = Client<HttpsConnector<HttpConnector>, B>;

/// Creates a client that also trusts these authorities.
pub(crate) fn client<B>(authorities: Vec<CertificateDer<'static>>) -> Result<HttpsClient<B>, Failure>
where
    B: HttpBody + Send,
    B::Data: Send,
{
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    // Unreadable certificates are ignored.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let failed = |error| Failure::Failed(format!("TLS cannot be set up: {error}"));
    for authority in authorities {
        roots.add(authority).map_err(failed)?;
    }
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
    Ok(Client::builder(TokioExecutor::new()).build(https))
}

/// Text of the innermost error, which is the most specific.
pub(crate) fn cause(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
