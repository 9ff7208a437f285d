//! The address of a server, and what stands in it for us and not for the server.

use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;

use super::PostgresOptions;
use super::failure;
use crate::error::StoreError;

/// An address such as `postgres://host/database?schema=billing`, taken apart.
#[derive(Debug)]
pub(super) struct Address {
    /// How to reach the server.
    config: Config,
    own: Own,
}

/// What is for us. Every command and every program takes an address, so what depends on the server can be said in it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Own {
    /// The schema; not yet checked.
    schema: Option<String>,
    /// Who may sign the server's certificate. Under the name that other clients know.
    sslrootcert: Option<String>,
    /// Whether there is a transaction pooler in between.
    poll_only: Option<String>,
}

impl Own {
    fn place(&mut self, name: &str) -> Option<&mut Option<String>> {
        match name {
            "schema" => Some(&mut self.schema),
            "sslrootcert" => Some(&mut self.sslrootcert),
            "poll_only" => Some(&mut self.poll_only),
            _ => None,
        }
    }
}

impl Address {
    /// How to reach the server, and the options as far as the address does not say otherwise.
    pub(super) fn with(self, options: PostgresOptions) -> (Config, PostgresOptions) {
        let Own { schema, sslrootcert, poll_only } = self.own;
        let options = PostgresOptions {
            schema: schema.unwrap_or(options.schema),
            ca_certificate: sslrootcert.map(PathBuf::from).or(options.ca_certificate),
            poll_only: poll_only.map_or(options.poll_only, |wanted| wanted == "true"),
            ..options
        };
        (self.config, options)
    }
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let (rest, own) = without_own(text)?;
        // What the client says of it names the part, and never what is in it.
        let config = rest
            .parse()
            .map_err(|error: tokio_postgres::Error| StoreError::Address { why: failure::said(&error) })?;
        Ok(Address { config, own })
    }
}

/// The client refuses parameters that it does not know, so ours are taken out.
fn without_own(text: &str) -> Result<(String, Own), StoreError> {
    // A password may hold a question mark; it stands before the first `@`, as the client reads it.
    let host = text.find('@').map_or(0, |at| at + 1);
    let mut own = Own::default();
    let Some(question_mark) = text[host..].find('?').filter(|_| text.contains("://")) else {
        return Ok((text.to_owned(), own));
    };
    let (place, parameters) = text.split_at(host + question_mark);
    let mut others = Vec::new();
    for parameter in parameters[1..].split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match own.place(name) {
            // Other clients tell the two apart; here a certificate is always checked, with its name.
            None if parameter == "sslmode=verify-full" => others.push("sslmode=require"),
            None => others.push(parameter),
            Some(place) if place.is_none() => {
                *place = Some(percent_decode_str(value).decode_utf8_lossy().into_owned());
            }
            Some(_) => return Err(StoreError::Address { why: format!("it has two values for {name}") }),
        }
    }
    if own.poll_only.as_deref().is_some_and(|wanted| wanted != "true" && wanted != "false") {
        return Err(StoreError::Address { why: "poll_only is true or false".into() });
    }
    let others = others.join("&");
    let rest = if others.is_empty() { place.to_owned() } else { format!("{place}?{others}") };
    Ok((rest, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(name: &str) -> Own {
        Own { schema: Some(name.into()), ..Own::default() }
    }

    #[test]
    fn what_is_ours_is_taken_out_and_the_rest_is_the_servers() {
        let secured = Own { sslrootcert: Some("/etc/my ca.pem".into()), ..schema("a") };
        let pooled = Own { poll_only: Some("true".into()), ..Own::default() };
        for (text, rest, own) in [
            ("postgres://h/d", "postgres://h/d", Own::default()),
            ("postgres://h/d?schema=a", "postgres://h/d", schema("a")),
            ("postgres://h/d?sslmode=disable&schema=a", "postgres://h/d?sslmode=disable", schema("a")),
            ("postgres://h/d?schema=a&connect_timeout=3", "postgres://h/d?connect_timeout=3", schema("a")),
            ("postgres://u:a?schema=b@h/d", "postgres://u:a?schema=b@h/d", Own::default()),
            ("postgres://u:a?b@h/d?schema=c", "postgres://u:a?b@h/d", schema("c")),
            ("postgres://h/d?schema=", "postgres://h/d", schema("")),
            ("postgres://h/d?sslrootcert=/etc/my%20ca.pem&schema=a", "postgres://h/d", secured),
            ("postgres://h/d?poll_only=true", "postgres://h/d", pooled),
            ("postgres://h/d?sslmode=verify-full", "postgres://h/d?sslmode=require", Own::default()),
            ("host=h dbname=d", "host=h dbname=d", Own::default()),
        ] {
            assert_eq!(without_own(text).unwrap(), (rest.to_owned(), own), "{text}");
        }
    }

    #[test]
    fn what_the_address_says_goes_before_the_options() {
        let options = PostgresOptions { schema: "b".into(), poll_only: true, ..PostgresOptions::default() };
        let address: Address = "postgres://h/d?schema=a&sslrootcert=ca.pem&poll_only=false".parse().unwrap();
        let (_, with) = address.with(options.clone());
        assert_eq!((with.schema.as_str(), with.poll_only), ("a", false));
        assert_eq!(with.ca_certificate, Some("ca.pem".into()));
        let (_, with) = "postgres://h/d".parse::<Address>().unwrap().with(options);
        assert_eq!((with.schema.as_str(), with.poll_only, with.ca_certificate), ("b", true, None));
    }

    #[test]
    fn what_contradicts_itself_and_what_nobody_knows_is_refused() {
        for (text, why) in [
            ("postgres://h/d?schema=a&schema=b", "it has two values for schema"),
            ("postgres://h/d?poll_only=maybe", "poll_only is true or false"),
            ("postgres://h/d?poll_only", "poll_only is true or false"),
            ("postgres://h/d?shcema=a", "unknown"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
