//! Who asks, and what they may do.
//!
//! While there is no token at all, whoever is on this machine may do everything: a request from a loopback address, to a loopback
//! name, that no proxy has passed on. As soon as there is one, every request needs one.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use redrive::StoreError;

use super::door::Door;
use super::origin::is_local;
use super::problem::{Code, Problem};
use crate::tokens::book::Shown;
use crate::tokens::scope::Scope;

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
    pub(crate) async fn is_still_welcome(&self, door: &Door) -> bool {
        let looked = match &self.token {
            _ if self.is_inside => Ok(true),
            Some(id) => door.tokens.is_valid(id).await,
            None => door.tokens.is_empty().await,
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

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
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

/// What is wrong with the store is not told to somebody who may be anybody.
fn nobody_knows(error: StoreError) -> Problem {
    tracing::error!(target: "redrive::http", %error, "it cannot be found out who asks");
    Problem::new(
        Code::Unavailable,
        "it cannot be found out who asks, because the store does not answer: try again",
    )
    .after(Duration::from_secs(1))
}

fn token_required() -> Problem {
    Problem::new(
        Code::TokenRequired,
        "send the header `authorization: Bearer rdt_…`; `redrive tokens create` makes a token",
    )
}

/// Finds out who asks, for everything that is not for everybody.
pub(crate) async fn identify(
    State(door): State<Arc<Door>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let is_inside = request.extensions().get::<Inside>().is_some();
    let secret = bearer(request.headers())?.map(str::to_owned);
    let caller = match secret {
        _ if is_inside => Caller { token: None, scopes: Arc::new([Scope::Admin]), is_inside },
        Some(secret) => holder(&door, &secret).await?,
        None => nobody(&door, is_local(&request)).await?,
    };
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

/// Who holds this token.
async fn holder(door: &Door, secret: &str) -> Result<Caller, Problem> {
    match door.tokens.find(secret).await.map_err(nobody_knows)? {
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
async fn nobody(door: &Door, is_local: bool) -> Result<Caller, Problem> {
    if !door.tokens.is_empty().await.map_err(nobody_knows)? {
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_token_is_taken_from_its_header_only() {
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
