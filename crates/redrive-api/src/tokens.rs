//! `/v1/tokens`: bearer tokens of the API.

use serde::{Deserialize, Serialize};

use crate::client::{Paged, Result, encoded, requests};
use crate::open_enum::open_enum;
use crate::page::{Page, PageQuery};
use crate::time::Time;

open_enum! {
    /// Permission of a token.
    pub enum Scope {
        /// Publish events.
        Publish = "publish",
        /// Read everything.
        Read = "read",
        /// Pull events and settle them.
        Consume = "consume",
        /// Everything.
        Admin = "admin",
    }
}

impl Scope {
    /// Whether a holder of these scopes is allowed this one.
    pub fn is_in(&self, scopes: &[Scope]) -> bool {
        scopes.iter().any(|scope| scope == self || *scope == Scope::Admin)
    }
}

/// A token to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// Name for people.
    #[cfg_attr(
        feature = "schema",
        schema(
            min_length = 1,
            max_length = 100,
            pattern = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$",
            example = "shop"
        )
    )]
    pub name: String,
    /// Scopes; `admin` includes the others.
    #[cfg_attr(feature = "schema", schema(min_items = 1))]
    pub scopes: Vec<Scope>,
    /// Life of the token in seconds; without it the token does not expire.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 3_153_600_000_u64))]
    pub expires_in_s: Option<u64>,
}

/// A token without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Token {
    /// Id of the token.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Scopes.
    pub scopes: Vec<Scope>,
    /// The time at which the token was created.
    pub created_at: Time,
    /// The time at which the token expires; `null` for never.
    pub expires_at: Option<Time>,
    /// Last use, to the hour; `null` for never.
    pub last_used_at: Option<Time>,
}

/// A new token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreatedToken {
    /// The token itself. No other response shows it.
    #[cfg_attr(feature = "schema", schema(example = "rdt_mJ0c…"))]
    pub token: String,
    /// The token on record.
    #[serde(flatten)]
    pub about: Token,
}

requests! {
    /// Requests on `/v1/tokens`.
    Tokens,
    /// Creates, lists and revokes tokens.
    tokens
}

impl Tokens<'_> {
    /// Creates a token.
    pub async fn create(&self, token: &CreateToken) -> Result<CreatedToken> {
        self.0.post("/v1/tokens", token).await
    }

    /// Returns one page of tokens, oldest first.
    pub async fn list(&self, page: &PageQuery) -> Result<Page<Token>> {
        self.0.get("/v1/tokens", page).await
    }

    /// Iterates over all tokens, oldest first.
    pub fn all(&self) -> Paged<Token> {
        self.0.all("/v1/tokens", &())
    }

    /// Revokes a token.
    pub async fn revoke(&self, id: &str) -> Result<()> {
        self.0.remove(&format!("/v1/tokens/{}", encoded(id))).await
    }
}
