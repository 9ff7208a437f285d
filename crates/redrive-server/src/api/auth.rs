//! Who asks, and what they may do.
//!
//! While there is no token at all, whoever is on this machine may do everything: a request from a loopback address, to a loopback
//! name, that no proxy has passed on. As soon as there is one, every request needs one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::Next;
use axum::response::Response;

use super::Api;
use super::problem::{Code, Problem};
use crate::tokens::book::Shown;
use crate::tokens::scope::Scope;

/// Where a request comes from; known by whoever accepts connections.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Marks a request that no connection has brought: it was made in this process, by whoever may open the database anyway.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Inside;

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The token, or none for somebody on this machine while there are no tokens.
    pub(crate) token: Option<Arc<str>>,
    scopes: Arc<[Scope]>,
    is_inside: bool,
}

impl Caller {
    /// A name for what belongs to this caller alone.
    pub(crate) fn name(&self) -> &str {
        self.token.as_deref().unwrap_or("local")
    }

    /// Whether somebody whose request takes long may go on.
    pub(crate) async fn is_still_welcome(&self, api: &Api) -> bool {
        let looked = match &self.token {
            _ if self.is_inside => Ok(true),
            Some(id) => api.tokens.is_valid(id).await,
            None => api.tokens.is_empty().await,
        };
        // A store that cannot be reached for a moment is no reason to send anybody away.
        looked.unwrap_or(true)
    }

    fn may(&self, scope: Scope) -> Result<(), Problem> {
        if scope.is_in(&self.scopes) {
            return Ok(());
        }
        let has = self.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(", ");
        Err(Problem::new(
            Code::MissingScope,
            format!("this needs the scope {scope}, and the token has {has}: use another token"),
        ))
    }
}

macro_rules! scopes {
    ($($(#[$doc:meta])* $name:ident => $scope:ident;)*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        #[allow(dead_code)] // that somebody may do it says enough, where it does not matter who
        pub(crate) struct $name(pub(crate) Caller);

        impl FromRequestParts<Arc<Api>> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Self, Problem> {
                // Not there only if a route was added outside those for callers; then nobody may.
                let caller = parts.extensions.get::<Caller>().cloned();
                let caller = caller.ok_or_else(token_required)?;
                caller.may(Scope::$scope)?;
                Ok($name(caller))
            }
        }
    )* };
}

scopes! {
    /// Somebody who may publish.
    MayPublish => Publish;
    /// Somebody who may look.
    MayRead => Read;
    /// Somebody who may fetch events.
    MayConsume => Consume;
    /// Somebody who may do everything.
    MayAdmin => Admin;
}

fn token_required() -> Problem {
    Problem::new(
        Code::TokenRequired,
        "send the header `authorization: Bearer rdt_…`; `redrive tokens create` makes a token",
    )
}

/// Finds out who asks, for everything that is not for everybody.
pub(crate) async fn identify(
    State(api): State<Arc<Api>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let is_inside = request.extensions().get::<Inside>().is_some();
    let secret = bearer(request.headers())?.map(str::to_owned);
    let caller = match secret {
        _ if is_inside => Caller { token: None, scopes: Arc::new([Scope::Admin]), is_inside },
        Some(secret) => holder(&api, &secret).await?,
        None => nobody(&api, is_local(&request)).await?,
    };
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

/// Who holds this token.
async fn holder(api: &Api, secret: &str) -> Result<Caller, Problem> {
    match api.tokens.find(secret).await? {
        Shown::Valid(entry) => {
            entry.bucket.take().map_err(|wait| too_many("this token asks", wait))?;
            let token = &entry.token;
            let scopes = token.body.scopes.as_slice().into();
            Ok(Caller { token: Some(token.id.as_str().into()), scopes, is_inside: false })
        }
        Shown::Expired => Err(Problem::new(Code::InvalidToken, "the token has expired: ask for a new one")),
        Shown::Unknown => Err(Problem::new(
            Code::InvalidToken,
            "there is no such token, or it was revoked: ask for a new one",
        )),
    }
}

/// Somebody without a token.
async fn nobody(api: &Api, is_local: bool) -> Result<Caller, Problem> {
    if !api.tokens.is_empty().await? {
        return Err(token_required());
    }
    if !is_local {
        return Err(Problem::new(
            Code::TokenRequired,
            "there are no tokens yet, so only who is on the server's machine may ask, by http://localhost or \
             http://127.0.0.1: make one there with `redrive tokens create`",
        ));
    }
    Ok(Caller { token: None, scopes: Arc::new([Scope::Admin]), is_inside: false })
}

pub(crate) fn too_many(who: &str, wait: Duration) -> Problem {
    Problem::new(Code::RateLimited, format!("{who} for more than is allowed in a second: slow down"))
        .after(wait)
}

/// The token in the header, if there is one.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let token = value.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    token.map(Some).ok_or_else(|| {
        Problem::new(
            Code::InvalidToken,
            "the header `authorization` is not `Bearer` with a token: write `Bearer rdt_…`",
        )
    })
}

/// Whether it comes from this machine, and was meant for it. A page in a browser can have its own name point here, and a proxy
/// passes on what comes from anywhere: neither is local.
fn is_local(request: &Request) -> bool {
    let is_near =
        request.extensions().get::<Peer>().is_some_and(|Peer(peer)| peer.ip().to_canonical().is_loopback());
    let passed_on = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"];
    let is_direct = !passed_on.iter().any(|name| request.headers().contains_key(*name));
    is_near && is_direct && host(request).is_some_and(|host| is_loopback_name(&host))
}

/// Name and port that the request was meant for.
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

/// A page of another site may not change anything in the name of who looks at it.
pub(crate) fn check_origin(request: &Request) -> Result<(), Problem> {
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
    fn only_what_comes_from_here_and_was_meant_for_here_is_local() {
        for host in
            ["localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080"]
        {
            assert!(local("127.0.0.1:5000", &[("host", host)]), "{host}");
        }
        assert!(local("[::1]:5000", &[("host", "localhost")]));
        assert!(local("[::ffff:127.0.0.1]:5000", &[("host", "localhost")]));
        assert!(!local("10.0.0.7:5000", &[("host", "localhost")]), "from elsewhere");
        for host in ["evil.example:8080", "localhost.evil.example", "10.0.0.1", "", "a b"] {
            assert!(!local("127.0.0.1:5000", &[("host", host)]), "{host:?}");
        }
        assert!(!local("127.0.0.1:5000", &[]), "no host at all");
        for name in ["forwarded", "X-Forwarded-For", "x-real-ip", "via"] {
            assert!(!local("127.0.0.1:5000", &[("host", "localhost"), (name, "10.0.0.7")]), "{name}");
        }
    }

    #[test]
    fn a_page_of_another_site_changes_nothing() {
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

    #[test]
    fn a_token_is_taken_from_its_header_only() {
        let bearer_of = |value: &str| {
            let request = request("GET", &[("authorization", value)]);
            bearer(request.headers()).map(|found| found.map(str::to_owned)).ok()
        };
        assert_eq!(bearer_of("Bearer rdt_x"), Some(Some("rdt_x".to_owned())));
        assert_eq!(bearer_of("bearer  rdt_x "), Some(Some("rdt_x".to_owned())));
        for bad in ["rdt_x", "Basic rdt_x", "", "Bearer"] {
            assert_eq!(bearer_of(bad), None, "{bad:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()).ok(), Some(None));
    }
}
