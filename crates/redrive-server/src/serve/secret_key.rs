//! The key that seals what is secret: from outside the database.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use redrive_webhook::Vault;

use crate::database::Database;
use crate::failure::Failure;

/// Where the key comes from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Secrets")]
pub(crate) struct SecretKeyArgs {
    /// The file with the key that seals the secrets of endpoints: 32 bytes in base64. Further lines are older keys, which still open.
    /// Made if it is not there [default: the database's name and .key, or redrive.key for a server]
    #[arg(long, value_name = "PATH", env = "REDRIVE_SECRET_KEY_FILE", global = true)]
    secret_key_file: Option<PathBuf>,
    /// The key itself, or several with commas between them, the newest first; from the environment only
    #[arg(long, env = "REDRIVE_SECRET_KEY", hide_env_values = true, hide = true, global = true)]
    secret_key: Option<String>,
}

impl SecretKeyArgs {
    /// Where the key would be, if it is not there.
    pub(crate) fn missing(&self, db: &Database) -> Option<PathBuf> {
        let path = self.secret_key_file.clone().unwrap_or_else(|| beside(db));
        (self.secret_key.is_none() && !path.exists()).then_some(path)
    }

    pub(crate) fn vault(&self, db: &Database) -> Result<Vault, Failure> {
        if let Some(keys) = &self.secret_key {
            let keys = keys.split(',').map(str::trim).filter(|key| !key.is_empty());
            return Vault::new(keys).map_err(|error| Failure::Failed(format!("REDRIVE_SECRET_KEY: {error}")));
        }
        let path = self.secret_key_file.clone().unwrap_or_else(|| beside(db));
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => make(&path, db)?,
            Err(error) => {
                return Err(Failure::Failed(format!("cannot read the key {}: {error}", path.display())));
            }
        };
        let keys = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Vault::new(keys).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
    }
}

/// Where a key is by itself.
fn beside(db: &Database) -> PathBuf {
    match db.path() {
        Some(path) => {
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(".key");
            path.with_file_name(name)
        }
        None => PathBuf::from("redrive.key"),
    }
}

/// Makes a key that only this user can read.
fn make(path: &Path, db: &Database) -> Result<String, Failure> {
    let failed = |error| Failure::Failed(format!("cannot make the key {}: {error}", path.display()));
    let key = format!("{}\n", Vault::generate_key());
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(mut file) => {
            file.write_all(key.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
            tracing::warn!(
                target: "redrive::serve",
                path = %path.display(),
                "made a key for the secrets of endpoints: keep a copy, without it they cannot be opened"
            );
            if db.address().is_some() {
                tracing::warn!(target: "redrive::serve", "every process that shares the database needs the same key");
            }
            Ok(key)
        }
        // Another process was faster.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            std::fs::read_to_string(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}
