//! Installs missing programs with the package manager, if the process runs as root.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use crate::missing::Missing;
use crate::program::{Program, is_root};

/// The script that Debian runs before it starts a service; exit status 101 forbids it.
const SERVICE_RULES: &str = "/usr/sbin/policy-rc.d";

/// Finds every program, and installs missing ones with the package manager if the process runs as root. Reports each step to
/// `say`.
pub fn install(programs: &[Program], say: &mut dyn FnMut(&str)) -> Result<(), Missing> {
    let mut is_updated = false;
    for program in programs {
        if program.find().is_err() {
            if !is_root() || !Path::new("/usr/bin/apt-get").exists() {
                return program.find().map(drop);
            }
            say(&format!("installing {}", program.package()));
            if !is_updated {
                apt(program.package(), &["update", "-q"])?;
                is_updated = true;
            }
            without_system_cluster();
            let no_services = NoServices::begin();
            apt(program.package(), &["install", "-q", "-y", "--no-install-recommends", program.package()])?;
            drop(no_services);
            disable_at_boot(program.package());
        }
        say(&format!("{}: {}", program.name(), program.find()?.display()));
    }
    Ok(())
}

/// Keeps the PostgreSQL package from creating and starting a cluster, which tests do not need.
fn without_system_cluster() {
    let settings = Path::new("/etc/postgresql-common/createcluster.conf");
    if !settings.exists() {
        let made = std::fs::create_dir_all("/etc/postgresql-common");
        // A failure only leaves one more server running.
        let _ = made.and_then(|()| std::fs::write(settings, "create_main_cluster = false\n"));
    }
}

/// Keeps the package manager from starting services, until it is dropped.
struct NoServices;

impl NoServices {
    /// Returns `None` if the machine has its own script, as most containers do, or if it cannot be created.
    fn begin() -> Option<Self> {
        let mut rules =
            OpenOptions::new().write(true).create_new(true).mode(0o755).open(SERVICE_RULES).ok()?;
        rules.write_all(b"#!/bin/sh\nexit 101\n").ok()?;
        Some(NoServices)
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        // A script that cannot be removed is visible, and its content explains itself.
        let _ = std::fs::remove_file(SERVICE_RULES);
    }
}

/// Keeps the service from starting with the machine. Fails silently for packages without a service.
fn disable_at_boot(package: &str) {
    let _ = Command::new("systemctl").args(["disable", "--quiet", package]).output();
}

fn apt(package: &'static str, arguments: &[&str]) -> Result<(), Missing> {
    let failed = |why: String| Missing::Package { package, why };
    let output = Command::new("apt-get")
        .args(["-o", "Dpkg::Options::=--force-confold"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .map_err(|error| failed(error.to_string()))?;
    let message = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(failed(message.trim().to_owned())) }
}
