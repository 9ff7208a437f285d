//! The location of a store: a SQLite file or a PostgreSQL server.

use std::fmt;
use std::path::{Path, PathBuf};

/// The location of a store, parsed from text.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// `redrive.db`, `sqlite:redrive.db`, `:memory:`.
    Sqlite(PathBuf),
    /// `postgres://user:password@host:5432/database`.
    Postgres(String),
}

impl Location {
    /// Parses text: an address of a server, or else the path of a file.
    ///
    /// A misspelt address still counts as an address: as a path it would be displayed with its password.
    pub fn of(text: impl AsRef<Path>) -> Self {
        let path = text.as_ref();
        match path.to_str() {
            Some(text) if is_address(text) => Location::Postgres(text.to_owned()),
            Some(text) => Location::Sqlite(text.strip_prefix("sqlite:").unwrap_or(text).into()),
            None => Location::Sqlite(path.to_owned()),
        }
    }
}

fn is_address(text: &str) -> bool {
    let text = text.trim_start().to_ascii_lowercase();
    if text.starts_with("postgres:") || text.starts_with("postgresql:") {
        return true;
    }
    let may_have_password = text.contains('@') || text.contains("password=");
    // An address without its scheme, or in the form `host=… password=…`.
    let is_user_and_password = text.split_once('@').is_some_and(|(before, _)| before.contains(':'));
    let is_path = text.starts_with(['/', '.']) && !text.starts_with("//");
    if !text.contains("://") && !is_path && (is_user_and_password || text.contains("password=")) {
        return !text.starts_with("sqlite:") && !text.starts_with("file:");
    }
    if text.starts_with("postgres") && text.contains("//") {
        return may_have_password;
    }
    // Another server, or a misspelt address. `sqlite:` and `file:` are addresses of files.
    text.split_once("://").is_some_and(|(scheme, _)| {
        let is_scheme = !scheme.is_empty() && !scheme.contains(['/', '\\']);
        !matches!(scheme, "sqlite" | "file") && (is_scheme || may_have_password)
    })
}

/// Returns whether the text has only hosts, ports and a database name, and no password whose `@` or `?` is missing.
pub(crate) fn is_hosts_and_database(text: &str) -> bool {
    let (hosts, database) = text.split_once('/').unwrap_or((text, ""));
    let is_host = |host: &str| {
        // An IPv6 address contains colons.
        let after = host.strip_prefix('[').and_then(|host| host.split_once(']')).map(|(_, port)| port);
        match after.unwrap_or(host).split_once(':') {
            Some((name, port)) => {
                (after.is_none() || name.is_empty()) && port.bytes().all(|b| b.is_ascii_digit())
            }
            None => after.is_none_or(str::is_empty),
        }
    };
    hosts.split(',').all(is_host)
        && !database.contains([':', '/'])
        && !text.contains(|c: char| c.is_whitespace() || c.is_control() || "@&=;?".contains(c))
}

/// The parameters that are displayed. None of them is a secret.
const DISPLAYED_PARAMETERS: [&str; 4] = ["schema", "sslmode", "sslrootcert", "poll_only"];

/// Displays the location without its password.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = match self {
            Location::Sqlite(path) => return path.display().fmt(f),
            Location::Postgres(address) => address,
        };
        let Some((scheme @ ("postgres" | "postgresql"), rest)) = address.split_once("://") else {
            return f.write_str("postgres://…");
        };
        // A password is before the last `@`, or among the parameters. If that is not clear, nothing is displayed.
        let (user, rest) = match rest.rsplit_once('@') {
            Some((before, _)) if before.contains('?') || before.contains("password=") => {
                return write!(f, "{scheme}://…");
            }
            Some((before, rest)) => (before.split([':', '/']).next(), rest),
            None => (None, rest),
        };
        let (server, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        if !is_hosts_and_database(server) {
            return write!(f, "{scheme}://…");
        }
        write!(f, "{scheme}://")?;
        if let Some(user) = user {
            write!(f, "{user}@")?;
        }
        write!(f, "{server}")?;
        let is_shown = |parameter: &&str| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./%".contains(&b);
            DISPLAYED_PARAMETERS.contains(&name) && value.bytes().all(is_plain)
        };
        for (index, parameter) in parameters.split('&').filter(is_shown).enumerate() {
            write!(f, "{}{parameter}", if index == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_servers_are_distinguished() {
        assert_eq!(Location::of("redrive.db"), Location::Sqlite("redrive.db".into()));
        assert_eq!(Location::of("sqlite:a/b.db"), Location::Sqlite("a/b.db".into()));
        assert_eq!(Location::of(":memory:"), Location::Sqlite(":memory:".into()));
        for address in ["postgres://h/d", "postgresql://u@h:1/d"] {
            assert_eq!(Location::of(address), Location::Postgres(address.into()));
        }
        assert_eq!(Location::of("/data/a:b@c.db"), Location::Sqlite("/data/a:b@c.db".into()));
        for misspelt in [
            "Postgres://u:p@h/d",
            " postgres://u:p@h/d",
            "postgre://u:p@h/d",
            "postgres:u:p@h/d",
            "u:p@h/d",
            "//u:p@h/d",
            "postgresu:p@h/d",
            "host=h password=p",
        ] {
            assert_eq!(Location::of(misspelt), Location::Postgres(misspelt.into()));
            assert_eq!(Location::of(misspelt).to_string(), "postgres://…");
        }
    }

    #[test]
    fn a_password_is_never_displayed() {
        for (address, shown) in [
            ("postgres://anna:s3cret@host:5432/shop", "postgres://anna@host:5432/shop"),
            ("postgres://anna:s3@cret@host/shop", "postgres://anna@host/shop"),
            ("postgres://host/shop?password=s3cret", "postgres://host/shop"),
            ("postgres://host/shop", "postgres://host/shop"),
            ("postgres://anna:s?cret@host/shop", "postgres://…"),
            ("postgres://host/shop?password=s3@cret", "postgres://…"),
            ("postgres://anna:s3cret", "postgres://…"),
            ("postgres://anna:s3cret%40host/shop", "postgres://…"),
            ("postgres://host/shop&password=s3cret", "postgres://…"),
            ("postgres://host/shop?schema=a;password=s3cret", "postgres://host/shop"),
            ("postgres:/anna:s3://cret@host/shop", "postgres://…"),
            (
                "postgres://anna:s3cret@[::1]:5432,other:5433/shop",
                "postgres://anna@[::1]:5432,other:5433/shop",
            ),
            ("postgres://%2Fvar%2Frun/shop", "postgres://%2Fvar%2Frun/shop"),
            (
                "postgres://anna:s3cret@host/shop?sslmode=require&password=s3cret&schema=billing",
                "postgres://anna@host/shop?sslmode=require&schema=billing",
            ),
        ] {
            let location = Location::of(address);
            assert_eq!(location.to_string(), shown);
            assert_eq!(format!("{location:?}"), format!("Location({shown})"));
        }
    }
}
