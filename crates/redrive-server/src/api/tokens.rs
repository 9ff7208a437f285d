//! `/v1/tokens`: creates, lists and revokes bearer tokens.

use std::fmt;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use redrive_api::page::{Page, PageQuery};
use redrive_api::time::Time;
use redrive_api::tokens::{self, CreateToken, CreatedToken, Scope};
use utoipa_axum::routes;

use super::auth::MayAdmin;
use super::body::{Json, Named, Query};
use super::problem::{Code, Problem};
use super::{ApiState, Reply, Routes, page, reply};
use crate::tokens::token::{MAX_NAME_CHARS, NewToken, Token, TokenError};

/// Longest life of a token: a hundred years.
const MAX_LIFE_S: u64 = 100 * 365 * 24 * 3600;

pub(crate) fn routes() -> Routes {
    Routes::new().routes(routes!(list, create)).routes(routes!(revoke))
}

/// Position of a token in the list. It stays valid when the token is revoked.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cursor<'a> {
    created_at: i64,
    id: &'a str,
}

impl<'a> Cursor<'a> {
    fn of(token: &'a Token) -> Self {
        Cursor { created_at: token.created_at.as_millis(), id: &token.id }
    }

    fn read(text: &'a str) -> Result<Self, Problem> {
        let (created_at, id) =
            text.split_once('.').filter(|(_, id)| !id.is_empty()).ok_or_else(page::no_cursor)?;
        Ok(Cursor { created_at: page::number(created_at)?, id })
    }
}

impl fmt::Display for Cursor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.created_at, self.id)
    }
}

fn view(token: Token) -> tokens::Token {
    tokens::Token {
        id: token.id,
        name: token.body.name,
        scopes: token.body.scopes,
        created_at: token.created_at.into(),
        expires_at: token.body.expires_at.map(Time),
        last_used_at: token.body.last_used_at.map(Time),
    }
}

impl From<TokenError> for Problem {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Store(error) => error.into(),
            TokenError::TooMany => Problem::new(Code::Conflict, error.to_string()),
            TokenError::NoRandomness(_) => Problem::new(Code::Internal, error.to_string()),
            TokenError::Name | TokenError::NoScope | TokenError::ExpiresAtOnce => {
                Problem::invalid(error.to_string())
            }
        }
    }
}

/// List the tokens, oldest first; never their secrets
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", security(("token" = ["admin"])), params(PageQuery),
    responses((status = 200, body = Page<tokens::Token>)))]
async fn list(State(api): ApiState, _: MayAdmin, Query(query): Query<PageQuery>) -> Reply {
    let limit = page::limit(&query)?;
    let after = query.after.as_deref().map(Cursor::read).transpose()?;
    let mut tokens = Token::all(api.store.as_ref()).await?;
    tokens.retain(|token| after.as_ref().is_none_or(|after| Cursor::of(token) > *after));
    Ok(reply::ok(&page::page(tokens, limit, |token| Cursor::of(token).to_string(), view)))
}

/// Create a token; no other answer shows it
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", security(("token" = ["admin"])),
    request_body = CreateToken, responses((status = 201, body = CreatedToken)))]
async fn create(State(api): ApiState, _: MayAdmin, Json(wanted): Json<CreateToken>) -> Reply {
    const { assert!(MAX_NAME_CHARS == 100, "as the schema says") };
    if wanted.expires_in_s.is_some_and(|seconds| seconds > MAX_LIFE_S) {
        return Err(Problem::invalid(format!(
            "expires_in_s is at most {MAX_LIFE_S}: leave it out for a token that does not expire"
        )));
    }
    if wanted.scopes.iter().any(|scope| matches!(scope, Scope::Other(_))) {
        return Err(Problem::invalid(format!("a scope is one of {}", Scope::KNOWN.join(", "))));
    }
    let new = NewToken {
        name: wanted.name,
        scopes: wanted.scopes,
        expires_in: wanted.expires_in_s.map(Duration::from_secs),
    };
    let (token, secret) = Token::create(api.store.as_ref(), new).await?;
    api.http.tokens.invalidate();
    tracing::info!(target: "redrive::tokens", id = token.id, name = token.body.name, "a token was created");
    let created = CreatedToken { token: secret.reveal().to_owned(), about: view(token) };
    Ok(reply::json(StatusCode::CREATED, &created))
}

/// Revoke a token
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "As the list shows it", min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-]+$")),
    responses((status = 204, description = "Revoked")))]
async fn revoke(State(api): ApiState, _: MayAdmin, Named(id): Named<String>) -> Reply {
    if !Token::revoke(api.store.as_ref(), &id).await? {
        return Err(Problem::new(Code::NotFound, "there is no such token: GET /v1/tokens shows them"));
    }
    api.http.tokens.invalidate();
    tracing::info!(target: "redrive::tokens", id, "a token was revoked");
    Ok(StatusCode::NO_CONTENT.into_response())
}
