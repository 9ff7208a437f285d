//! Checks the key that opens the secrets of endpoints.

use std::path::Path;

use super::finding::Finding;
use crate::failure::Failure;
use crate::format;

const ADVICE: &str = "restore it, or name another with --secret-key-file or REDRIVE_SECRET_KEY";

/// Checks the key of a database on this machine; `sealed` is the number of endpoints that it does not open.
pub(super) fn check(file: Option<&Path>, sealed: u64, is_file_database: bool) -> Finding {
    let Some(path) = file else { return Finding::ok("key", "in REDRIVE_SECRET_KEY") };
    let name = path.display();
    match std::fs::metadata(path) {
        Ok(found) => permissions(path, &found),
        Err(_) if sealed == 0 => Finding::ok("key", format!("none at {name}, and no endpoint needs one")),
        Err(error) => {
            let found = format!("{name} cannot be read ({error}), and endpoint secrets are sealed with it");
            // Every server process has its own copy; this machine may be none of them.
            if is_file_database {
                Finding::fail("key", found, ADVICE)
            } else {
                Finding::warn("key", found, ADVICE)
            }
        }
    }
}

/// The finding of a key that exists and cannot be used.
pub(super) fn unusable(failure: Failure) -> Finding {
    Finding::fail("key", failure.into_message(), ADVICE)
}

/// Checks the key of a server; `sealed` is the number of endpoints that it does not open.
pub(super) fn of_server(sealed: u64) -> Finding {
    if sealed == 0 {
        return Finding::ok("key", "the server opens the secrets of every endpoint");
    }
    let found = format!("the server does not open the secrets of {}", format::counted(sealed, "endpoint"));
    Finding::fail("key", found, "start it with their key: --secret-key-file or REDRIVE_SECRET_KEY")
}

#[cfg(unix)]
fn permissions(path: &Path, found: &std::fs::Metadata) -> Finding {
    use std::os::unix::fs::PermissionsExt as _;
    let (name, mode) = (path.display(), found.permissions().mode() & 0o777);
    if mode & 0o077 == 0 {
        return Finding::ok("key", format!("{name}, readable by its owner only"));
    }
    Finding::warn(
        "key",
        format!("{name} can be read by other users (mode {mode:03o})"),
        format!("chmod 600 {name}"),
    )
}

#[cfg(not(unix))]
fn permissions(path: &Path, _: &std::fs::Metadata) -> Finding {
    Finding::ok("key", path.display().to_string())
}
