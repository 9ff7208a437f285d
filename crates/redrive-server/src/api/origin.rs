//! Origin of a request: this machine, or a page of another site.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderName, Method, Uri, Version, header};

use super::peer::Peer;
use super::problem::{Code, Problem};

/// The peer of a request that comes from this machine, names it, and bears no sign of a proxy; `None` for any other request. A web page
/// can resolve its own name to this machine, and a proxy forwards requests from anywhere. A proxy that speaks HTTP/1.1 and adds no
/// header, as nginx does by default since 1.29.7, bears no sign: [`Peer::is_own_user`] recognises it by its user.
pub(super) fn local_peer(request: &Request) -> Option<Peer> {
    // HTTP/1.0 is what older proxies speak by default, and hardly any client.
    let is_direct = request.version() >= Version::HTTP_11 && !request.headers().keys().any(is_of_proxy);
    let names_loopback = host(request).is_some_and(|host| is_loopback_name(&host));
    let peer = request.extensions().get::<Peer>().filter(|peer| peer.is_loopback());
    peer.filter(|_| is_direct && names_loopback).cloned()
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
    use std::net::SocketAddr;

    use super::*;
    use axum::body::Body;

    fn request(method: &str, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().method(method).uri("/v1/events");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    fn peer_of(address: &str) -> Peer {
        let peer: SocketAddr = address.parse().unwrap();
        Peer::new(SocketAddr::new(peer.ip(), 8080), peer)
    }

    fn local(peer: &str, headers: &[(&str, &str)]) -> bool {
        let mut request = request("GET", headers);
        request.extensions_mut().insert(peer_of(peer));
        local_peer(&request).is_some()
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
        by_nginx.extensions_mut().insert(peer_of("127.0.0.1:5000"));
        assert!(local_peer(&by_nginx).is_some());
        *by_nginx.version_mut() = Version::HTTP_10;
        assert!(local_peer(&by_nginx).is_none(), "HTTP/1.0");
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
