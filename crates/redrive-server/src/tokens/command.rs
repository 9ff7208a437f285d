//! `redrive tokens …`: makes tokens, lists them, revokes them.

use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, Subcommand};
use redrive_retry::parse_duration;
use serde_json::json;

use super::scope::Scope;
use super::token::{NewToken, Token, TokenError};
use crate::database::{Database, DatabaseArgs, block_on};
use crate::failure::Failure;
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

A server hears of it within a second. While there is no token at all, whoever is on the machine of the server may do \
everything, and nobody else anything.")]
pub(crate) struct Tokens {
    #[command(subcommand)]
    command: TokensCommand,
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

impl Tokens {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let db = &self.database.db;
        match self.command {
            TokensCommand::Create { name, scope, expires_in, json } => {
                create(db, NewToken { name, scopes: scope, expires_in }, json, out)
            }
            TokensCommand::List { json } => list(db, json, out, screen),
            TokensCommand::Revoke { id, json } => revoke(db, &id, json, out),
        }
    }
}

fn create(db: &Database, new: NewToken, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let (token, secret) = block_on(async {
        let store = db.open_or_create().await?;
        let made = Token::create(store.as_ref(), new).await?;
        store.close().await?;
        Ok(made)
    })?;
    if json {
        let mut shown = show(&token);
        shown["token"] = secret.reveal().into();
        return Ok(writeln!(out, "{shown}")?);
    }
    // The token alone on standard output, for scripts. If nobody hears the rest, the token was made all the same.
    let _ = writeln!(
        io::stderr().lock(),
        "note: this is token {} ({}); it is shown only now",
        token.id,
        label::one_line(&token.body.name)
    );
    Ok(writeln!(out, "{}", secret.reveal())?)
}

fn list(db: &Database, json: bool, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
    let tokens = block_on(async { Ok(Token::all(db.open().await?.as_ref()).await?) })?;
    if json {
        let shown: Vec<_> = tokens.iter().map(show).collect();
        return Ok(writeln!(out, "{}", json!({ "tokens": shown }))?);
    }
    if tokens.is_empty() {
        return Ok(writeln!(
            out,
            "No tokens. Make one: redrive tokens create --name shop --scope publish{}",
            db.flag()
        )?);
    }
    let now = moment::now();
    let mut table = Table::new([
        ("id", Align::Left),
        ("name", Align::Left),
        ("scopes", Align::Left),
        ("created", Align::Left),
        ("expires", Align::Left),
        ("last used", Align::Left),
    ]);
    for token in &tokens {
        let when = |at| moment::relative(at, now);
        table.row([
            token.id.clone(),
            label::one_line(&token.body.name),
            scopes(token),
            when(token.created_at),
            token.body.expires_at.map_or_else(
                || "never".to_owned(),
                |at| if at <= now { "expired".to_owned() } else { when(at) },
            ),
            token.body.last_used_at.map_or_else(|| "never".to_owned(), when),
        ]);
    }
    Ok(table.print(out, screen)?)
}

fn revoke(db: &Database, id: &str, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let (revoked, left) = block_on(async {
        let store = db.open().await?;
        let revoked = Token::revoke(store.as_ref(), id).await?;
        let left = Token::all(store.as_ref()).await?.len();
        store.close().await?;
        Ok((revoked, left))
    })?;
    if !revoked {
        return Err(Failure::Failed(format!(
            "there is no token {}: `redrive tokens list{}` shows them",
            label::one_line(id),
            db.flag()
        )));
    }
    if json {
        return Ok(writeln!(out, "{}", json!({ "revoked": id, "left": left }))?);
    }
    writeln!(out, "Token {id} is refused from now on.")?;
    if left == 0 {
        writeln!(out, "It was the last one: whoever is on the server's machine may do everything again.")?;
    }
    Ok(())
}

fn scopes(token: &Token) -> String {
    token.body.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(",")
}

/// Times as in everything that `--json` prints: milliseconds.
fn show(token: &Token) -> serde_json::Value {
    json!({
        "id": token.id,
        "name": token.body.name,
        "scopes": token.body.scopes,
        "created_at": token.created_at,
        "expires_at": token.body.expires_at,
        "last_used_at": token.body.last_used_at,
    })
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Store(error) => error.into(),
            TokenError::Name | TokenError::NoScope | TokenError::ExpiresAtOnce => {
                Failure::Usage(error.to_string())
            }
            error => Failure::Failed(error.to_string()),
        }
    }
}
