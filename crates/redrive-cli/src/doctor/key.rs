//! Checks the key file that opens the secrets of endpoints.

use std::path::Path;

use super::finding::Finding;

/// Checks the key file; `endpoints` is the number of endpoints whose secrets need it.
pub(super) fn check(file: Option<&Path>, endpoints: usize, is_file_database: bool) -> Finding {
    let Some(path) = file else { return Finding::ok("key", "in REDRIVE_SECRET_KEY") };
    let name = path.display();
    match std::fs::metadata(path) {
        Ok(found) => permissions(path, &found),
        Err(_) if endpoints == 0 => Finding::ok("key", format!("none at {name}, and no endpoint needs one")),
        Err(error) => {
            let found = format!("{name} cannot be read ({error}), and endpoint secrets are sealed with it");
            let advice = "restore it, or name it with --secret-key-file or REDRIVE_SECRET_KEY";
            // Every server process has its own copy; this machine may be none of them.
            if is_file_database {
                Finding::fail("key", found, advice)
            } else {
                Finding::warn("key", found, advice)
            }
        }
    }
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
