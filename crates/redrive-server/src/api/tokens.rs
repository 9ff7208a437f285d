//! `/v1/tokens`: creates, lists and revokes bearer tokens.

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
use crate::tokens::token::{MAX_NAME_CHARS, Token, TokenError};

/// Longest life of a token: a hundred years.
const MAX_LIFE_S: u64 = 100 * 365 * 24 * 3600;

pub(crate) fn routes() -> Routes {
    Routes::new().routes(routes!(list_tokens, create_token)).routes(routes!(revoke_token))
}

/// Position of a token in the list: time of creation and id. It stays valid when the token is revoked.
fn cursor(token: &Token) -> (i64, &str) {
    (token.created_at.as_millis(), &token.id)
}

fn read_cursor(text: &str) -> Result<(i64, &str), Problem> {
    let (created_at, id) =
        text.split_once('.').filter(|(_, id)| !id.is_empty()).ok_or_else(page::no_cursor)?;
    Ok((page::number(created_at)?, id))
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
            TokenError::Name | TokenError::NoScope | TokenError::ExpiresAtOnce => Problem::invalid(error),
        }
    }
}

/// List the tokens, oldest first
///
/// The secret of a token is shown once, by `createToken`, and stored nowhere.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", security(("token" = ["admin"])), params(PageQuery),
    responses((status = 200, body = Page<tokens::Token>)))]
async fn list_tokens(State(api): ApiState, _: MayAdmin, Query(query): Query<PageQuery>) -> Reply {
    let limit = page::limit(&query)?;
    let after = query.after.as_deref().map(read_cursor).transpose()?;
    let mut tokens = Token::all(api.store.as_ref()).await?;
    tokens.retain(|token| after.is_none_or(|after| cursor(token) > after));
    let next = |token: &Token| {
        let (created_at, id) = cursor(token);
        format!("{created_at}.{id}")
    };
    Ok(reply::ok(&page::page(tokens, limit, next, view)))
}

/// Create a token
///
/// The response has the token itself; no later response shows it. The first token is created on the command line: `redrive tokens create`.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", security(("token" = ["admin"])),
    request_body = CreateToken, responses((status = 201, body = CreatedToken)))]
async fn create_token(
    State(api): ApiState,
    MayAdmin(caller): MayAdmin,
    Json(wanted): Json<CreateToken>,
) -> Reply {
    if caller.token.is_none() && !caller.may_create_first_token() {
        return Err(Problem::new(
            Code::TokenRequired,
            "the first token is created on the command line: `redrive tokens create --name admin --scope admin`",
        ));
    }
    const { assert!(MAX_NAME_CHARS == 100, "as the schema says") };
    if wanted.expires_in_s.is_some_and(|seconds| seconds > MAX_LIFE_S) {
        return Err(Problem::invalid(format!(
            "expires_in_s is at most {MAX_LIFE_S}: leave it out for a token that does not expire"
        )));
    }
    if wanted.scopes.iter().any(|scope| matches!(scope, Scope::Other(_))) {
        return Err(Problem::invalid(format!("a scope is one of {}", Scope::KNOWN.join(", "))));
    }
    let (token, secret) = Token::create(api.store.as_ref(), wanted).await?;
    api.http.tokens.invalidate();
    tracing::info!(target: "redrive::tokens", id = token.id, name = token.body.name, "a token was created");
    let created = CreatedToken { token: secret.reveal().to_owned(), about: view(token) };
    Ok(reply::json(StatusCode::CREATED, &created))
}

/// Revoke a token
///
/// Open streams and waiting pulls of the token end within a second.
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "As the list shows it", min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-]+$")),
    responses((status = 204, description = "Revoked")))]
async fn revoke_token(State(api): ApiState, _: MayAdmin, Named(id): Named<String>) -> Reply {
    if !Token::revoke(api.store.as_ref(), &id).await? {
        return Err(Problem::new(Code::NotFound, "there is no such token: GET /v1/tokens shows them"));
    }
    api.http.tokens.invalidate();
    tracing::info!(target: "redrive::tokens", id, "a token was revoked");
    Ok(StatusCode::NO_CONTENT.into_response())
}
