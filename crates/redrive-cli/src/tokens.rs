//! `redrive tokens …`: creates, lists and revokes tokens.

use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, Subcommand};
use redrive_api::page::Page;
use redrive_api::time::Time;
use redrive_api::tokens::{CreateToken, Scope, Token};
use redrive_retry::duration::parse_duration;

use crate::api::{EndpointSecrets, IfMissing, PageArgs, ServerArgs, Session, relative};
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::table::Table;
use crate::{format, time_format};

/// Create, list and revoke the tokens of `redrive serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive tokens create --name shop --scope publish
  redrive tokens create --name grafana --scope read --expires-in 90d
  redrive tokens list
  redrive tokens revoke 9f86d081884c7d65
  redrive tokens list --server https://events.example.com --token rdt_…

A server sees a change within a second. Without any token, a caller on the machine of the server may do everything, and no other \
caller anything.")]
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
    /// Create a token and show it, once
    Create {
        /// Name, for lists and logs
        #[arg(long)]
        name: String,
        /// Scopes: publish, read, consume, admin (which includes all); several with commas
        #[arg(long, value_name = "SCOPES", value_delimiter = ',', required = true, value_parser = scope)]
        scope: Vec<Scope>,
        /// Expire after this time, such as 30d [default: never]
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        expires_in: Option<Duration>,
    },
    /// List the tokens; never their secrets
    List,
    /// Revoke a token
    Revoke {
        /// Id of the token, as `redrive tokens list` prints it
        #[arg(value_name = "ID")]
        id: String,
    },
}

impl Tokens {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let if_missing = match self.command {
            TokensCommand::Create { .. } => IfMissing::Create,
            _ => IfMissing::Fail,
        };
        let db = &self.database.db;
        self.server.run(db, EndpointSecrets::Closed, if_missing, out, screen, async |api| {
            match self.command {
                TokensCommand::Create { name, scope, expires_in } => {
                    let expires_in_s = expires_in.map(|time| time.as_secs());
                    create(api, &CreateToken { name, scopes: scope, expires_in_s }).await
                }
                TokensCommand::List => list(api).await,
                TokensCommand::Revoke { id } => revoke(api, &id).await,
            }
        })
    }
}

/// Reads a scope that this release knows.
fn scope(text: &str) -> Result<Scope, String> {
    match text.into() {
        Scope::Other(_) => Err("use publish, read, consume or admin".to_owned()),
        known => Ok(known),
    }
}

async fn create(api: &mut Session<'_>, token: &CreateToken) -> Result<(), Failure> {
    let created = api.tokens().create(token).await?;
    api.print_response(created, |api, created| {
        // The token alone goes to standard output, for scripts. A closed standard error is no failure.
        let (id, name) = (format::one_line(&created.about.id), format::one_line(&created.about.name));
        let _ = writeln!(io::stderr().lock(), "note: this is token {id} ({name}); it is shown only now");
        Ok(writeln!(api.out, "{}", created.token)?)
    })
}

/// Reads every page, oldest token first.
async fn all(api: &Session<'_>) -> Result<Page<Token>, Failure> {
    Ok(PageArgs::ALL.collect(async |page| api.tokens().list(page).await).await?)
}

async fn list(api: &mut Session<'_>) -> Result<(), Failure> {
    let tokens = all(api).await?;
    let hint = "redrive tokens create --name shop --scope publish";
    let none = format!("No tokens. Create one: {hint}{}", api.flag);
    api.page(tokens, "tokens list", &none, |api, tokens| {
        let now = time_format::now();
        let never = || "never".to_owned();
        let expires = |at: Time| if at.0 <= now { "expired".to_owned() } else { relative(at) };
        let row = |token: &Token| {
            let scopes = token.scopes.iter().map(Scope::as_str).collect::<Vec<_>>().join(",");
            [
                format::one_line(&token.id),
                format::one_line(&token.name),
                format::one_line(&scopes),
                relative(token.created_at),
                token.expires_at.map_or_else(never, expires),
                token.last_used_at.map_or_else(never, relative),
            ]
        };
        let heading = ["id", "name", "scopes", "created", "expires", "last used"];
        Table::new(heading, tokens.iter().map(row)).whole(&[0]).print(api.out, api.screen)
    })
}

async fn revoke(api: &mut Session<'_>, id: &str) -> Result<(), Failure> {
    let tokens = all(api).await?.data;
    if !tokens.iter().any(|token| token.id == id) {
        let (id, flag) = (format::one_line(id), &api.flag);
        let say = format!("there is no token {id}: `redrive tokens list{flag}` shows them");
        return Err(Failure::Failed(say));
    }
    api.tokens().revoke(id).await?;
    if api.json {
        return Ok(()); // the API answers without a body
    }
    writeln!(api.out, "Token {id} is revoked.")?;
    if tokens.len() == 1 {
        writeln!(
            api.out,
            "It was the last one: local callers of the server's own user and of root may do everything again."
        )?;
    }
    Ok(())
}
