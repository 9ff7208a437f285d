//! `/v1/tokens`: who may talk to the server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::auth::MayAdmin;
use super::body::{Json, Named, Query};
use super::page::{self, Page};
use super::problem::{Code, Problem};
use super::time::Instant;
use super::{Api, Routes, reply};
use crate::tokens::scope::Scope;
use crate::tokens::token::{LONGEST_NAME, NewToken, Token, TokenError};

/// The longest life of a token, in seconds: a hundred years.
const LONGEST_LIFE: u64 = 100 * 365 * 24 * 3600;

pub(crate) fn routes() -> Routes {
    Routes::new().routes(routes!(list, create)).routes(routes!(revoke))
}

/// A token that is to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateToken {
    /// What it is for.
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$",
        example = "shop"
    )]
    name: String,
    /// What it allows. `admin` includes the others.
    #[schema(min_items = 1)]
    scopes: Vec<Scope>,
    /// For how many seconds; until it is revoked if this is not given.
    #[schema(minimum = 1, maximum = 3_153_600_000_u64)]
    expires_in_s: Option<u64>,
}

/// A token without its secret.
#[derive(Debug, Serialize, ToSchema)]
struct TokenView {
    id: String,
    name: String,
    scopes: Vec<Scope>,
    created_at: Instant,
    /// `null` if it does not expire.
    expires_at: Option<Instant>,
    /// To the hour; `null` if it was never used.
    last_used_at: Option<Instant>,
}

/// A new token.
#[derive(Debug, Serialize, ToSchema)]
struct CreatedToken {
    /// The token itself. It is shown only now.
    #[schema(example = "rdt_mJ0c…")]
    token: String,
    #[serde(flatten)]
    about: TokenView,
}

/// Which part of the list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TokensQuery {
    /// How many at most
    #[param(minimum = 1, maximum = 200, default = 100)]
    limit: Option<u32>,
    /// Continue after this cursor: the `next` of the page before
    #[param(value_type = Option<String>, pattern = r"^[0-9]{1,18}\.[A-Za-z0-9_-]{1,64}$")]
    after: Option<String>,
}

/// Where a token stands in the list. A page goes on behind it also when it was revoked meanwhile.
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

impl From<Token> for TokenView {
    fn from(token: Token) -> Self {
        TokenView {
            id: token.id,
            name: token.body.name,
            scopes: token.body.scopes,
            created_at: token.created_at.into(),
            expires_at: token.body.expires_at.map(Instant),
            last_used_at: token.body.last_used_at.map(Instant),
        }
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
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", security(("token" = ["admin"])), params(TokensQuery),
    responses((status = 200, body = Page<TokenView>)))]
async fn list(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Query(query): Query<TokensQuery>,
) -> Result<Response, Problem> {
    let limit = page::limit(query.limit)?;
    let after = query.after.as_deref().map(Cursor::read).transpose()?;
    let mut tokens = Token::all(api.store.as_ref()).await?;
    tokens.retain(|token| after.as_ref().is_none_or(|after| Cursor::of(token) > *after));
    Ok(reply::ok(&Page::of(tokens, limit, |token| Cursor::of(token).to_string(), TokenView::from)))
}

/// Make a token; it is shown only now
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", security(("token" = ["admin"])),
    request_body = CreateToken, responses((status = 201, body = CreatedToken)))]
async fn create(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Json(wanted): Json<CreateToken>,
) -> Result<Response, Problem> {
    const { assert!(LONGEST_NAME == 100, "as the schema says") };
    if wanted.expires_in_s.is_some_and(|seconds| seconds > LONGEST_LIFE) {
        return Err(Problem::invalid(format!(
            "expires_in_s is at most {LONGEST_LIFE}: leave it out for a token that does not expire"
        )));
    }
    let new = NewToken {
        name: wanted.name,
        scopes: wanted.scopes,
        expires_in: wanted.expires_in_s.map(Duration::from_secs),
    };
    let (token, secret) = Token::create(api.store.as_ref(), new).await?;
    api.door.tokens.forget();
    tracing::info!(target: "redrive::tokens", id = token.id, name = token.body.name, "a token was made");
    let created = CreatedToken { token: secret.reveal().to_owned(), about: token.into() };
    Ok(reply::json(StatusCode::CREATED, &created))
}

/// Refuse a token from now on
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "As the list shows it", min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-]+$")),
    responses((status = 204, description = "It is refused")))]
async fn revoke(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Named(id): Named<String>,
) -> Result<Response, Problem> {
    if !Token::revoke(api.store.as_ref(), &id).await? {
        return Err(Problem::new(Code::NotFound, "there is no such token: GET /v1/tokens shows them"));
    }
    api.door.tokens.forget();
    tracing::info!(target: "redrive::tokens", id, "a token was revoked");
    Ok(StatusCode::NO_CONTENT.into_response())
}
