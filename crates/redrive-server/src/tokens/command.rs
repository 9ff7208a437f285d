//! `redrive tokens …`: makes tokens, lists them, revokes them.

use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, Subcommand};
use redrive_retry::parse_duration;
use serde::Deserialize;
use serde_json::{Value, json};

use super::scope::Scope;
use super::token::TokenError;
use crate::api::time::Instant;
use crate::database::{DatabaseArgs, block_on};
use crate::failure::Failure;
use crate::place::{IfMissing, Keys, Place, ServerArgs, encoded};
use crate::screen::Screen;
use crate::table::{Align, Table};
use crate::{label, moment};

/// Give out and revoke the tokens of `redrive serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive tokens create --name shop --scope publish
  redrive tokens create --name grafana --scope read --expires-in 90d
  redrive tokens list
  redrive tokens revoke 9f86d081884c7d65
  redrive tokens list --server https://events.example.com --token rdt_…

A server hears of it within a second. While there is no token at all, whoever is on the machine of the server may do \
everything, and nobody else anything.")]
pub(crate) struct Tokens {
    #[command(subcommand)]
    command: TokensCommand,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

#[derive(Debug, Subcommand)]
enum TokensCommand {
    /// Make a token and show it, once
    Create {
        /// What it is for
        #[arg(long)]
        name: String,
        /// What it allows: publish, read, consume, admin (which includes all); several with commas
        #[arg(long, value_name = "SCOPES", value_delimiter = ',', required = true)]
        scope: Vec<Scope>,
        /// For how long, such as 30d; without this, until it is revoked
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        expires_in: Option<Duration>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show what there is; never the tokens themselves
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Refuse a token from now on
    Revoke {
        /// As `redrive tokens list` shows it
        #[arg(value_name = "ID")]
        id: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// A token as the API shows it.
#[derive(Debug, Deserialize)]
struct Token {
    id: String,
    name: String,
    scopes: Vec<Scope>,
    created_at: Instant,
    expires_at: Option<Instant>,
    last_used_at: Option<Instant>,
}

#[derive(Debug, Deserialize)]
struct Created {
    token: String,
    #[serde(flatten)]
    about: Token,
}

#[derive(Debug, Deserialize)]
struct Page {
    data: Vec<Token>,
    next: Option<String>,
}

impl Tokens {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        block_on(async {
            let if_missing = match self.command {
                TokensCommand::Create { .. } => IfMissing::Make,
                _ => IfMissing::Fail,
            };
            let place = Place::open(&self.server, &self.database.db, Keys::None, if_missing).await?;
            let done = match self.command {
                TokensCommand::Create { name, scope, expires_in, json } => {
                    let body = json!({
                        "name": name,
                        "scopes": scope,
                        "expires_in_s": expires_in.map(|time| time.as_secs()),
                    });
                    create(&place, &body, json, out).await
                }
                TokensCommand::List { json } => list(&place, json, out, screen).await,
                TokensCommand::Revoke { id, json } => revoke(&place, &id, json, out).await,
            };
            place.close().await?;
            done
        })
    }
}

async fn create(place: &Place, body: &Value, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let Created { token, about } = place.post("/v1/tokens", body).await?;
    if json {
        let mut shown = show(&about);
        shown["token"] = token.into();
        return Ok(writeln!(out, "{shown}")?);
    }
    // The token alone on standard output, for scripts. If nobody hears the rest, the token was made all the same.
    let _ = writeln!(
        io::stderr().lock(),
        "note: this is token {} ({}); it is shown only now",
        label::one_line(&about.id),
        label::one_line(&about.name)
    );
    Ok(writeln!(out, "{token}")?)
}

/// Page by page, the oldest first.
async fn all(place: &Place) -> Result<Vec<Token>, Failure> {
    let (mut tokens, mut after) = (Vec::new(), String::new());
    loop {
        let Page { data, next } = place.get(&format!("/v1/tokens?limit=200{after}")).await?;
        tokens.extend(data);
        let Some(next) = next else { return Ok(tokens) };
        after = format!("&after={}", encoded(&next));
    }
}

async fn list(place: &Place, json: bool, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
    let tokens = all(place).await?;
    if json {
        let shown: Vec<_> = tokens.iter().map(show).collect();
        return Ok(writeln!(out, "{}", json!({ "tokens": shown }))?);
    }
    if tokens.is_empty() {
        return Ok(writeln!(
            out,
            "No tokens. Make one: redrive tokens create --name shop --scope publish{}",
            place.flag()
        )?);
    }
    let now = moment::now();
    let mut table = Table::new(
        ["id", "name", "scopes", "created", "expires", "last used"].map(|name| (name, Align::Left)),
    );
    for token in &tokens {
        let when = |at: &Instant| moment::relative(at.0, now);
        table.row([
            label::one_line(&token.id),
            label::one_line(&token.name),
            token.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(","),
            when(&token.created_at),
            token.expires_at.as_ref().map_or_else(
                || "never".to_owned(),
                |at| if at.0 <= now { "expired".to_owned() } else { when(at) },
            ),
            token.last_used_at.as_ref().map_or_else(|| "never".to_owned(), when),
        ]);
    }
    Ok(table.print(out, screen)?)
}

async fn revoke(place: &Place, id: &str, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let tokens = all(place).await?;
    if !tokens.iter().any(|token| token.id == id) {
        return Err(Failure::Failed(format!(
            "there is no token {}: `redrive tokens list{}` shows them",
            label::one_line(id),
            place.flag()
        )));
    }
    place.delete(&format!("/v1/tokens/{}", encoded(id))).await?;
    let left = tokens.len() - 1;
    if json {
        return Ok(writeln!(out, "{}", json!({ "revoked": id, "left": left }))?);
    }
    writeln!(out, "Token {id} is refused from now on.")?;
    if left == 0 {
        writeln!(out, "It was the last one: whoever is on the server's machine may do everything again.")?;
    }
    Ok(())
}

/// Times as in everything else that was printed by `--json` before: milliseconds.
fn show(token: &Token) -> Value {
    json!({
        "id": token.id,
        "name": token.name,
        "scopes": token.scopes,
        "created_at": token.created_at.0,
        "expires_at": token.expires_at.map(|at| at.0),
        "last_used_at": token.last_used_at.map(|at| at.0),
    })
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Store(error) => error.into(),
            error => Failure::Failed(error.to_string()),
        }
    }
}
