//! Installs what is missing, where that is allowed.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use crate::missing::Missing;
use crate::program::{Program, is_root};

/// What Debian asks before it starts a service; 101 says no.
const SERVICE_RULES: &str = "/usr/sbin/policy-rc.d";

/// Finds every program, and installs what is missing by the package manager if that is allowed. Says what it does.
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
            let quiet = NoServices::begin();
            apt(program.package(), &["install", "-q", "-y", "--no-install-recommends", program.package()])?;
            drop(quiet);
            not_at_boot(program.package());
        }
        say(&format!("{}: {}", program.name(), program.find()?.display()));
    }
    Ok(())
}

/// The package makes and starts a server of its own unless it is told not to; nobody wants that for some tests.
fn without_system_cluster() {
    let settings = Path::new("/etc/postgresql-common/createcluster.conf");
    if !settings.exists() {
        let made = std::fs::create_dir_all("/etc/postgresql-common");
        // If that fails there is one more server, and nothing else.
        let _ = made.and_then(|()| std::fs::write(settings, "create_main_cluster = false\n"));
    }
}

/// Programs are wanted here, not services: while this lives, the package manager starts none.
struct NoServices;

impl NoServices {
    /// `None` if the machine has rules of its own, as most containers do, or if they cannot be made.
    fn begin() -> Option<Self> {
        let mut rules =
            OpenOptions::new().write(true).create_new(true).mode(0o755).open(SERVICE_RULES).ok()?;
        rules.write_all(b"#!/bin/sh\nexit 101\n").ok()?;
        Some(NoServices)
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        // If it stays, it says itself what it does.
        let _ = std::fs::remove_file(SERVICE_RULES);
    }
}

/// Nor is one wanted when the machine starts again. Packages without a service have nothing that could be disabled.
fn not_at_boot(package: &str) {
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
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(failed(said.trim().to_owned())) }
}
