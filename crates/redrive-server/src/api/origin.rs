//! Origin of a request: this machine, or a page of another site.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::{HeaderName, Method, Uri, Version, header};

use super::problem::{Code, Problem};

/// Remote address of the connection, set by the listener.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Whether a request comes from this machine and names it. A web page can resolve its own name to this machine, and a proxy forwards
/// requests from anywhere: neither is local.
pub(super) fn is_local(request: &Request) -> bool {
    let is_near =
        request.extensions().get::<Peer>().is_some_and(|Peer(peer)| peer.ip().to_canonical().is_loopback());
    // HTTP/1.0 is what proxies speak by default, and hardly any client.
    let is_direct = request.version() >= Version::HTTP_11 && !request.headers().keys().any(is_of_proxy);
    is_near && is_direct && host(request).is_some_and(|host| is_loopback_name(&host))
}

/// Whether proxies add this header.
fn is_of_proxy(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(name, "forwarded" | "via" | "x-real-ip" | "true-client-ip")
        || name.starts_with("x-forwarded-")
        || name.starts_with("cf-")
}

/// Host and port that the request names.
fn host(request: &Request) -> Option<Uri> {
    let authority = match request.uri().authority() {
        Some(authority) => authority.as_str(),
        None => request.headers().get(header::HOST)?.to_str().ok()?,
    };
    authority.parse::<Uri>().ok().filter(|uri| uri.authority().is_some())
}

fn is_loopback_name(authority: &Uri) -> bool {
    let name = authority.host().unwrap_or("");
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Refuses changes by a page of another site.
pub(super) fn check_origin(request: &Request) -> Result<(), Problem> {
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let says = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
    let is_foreign_fetch = says("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let is_foreign_origin = says("origin").is_some_and(|origin| {
        let origin = origin.parse::<Uri>().ok();
        let origin = origin.as_ref().and_then(Uri::authority).map(|authority| authority.as_str());
        let host = host(request);
        origin.is_none()
            || origin != host.as_ref().and_then(Uri::authority).map(|authority| authority.as_str())
    });
    if is_foreign_fetch || is_foreign_origin {
        return Err(Problem::new(
            Code::CrossOrigin,
            "the browser says that the request comes from another site: send it from a program, or from a page of this server",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn request(method: &str, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().method(method).uri("/v1/events");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    fn local(peer: &str, headers: &[(&str, &str)]) -> bool {
        let mut request = request("GET", headers);
        request.extensions_mut().insert(Peer(peer.parse().unwrap()));
        is_local(&request)
    }

    #[test]
    fn a_local_request_comes_from_loopback_and_names_it() {
        for host in
            ["localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080"]
        {
            assert!(local("127.0.0.1:5000", &[("host", host)]), "{host}");
        }
        assert!(local("[::1]:5000", &[("host", "localhost")]));
        assert!(local("[::ffff:127.0.0.1]:5000", &[("host", "localhost")]));
        assert!(!local("10.0.0.7:5000", &[("host", "localhost")]), "from another machine");
        for host in ["evil.example:8080", "localhost.evil.example", "10.0.0.1", "", "a b"] {
            assert!(!local("127.0.0.1:5000", &[("host", host)]), "{host:?}");
        }
        assert!(!local("127.0.0.1:5000", &[]), "no host at all");
        let of_proxies = [
            "forwarded",
            "X-Forwarded-For",
            "x-forwarded-proto",
            "x-forwarded-anything",
            "x-real-ip",
            "via",
            "cf-ray",
            "CF-Connecting-IP",
            "true-client-ip",
        ];
        for name in of_proxies {
            assert!(!local("127.0.0.1:5000", &[("host", "localhost"), (name, "10.0.0.7")]), "{name}");
        }
        let mut by_nginx = request("GET", &[("host", "localhost:8080"), ("connection", "close")]);
        by_nginx.extensions_mut().insert(Peer("127.0.0.1:5000".parse().unwrap()));
        assert!(is_local(&by_nginx));
        *by_nginx.version_mut() = Version::HTTP_10;
        assert!(!is_local(&by_nginx), "HTTP/1.0");
    }

    #[test]
    fn a_page_of_another_site_is_refused_changes() {
        let post = |headers: &[(&str, &str)]| check_origin(&request("POST", headers)).is_ok();
        assert!(post(&[("host", "localhost:8080")]), "no browser");
        assert!(post(&[
            ("host", "localhost:8080"),
            ("origin", "http://localhost:8080"),
            ("sec-fetch-site", "same-origin")
        ]));
        for origin in ["http://evil.example", "null", "", "http://localhost:8081", "http://localhost", "é"] {
            assert!(!post(&[("host", "localhost:8080"), ("origin", origin)]), "{origin}");
        }
        assert!(!post(&[("host", "localhost:8080"), ("sec-fetch-site", "cross-site")]));
        assert!(!post(&[("host", "localhost:8080"), ("sec-fetch-site", "same-site")]));
        assert!(
            check_origin(&request("GET", &[("origin", "http://evil.example")])).is_ok(),
            "looking changes nothing"
        );
        assert!(check_origin(&request("DELETE", &[("host", "a"), ("origin", "http://b")])).is_err());
    }
}
