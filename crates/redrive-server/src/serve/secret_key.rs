//! Loads, or creates, the key that encrypts endpoint secrets; the key is stored outside the database.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use redrive_webhook::Vault;

use crate::database::Database;
use crate::failure::Failure;

/// Flags that name the key.
#[derive(Debug, Args)]
#[command(next_help_heading = "Secrets")]
pub struct SecretKeyArgs {
    /// File with the key that encrypts endpoint secrets: 32 bytes in base64. Further lines are older keys, used for decryption only.
    /// Created if missing [default: the database file's name plus .key, or redrive.key for PostgreSQL]
    #[arg(long, value_name = "PATH", env = "REDRIVE_SECRET_KEY_FILE", global = true)]
    secret_key_file: Option<PathBuf>,
    /// The key itself, or several separated by commas, newest first; from the environment only
    #[arg(long, env = "REDRIVE_SECRET_KEY", hide_env_values = true, hide = true, global = true)]
    secret_key: Option<String>,
}

impl SecretKeyArgs {
    /// Path of the key file; `None` if the key itself is given.
    pub fn file(&self, db: &Database) -> Option<PathBuf> {
        let path = || self.secret_key_file.clone().unwrap_or_else(|| default_path(db));
        self.secret_key.is_none().then(path)
    }

    /// Path of the key file, if there is no key.
    pub fn missing(&self, db: &Database) -> Option<PathBuf> {
        self.file(db).filter(|path| !path.exists())
    }

    /// Fails if there is a key and it cannot be used; creates none.
    pub fn check(&self, db: &Database) -> Result<(), Failure> {
        match self.missing(db) {
            Some(_) => Ok(()),
            None => self.vault(db).map(drop),
        }
    }

    /// Copies the key file to where commands on the database file `copy` look for it, readable by this user only, and returns the
    /// path. Does not overwrite a file.
    pub fn copy_beside(&self, db: &Database, copy: &Path) -> Result<PathBuf, Failure> {
        let Some(path) = self.file(db) else {
            return Err(Failure::Failed(
                "the key is in REDRIVE_SECRET_KEY, not in a file: keep a copy of it yourself".to_owned(),
            ));
        };
        let key = std::fs::read(&path).map_err(|error| {
            Failure::Failed(format!(
                "cannot read the key {}: {error}; name it with --secret-key-file PATH",
                path.display()
            ))
        })?;
        let to = beside(copy);
        let written =
            new_private_file(&to).and_then(|mut file| file.write_all(&key).and_then(|()| file.sync_all()));
        written.map_err(|error| {
            Failure::Failed(format!("cannot write the key to {}: {error}; choose a new name", to.display()))
        })?;
        Ok(to)
    }

    pub(crate) fn vault(&self, db: &Database) -> Result<Vault, Failure> {
        if let Some(keys) = &self.secret_key {
            let keys = keys.split(',').map(str::trim).filter(|key| !key.is_empty());
            return Vault::new(keys).map_err(|error| Failure::Failed(format!("REDRIVE_SECRET_KEY: {error}")));
        }
        let path = self.secret_key_file.clone().unwrap_or_else(|| default_path(db));
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => {
                warn_if_others_can_read(&path);
                text
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => create(&path, db)?,
            Err(error) => {
                return Err(Failure::Failed(format!("cannot read the key {}: {error}", path.display())));
            }
        };
        let keys = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Vault::new(keys).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
    }
}

/// Logs a warning if other users of the machine can read the key.
fn warn_if_others_can_read(path: &Path) {
    #[cfg(unix)]
    if let Ok(found) = path.metadata() {
        let mode = std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o777;
        if mode & 0o077 != 0 {
            let (path, mode) = (path.display(), format!("{mode:03o}"));
            tracing::warn!(target: "redrive::serve", %path, mode, "other users can read the key of endpoint secrets: run chmod 600 on it");
        }
    }
    #[cfg(not(unix))]
    let _ = path;
}

/// Default path of the key file.
fn default_path(db: &Database) -> PathBuf {
    match db.path() {
        Some(path) => beside(path),
        None => PathBuf::from("redrive.key"),
    }
}

/// Path of the key of a database file.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".key");
    path.with_file_name(name)
}

/// Creates a file that only this user can read.
fn new_private_file(path: &Path) -> std::io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Creates a key file that only this user can read.
fn create(path: &Path, db: &Database) -> Result<String, Failure> {
    let failed = |error| Failure::Failed(format!("cannot create the key {}: {error}", path.display()));
    let key = format!("{}\n", Vault::generate_key());
    match new_private_file(path) {
        Ok(mut file) => {
            file.write_all(key.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
            tracing::warn!(
                target: "redrive::serve",
                path = %path.display(),
                "created a key for endpoint secrets: keep a copy, they cannot be decrypted without it"
            );
            if db.address().is_some() {
                tracing::warn!(target: "redrive::serve", "every process that shares the database needs the same key");
            }
            Ok(key)
        }
        // Another process created it first.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            std::fs::read_to_string(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}
