//! The address of a server, and what stands in it for us and not for the server.

use std::str::FromStr;

use tokio_postgres::Config;

use super::failure;
use crate::error::StoreError;

/// An address such as `postgres://host/database?schema=billing`, taken apart.
#[derive(Debug)]
pub(super) struct Address {
    /// How to reach the server.
    pub(super) config: Config,
    /// The schema, if it is named; not yet checked.
    pub(super) schema: Option<String>,
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let (rest, schema) = without_schema(text)?;
        // What the client says of it names the part, and never what is in it.
        let config = rest
            .parse()
            .map_err(|error: tokio_postgres::Error| StoreError::Address { why: failure::said(&error) })?;
        Ok(Address { config, schema })
    }
}

/// The client refuses parameters that it does not know, so ours is taken out.
fn without_schema(text: &str) -> Result<(String, Option<String>), StoreError> {
    // A password may hold a question mark; it stands before the first `@`, as the client reads it.
    let host = text.find('@').map_or(0, |at| at + 1);
    let Some(question_mark) = text[host..].find('?').filter(|_| text.contains("://")) else {
        return Ok((text.to_owned(), None));
    };
    let (place, parameters) = text.split_at(host + question_mark);
    let (mut others, mut schema) = (Vec::new(), None);
    for parameter in parameters[1..].split('&') {
        match parameter.strip_prefix("schema=") {
            Some(name) if schema.is_none() => schema = Some(name.to_owned()),
            Some(_) => return Err(StoreError::Address { why: "it names two schemas".into() }),
            None => others.push(parameter),
        }
    }
    let others = others.join("&");
    let rest = if others.is_empty() { place.to_owned() } else { format!("{place}?{others}") };
    Ok((rest, schema))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_ours_and_the_rest_is_the_servers() {
        for (text, rest, schema) in [
            ("postgres://h/d", "postgres://h/d", None),
            ("postgres://h/d?schema=a", "postgres://h/d", Some("a")),
            ("postgres://h/d?sslmode=disable&schema=a", "postgres://h/d?sslmode=disable", Some("a")),
            ("postgres://h/d?schema=a&connect_timeout=3", "postgres://h/d?connect_timeout=3", Some("a")),
            ("postgres://u:a?schema=b@h/d", "postgres://u:a?schema=b@h/d", None),
            ("postgres://u:a?b@h/d?schema=c", "postgres://u:a?b@h/d", Some("c")),
            ("postgres://h/d?schema=", "postgres://h/d", Some("")),
            ("host=h dbname=d", "host=h dbname=d", None),
        ] {
            assert_eq!(without_schema(text).unwrap(), (rest.to_owned(), schema.map(str::to_owned)), "{text}");
        }
    }

    #[test]
    fn two_schemas_and_unknown_parameters_are_refused() {
        for (text, why) in [
            ("postgres://h/d?schema=a&schema=b", "it names two schemas"),
            ("postgres://h/d?shcema=a", "unknown"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
