//! Parses a server address, and separates Redrive's own parameters from those of the client library.

use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;

use super::PostgresOptions;
use super::failure;
use crate::error::StoreError;
use crate::location::is_hosts_and_database;

/// A parsed address such as `postgres://host/database?schema=billing`.
#[derive(Debug)]
pub(super) struct Address {
    /// The configuration of the client library.
    config: Config,
    own: Own,
}

/// Redrive's own parameters. Every command takes an address, so settings that depend on the server can be part of it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Own {
    /// The schema, not yet validated.
    schema: Option<String>,
    /// The file of the certificate authority, under the name that libpq uses.
    sslrootcert: Option<String>,
    /// Whether a transaction pooler is in between.
    poll_only: Option<String>,
}

impl Own {
    fn parameter(&mut self, name: &str) -> Option<&mut Option<String>> {
        match name {
            "schema" => Some(&mut self.schema),
            "sslrootcert" => Some(&mut self.sslrootcert),
            "poll_only" => Some(&mut self.poll_only),
            _ => None,
        }
    }
}

impl Address {
    /// Returns the client configuration, and the options overridden by the address.
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
        if text.contains("://") || text.starts_with("postgres") {
            check_url(text).map_err(|why| StoreError::Address { why: why.into() })?;
        }
        let (rest, own) = without_own(text)?;
        let config = rest
            .parse()
            .map_err(|error: tokio_postgres::Error| StoreError::Address { why: message(text, &error) })?;
        Ok(Address { config, own })
    }
}

/// Refuses addresses in which the client library would take the end of a password for the host, and so resolve and show it.
fn check_url(text: &str) -> Result<(), &'static str> {
    let Some((_, rest)) =
        text.split_once("://").filter(|(scheme, _)| matches!(*scheme, "postgres" | "postgresql"))
    else {
        return Err("it does not begin with postgres://");
    };
    let (before, after) = rest.split_once('@').unwrap_or(("", rest));
    if after.split(['/', '?']).next().is_some_and(|hosts| hosts.contains(['=', '&'])) {
        return Err("its host has an = or & in it; parameters begin with ?");
    }
    if after.contains('@') {
        return Err("it has two @; one that belongs to a password or another value is written %40");
    }
    if before.contains("password=") {
        return Err("it has an @ among its parameters; there it is written %40");
    }
    Ok(())
}

/// The client library's error message, unless it may repeat a part of a password.
fn message(text: &str, error: &tokio_postgres::Error) -> String {
    let said = failure::full_message(error);
    let host = text.split_once("://").map(|(_, rest)| rest.split_once('@').map_or(rest, |(_, after)| after));
    let is_clear = host.is_some_and(|host| is_hosts_and_database(host.split('?').next().unwrap_or_default()));
    // A password parameter may contain an `&`: then the rest of it is taken for the name of an option.
    let is_name = |name: &str| name.len() < 40 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let is_clear = is_clear && !text.contains("password=") && said.split('`').nth(1).is_some_and(is_name);
    if said.contains("unknown option") && !is_clear {
        "it has an option that is not known".to_owned()
    } else if said.contains("unexpected character") {
        "there is no = where one is needed; put a value with a space in quotes: '…'".to_owned()
    } else {
        said
    }
}

/// Removes Redrive's own parameters, which the client library would refuse.
fn without_own(text: &str) -> Result<(String, Own), StoreError> {
    // A password may contain a question mark; like the client library, this takes the first `@` for its end.
    let host = text.find('@').map_or(0, |at| at + 1);
    let mut own = Own::default();
    let Some(question_mark) = text[host..].find('?').filter(|_| text.contains("://")) else {
        return Ok((text.to_owned(), own));
    };
    let (base, parameters) = text.split_at(host + question_mark);
    let mut others = Vec::new();
    for parameter in parameters[1..].split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match own.parameter(name) {
            Some(_) if value.contains('=') => {
                return Err(StoreError::Address {
                    why: "there is no & between two of its parameters".into(),
                });
            }
            // The certificate and its host name are always verified, so the two modes are the same.
            None if parameter == "sslmode=verify-full" => others.push("sslmode=require"),
            None => others.push(parameter),
            Some(setting) if setting.is_none() => {
                *setting = Some(percent_decode_str(value).decode_utf8_lossy().into_owned());
            }
            Some(_) => return Err(StoreError::Address { why: format!("it has two values for {name}") }),
        }
    }
    if own.poll_only.as_deref().is_some_and(|wanted| wanted != "true" && wanted != "false") {
        return Err(StoreError::Address { why: "poll_only is true or false".into() });
    }
    let others = others.join("&");
    let rest = if others.is_empty() { base.to_owned() } else { format!("{base}?{others}") };
    Ok((rest, own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::Location;
    use proptest::prelude::*;

    fn schema(name: &str) -> Own {
        Own { schema: Some(name.into()), ..Own::default() }
    }

    #[test]
    fn own_parameters_are_removed_from_the_address() {
        let secured = Own { sslrootcert: Some("/etc/my ca.pem".into()), ..schema("a") };
        let poll_only = Own { poll_only: Some("true".into()), ..Own::default() };
        for (text, rest, own) in [
            ("postgres://h/d", "postgres://h/d", Own::default()),
            ("postgres://h/d?schema=a", "postgres://h/d", schema("a")),
            ("postgres://h/d?sslmode=disable&schema=a", "postgres://h/d?sslmode=disable", schema("a")),
            ("postgres://h/d?schema=a&connect_timeout=3", "postgres://h/d?connect_timeout=3", schema("a")),
            ("postgres://u:a?schema=b@h/d", "postgres://u:a?schema=b@h/d", Own::default()),
            ("postgres://u:a?b@h/d?schema=c", "postgres://u:a?b@h/d", schema("c")),
            ("postgres://h/d?schema=", "postgres://h/d", schema("")),
            ("postgres://h/d?sslrootcert=/etc/my%20ca.pem&schema=a", "postgres://h/d", secured),
            ("postgres://h/d?poll_only=true", "postgres://h/d", poll_only),
            ("postgres://h/d?sslmode=verify-full", "postgres://h/d?sslmode=require", Own::default()),
            ("host=h dbname=d", "host=h dbname=d", Own::default()),
        ] {
            assert_eq!(without_own(text).unwrap(), (rest.to_owned(), own), "{text}");
        }
    }

    #[test]
    fn the_address_overrides_the_options() {
        let options = PostgresOptions { schema: "b".into(), poll_only: true, ..PostgresOptions::default() };
        let address: Address = "postgres://h/d?schema=a&sslrootcert=ca.pem&poll_only=false".parse().unwrap();
        let (_, with) = address.with(options.clone());
        assert_eq!((with.schema.as_str(), with.poll_only), ("a", false));
        assert_eq!(with.ca_certificate, Some("ca.pem".into()));
        let (_, with) = "postgres://h/d".parse::<Address>().unwrap().with(options);
        assert_eq!((with.schema.as_str(), with.poll_only, with.ca_certificate), ("b", true, None));
    }

    #[test]
    fn contradictory_and_unknown_parameters_are_refused() {
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

    /// Each address has the password `s3cret` or `s3@cret`, and one mistake.
    #[test]
    fn errors_of_misspelt_addresses_do_not_show_the_password() {
        for (text, why) in [
            ("postgre://anna:s3cret@host/shop?sslmode=disable", "does not begin with postgres://"),
            ("Postgres://anna:s3cret@host/shop", "does not begin with postgres://"),
            ("postgres:anna:s3cret@host/shop?sslmode=disable", "does not begin with postgres://"),
            ("postgres://anna:s3@cret@host/shop", "written %40"),
            ("postgres://host:5432/shop?password=s3@cret", "written %40"),
            ("postgres://anna:x?s3cret=%40host/shop", "`port`"),
            ("postgres://host/shop?schema=a;password=s3cret", "no & between"),
            ("password=my s3cret host=h", "no = where one is needed"),
            ("postgres://host/shop?password=my&s3cret=x", "an option that is not known"),
            ("host=h password=my s3cret=x", "an option that is not known"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            assert!(!error.contains("s3") && !error.contains("cret"), "{error}");
        }
    }

    /// A letter that occurs only in passwords.
    const SECRET: char = 'þ';

    fn password() -> impl Strategy<Value = String> {
        proptest::collection::vec(
            prop_oneof![3 => Just(SECRET), 2 => proptest::sample::select("@:/?#%&=;[] '\\".chars().collect::<Vec<_>>())],
            1..12,
        )
        .prop_map(|chars| chars.into_iter().chain([SECRET]).collect())
    }

    const FORMS: [&str; 7] = [
        "postgres://anna:{}@host/shop",
        "postgresql://anna:{}@host:5432,other/shop?schema=billing",
        "postgres://anna:{}@[::1]:5432/shop?sslmode=require&schema=billing&connect_timeout=3",
        "postgres://host/shop?password={}",
        "postgres://host:5432/shop?schema=billing&user=anna&password={}&application_name=x",
        "host=host user=anna password={} dbname=shop",
        "host=host user=anna password='{}' dbname=shop",
    ];

    /// Makes an address with a password and one character outside of it changed, removed or doubled. The separator before the
    /// password stays. Also returns whether the address is a URL.
    fn misspelt() -> impl Strategy<Value = (bool, String)> {
        let place = any::<proptest::sample::Index>();
        (proptest::sample::select(FORMS.to_vec()), password(), place, any::<char>(), 0u8..4).prop_map(
            |(form, password, place, other, how)| {
                let (before, after) = form.split_once("{}").unwrap();
                let (before, sign) = before.split_at(before.rfind([':', '=']).unwrap());
                let mut chars: Vec<char> = before.chars().chain(after.chars()).collect();
                let (place, mut middle) = (place.index(chars.len()), before.chars().count());
                match how {
                    // A password with an `@` is a mistake by itself; with a second one it cannot be told from a valid address.
                    _ if password.contains('@') => {}
                    0 if other != SECRET => chars[place] = other,
                    1 => {
                        chars.remove(place);
                        middle -= usize::from(place < middle);
                    }
                    2 => {
                        chars.insert(place, chars[place]);
                        middle += usize::from(place < middle);
                    }
                    _ => {}
                }
                chars.splice(middle..middle, sign.chars().chain(password.chars()));
                (form.starts_with("postgres"), chars.into_iter().collect())
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_error_shows_a_part_of_a_password((is_url, text) in misspelt()) {
            match text.parse::<Address>() {
                Ok(address) => prop_assert!(!format!("{:?}", address.config.get_hosts()).contains(SECRET), "{text}"),
                Err(error) => {
                    let error = error.to_string();
                    prop_assert!(!error.contains(SECRET), "{text}: {error}");
                    prop_assert!(error.contains("write postgres://user:password@host:5432/database"), "{error}");
                    prop_assert!(error.len() < 500, "{error}");
                }
            }
            let location = Location::of(&text);
            if is_url {
                prop_assert!(!format!("{location} {location:?}").contains(SECRET), "{text}: {location}");
            }
        }

        #[test]
        fn any_text_is_an_address_or_an_error_with_the_format(text in prop_oneof![
            ".{0,60}",
            "(postgres|postgresql|mysql)(:|:/|://).{0,40}",
            "postgres://[a-z:@/?&=%]{0,40}",
            "([a-z]{1,8}=[a-z0-9' ]{0,8} ?){0,5}",
        ]) {
            match text.parse::<Address>() {
                Ok(_) => {}
                Err(error) => {
                    let error = error.to_string();
                    prop_assert!(error.contains("write postgres://user:password@host:5432/database"), "{error}");
                    prop_assert!(error.len() < 500, "{error}");
                }
            }
        }

        #[test]
        fn percent_encoded_passwords_are_read_back_unchanged(user in "[a-z@:/?]{1,8}", password in prop_oneof![password(), ".{1,20}"], schema in "[a-z][a-z0-9_]{0,9}") {
            let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
            let text = format!("postgres://{}:{}@host:5433/shop?schema={schema}", encoded(&user), encoded(&password));
            let address: Address = text.parse().unwrap();
            prop_assert_eq!(address.config.get_user(), Some(user.as_str()));
            prop_assert_eq!(address.config.get_password(), Some(password.as_bytes()));
            prop_assert_eq!(address.config.get_dbname(), Some("shop"));
            prop_assert_eq!(address.config.get_ports(), [5433]);
            prop_assert_eq!(address.own.schema, Some(schema.clone()));
            prop_assert_eq!(Location::of(&text), Location::Postgres(text.clone()));
            let shown = Location::of(&text).to_string();
            prop_assert_eq!(shown, format!("postgres://{}@host:5433/shop?schema={schema}", encoded(&user)));
        }
    }
}
