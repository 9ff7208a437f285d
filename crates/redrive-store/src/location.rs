//! Where events are kept: a file, or a server.

use std::fmt;
use std::path::{Path, PathBuf};

/// A file or a server, by how it is written.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// `redrive.db`, `sqlite:redrive.db`, `:memory:`.
    Sqlite(PathBuf),
    /// `postgres://user:password@host:5432/database`.
    Postgres(String),
}

impl Location {
    /// What looks like the address of a server is one; everything else is a file.
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
    text.starts_with("postgres://") || text.starts_with("postgresql://")
}

/// Of the parameters, those that say where it is and how to get there. None of them is a secret.
const SHOWN: [&str; 4] = ["schema", "sslmode", "sslrootcert", "poll_only"];

/// Without the password, so that it can be shown to anybody, and copied.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = match self {
            Location::Sqlite(path) => return path.display().fmt(f),
            Location::Postgres(address) => address,
        };
        let (scheme, rest) = address.split_once("://").unwrap_or(("postgres", address));
        // Passwords stand before the last `@`, or among the parameters. Where that is not clear, nothing is shown.
        let (user, rest) = match rest.rsplit_once('@') {
            Some((before, _)) if before.contains('?') => return write!(f, "{scheme}://…"),
            Some((before, rest)) => (before.split([':', '/']).next(), rest),
            None => (None, rest),
        };
        let (place, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        write!(f, "{scheme}://")?;
        if let Some(user) = user {
            write!(f, "{user}@")?;
        }
        write!(f, "{place}")?;
        let is_shown = |parameter: &&str| SHOWN.contains(&parameter.split('=').next().unwrap_or_default());
        for (place, parameter) in parameters.split('&').filter(is_shown).enumerate() {
            write!(f, "{}{parameter}", if place == 0 { '?' } else { '&' })?;
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
    fn files_and_servers_are_told_apart() {
        assert_eq!(Location::of("redrive.db"), Location::Sqlite("redrive.db".into()));
        assert_eq!(Location::of("sqlite:a/b.db"), Location::Sqlite("a/b.db".into()));
        assert_eq!(Location::of(":memory:"), Location::Sqlite(":memory:".into()));
        for address in ["postgres://h/d", "postgresql://u@h:1/d"] {
            assert_eq!(Location::of(address), Location::Postgres(address.into()));
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        for (address, shown) in [
            ("postgres://anna:s3cret@host:5432/shop", "postgres://anna@host:5432/shop"),
            ("postgres://anna:s3@cret@host/shop", "postgres://anna@host/shop"),
            ("postgres://host/shop?password=s3cret", "postgres://host/shop"),
            ("postgres://host/shop", "postgres://host/shop"),
            ("postgres://anna:s?cret@host/shop", "postgres://…"),
            ("postgres://host/shop?password=s3@cret", "postgres://…"),
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
