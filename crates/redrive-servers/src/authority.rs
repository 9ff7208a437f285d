//! Certificate authority for tests of TLS.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Certificate authority that makes keys and certificates with the `openssl` command, which every machine with a PostgreSQL
/// server has.
#[derive(Debug)]
pub struct Authority {
    folder: TempDir,
}

impl Authority {
    /// Creates an authority that no machine trusts.
    pub fn new() -> io::Result<Self> {
        let authority = Authority { folder: tempfile::tempdir()? };
        authority.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=authority
             -addext basicConstraints=critical,CA:TRUE -keyout ca.key -out ca.pem",
        )?;
        Ok(authority)
    }

    /// The PEM file of its own certificate. A client that trusts it trusts every certificate that the authority signs.
    pub fn certificate(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Makes a key and a signed certificate for a server on this machine, as PEM files.
    pub fn sign(&self) -> io::Result<(PathBuf, PathBuf)> {
        std::fs::write(self.path("names"), "subjectAltName=IP:127.0.0.1,DNS:localhost\n")?;
        self.openssl(
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost
             -keyout server.key -out server.csr",
        )?;
        self.openssl(
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem",
        )?;
        Ok((self.path("server.key"), self.path("server.pem")))
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    fn openssl(&self, arguments: &str) -> io::Result<()> {
        let output = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(self.folder.path())
            .output()
            .map_err(|error| io::Error::other(format!("openssl cannot be run ({error}): install it")))?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}
