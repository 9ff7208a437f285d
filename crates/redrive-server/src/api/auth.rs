//! Authentication and scopes of requests.
//!
//! Without any token on record, a local request may do everything: one from a loopback address, to a loopback name, by the server's own
//! user or root, that no proxy has forwarded. Only the first token is left to the command line: a local program must not lock the operator
//! out. As soon as one token is on record, every request needs a token.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use redrive::store::StoreError;

use super::http_context::HttpContext;
use super::origin::local_peer;
use super::peer::Peer;
use super::problem::{Code, Problem};
use crate::bucket::Bucket;
use crate::tokens::cache::Lookup;
use redrive_api::tokens::Scope;

/// Interval at which a waiting request checks its token. Together with the age of the cached tokens it is less than a second.
pub(crate) const VALIDITY_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Request extension of the in-process client. It bypasses tokens: a caller that can open the database can do everything anyway.
#[derive(Copy, Clone, Debug)]
pub(crate) struct InProcessCaller;

/// The caller of a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Id of the token; none for a local caller without tokens.
    pub(crate) token: Option<Arc<str>>,
    scopes: Arc<[Scope]>,
    is_in_process: bool,
}

impl Caller {
    /// Names the caller in records and idempotency keys.
    pub(crate) fn name(&self) -> &str {
        self.token.as_deref().unwrap_or("local")
    }

    /// Whether the caller may create the first token: only a client in this process, such as the command line.
    pub(crate) fn may_create_first_token(&self) -> bool {
        self.is_in_process
    }

    /// Whether a long request may continue.
    pub(crate) async fn is_still_valid(&self, http: &HttpContext) -> bool {
        let valid = match &self.token {
            _ if self.is_in_process => Ok(true),
            Some(id) => http.tokens.is_valid(id).await,
            None => http.tokens.is_empty().await,
        };
        // A store that does not answer for a moment ends no request.
        valid.unwrap_or(true)
    }

    /// Resolves when a waiting request may not continue: its token was revoked or has expired.
    pub(crate) async fn ended(&self, http: &HttpContext) {
        loop {
            tokio::time::sleep(VALIDITY_CHECK_INTERVAL).await;
            if !self.is_still_valid(http).await {
                return;
            }
        }
    }

    fn may(&self, scope: &Scope) -> Result<(), Problem> {
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
        #[allow(dead_code)] // many handlers need the scope and not the caller
        pub(crate) struct $name(pub(crate) Caller);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
                // Missing only on a route outside the authenticated ones: refused.
                let caller = parts.extensions.get::<Caller>().cloned();
                let caller = caller.ok_or_else(token_required)?;
                caller.may(&Scope::$scope)?;
                Ok($name(caller))
            }
        }
    )* };
}

scopes! {
    /// A caller with the scope `publish`.
    MayPublish => Publish;
    /// A caller with the scope `read`.
    MayRead => Read;
    /// A caller with the scope `consume`.
    MayConsume => Consume;
    /// A caller with the scope `admin`.
    MayAdmin => Admin;
}

/// Hides the store's error from a caller that is not authenticated.
fn unknown_caller(error: StoreError) -> Problem {
    tracing::error!(target: "redrive::http", %error, "the caller cannot be authenticated");
    Problem::new(
        Code::Unavailable,
        "the caller cannot be authenticated, because the store does not answer: try again",
    )
    .after(Duration::from_secs(1))
}

fn token_required() -> Problem {
    Problem::new(
        Code::TokenRequired,
        "send the header `authorization: Bearer rdt_…`; `redrive tokens create` makes a token",
    )
}

/// Authenticates the caller.
pub(crate) async fn identify(
    State(http): State<Arc<HttpContext>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let is_in_process = request.extensions().get::<InProcessCaller>().is_some();
    let secret = bearer(request.headers()).map(|secret| secret.map(str::to_owned));
    let found = match secret {
        _ if is_in_process => {
            Ok((Caller { token: None, scopes: Arc::new([Scope::Admin]), is_in_process }, None))
        }
        Ok(Some(secret)) => with_token(&http, &secret).await,
        Ok(None) => without_token(&http, local_peer(&request)).await.map(|caller| (caller, None)),
        Err(problem) => Err(problem),
    };
    let (caller, bucket) = match found {
        Ok(found) => found,
        Err(problem) => {
            http.limits.take_anonymous()?;
            return Err(problem);
        }
    };
    // The caller's own bucket first: what it refuses takes nothing from the bucket of all.
    if let Some(bucket) = bucket {
        bucket.take().map_err(|wait| too_many("this token", wait))?;
    }
    http.limits.requests.take().map_err(|wait| too_many("all callers together", wait))?;
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

/// Limits the requests of a public route.
pub(crate) async fn limit_public(
    State(http): State<Arc<HttpContext>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let route = request.extensions().get::<MatchedPath>();
    http.limits.take_public(route.map_or("", MatchedPath::as_str))?;
    Ok(next.run(request).await)
}

/// The caller that holds this token, and the token's bucket.
async fn with_token(http: &HttpContext, secret: &str) -> Result<(Caller, Option<Arc<Bucket>>), Problem> {
    match http.tokens.find(secret).await.map_err(unknown_caller)? {
        Lookup::Valid(entry) => {
            let token = &entry.token;
            let scopes = token.body.scopes.as_slice().into();
            let caller = Caller { token: Some(token.id.as_str().into()), scopes, is_in_process: false };
            Ok((caller, Some(Arc::clone(&entry.bucket))))
        }
        Lookup::Expired => Err(Problem::new(Code::InvalidToken, "the token has expired: ask for a new one")),
        Lookup::Unknown => Err(Problem::new(
            Code::InvalidToken,
            "there is no such token, or it was revoked: ask for a new one",
        )),
    }
}

/// A caller without a token, with the peer of a request that looks local.
async fn without_token(http: &HttpContext, local: Option<Peer>) -> Result<Caller, Problem> {
    if !http.tokens.is_empty().await.map_err(unknown_caller)? {
        return Err(token_required());
    }
    let is_own_user = match local {
        Some(peer) => peer.is_own_user().await,
        None => false,
    };
    if !is_own_user {
        return Err(Problem::new(
            Code::TokenRequired,
            "there are no tokens yet, so only the server's own user and root may ask, on the server's machine by http://localhost \
             or http://127.0.0.1 and without a proxy: create a token there with `redrive tokens create`",
        ));
    }
    Ok(Caller { token: None, scopes: Arc::new([Scope::Admin]), is_in_process: false })
}

/// The problem of a request over the rate limit of the server or of a token.
pub(crate) fn too_many(limited: &str, wait: Duration) -> Problem {
    let detail = format!("the rate limit of {limited} is exceeded: wait as `retry-after` says");
    Problem::new(Code::RateLimited, detail).after(wait)
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_token_is_read_from_its_header_only() {
        let bearer_of = |value: &'static str| {
            let headers = [(header::AUTHORIZATION, HeaderValue::from_static(value))].into_iter().collect();
            bearer(&headers).map(|found| found.map(str::to_owned)).ok()
        };
        assert_eq!(bearer_of("Bearer rdt_x"), Some(Some("rdt_x".to_owned())));
        assert_eq!(bearer_of("bearer  rdt_x "), Some(Some("rdt_x".to_owned())));
        for bad in ["rdt_x", "Basic rdt_x", "", "Bearer"] {
            assert_eq!(bearer_of(bad), None, "{bad:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()).ok(), Some(None));
    }
}
