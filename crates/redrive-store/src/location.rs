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

/// Without the password, so that it can be shown to anybody.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Sqlite(path) => path.display().fmt(f),
            Location::Postgres(address) => {
                let (scheme, rest) = address.split_once("://").unwrap_or(("postgres", address));
                // Passwords stand before the last `@` of the host's part, or among the parameters.
                let rest = rest.split('?').next().unwrap_or_default();
                match rest.rsplit_once('@') {
                    Some((user, place)) => {
                        let user = user.split(':').next().unwrap_or_default();
                        write!(f, "{scheme}://{user}@{place}")
                    }
                    None => write!(f, "{scheme}://{rest}"),
                }
            }
        }
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
        ] {
            let location = Location::of(address);
            assert_eq!(location.to_string(), shown);
            assert_eq!(format!("{location:?}"), format!("Location({shown})"));
        }
    }
}
