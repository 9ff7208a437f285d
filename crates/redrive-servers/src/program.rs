//! Where a program is found, and how it gets there.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::missing::Missing;

/// A program that tests need beside the Rust toolchain.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// The server `postgres` with its tools in the same folder.
    Postgres,
    /// Shares few connections of a server among many who want one.
    PgBouncer,
    /// Injects faults into system calls.
    Strace,
}

impl Program {
    /// All of them.
    pub const ALL: [Program; 3] = [Program::Postgres, Program::PgBouncer, Program::Strace];

    /// How it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Program::Postgres => "postgres",
            Program::PgBouncer => "pgbouncer",
            Program::Strace => "strace",
        }
    }

    /// The variable that names the program's file, to use another one than would be found.
    pub fn variable(self) -> &'static str {
        match self {
            Program::Postgres => "REDRIVE_POSTGRES_PROGRAM",
            Program::PgBouncer => "REDRIVE_PGBOUNCER_PROGRAM",
            Program::Strace => "REDRIVE_STRACE_PROGRAM",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Program::Postgres => "postgresql",
            Program::PgBouncer => "pgbouncer",
            Program::Strace => "strace",
        }
    }

    /// Where it is.
    pub fn find(self) -> Result<PathBuf, Missing> {
        let named = std::env::var_os(self.variable()).map(PathBuf::from);
        let on_path = || {
            std::env::split_paths(&std::env::var_os("PATH")?)
                .map(|dir| dir.join(self.name()))
                .find(|file| file.is_file())
        };
        named.or_else(on_path).or_else(|| self.elsewhere()).ok_or(Missing::Program {
            program: self.name(),
            package: self.package(),
            variable: self.variable(),
        })
    }

    /// Debian keeps the server of each version in a folder of its own, beside the path, and the pooler where only root looks.
    fn elsewhere(self) -> Option<PathBuf> {
        if self != Program::Postgres {
            return Some(Path::new("/usr/sbin").join(self.name())).filter(|file| file.is_file());
        }
        let version = |folder: &PathBuf| folder.file_name()?.to_str()?.parse::<u32>().ok();
        let folders = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path());
        let newest = folders.filter(|folder| version(folder).is_some()).max_by_key(version)?;
        Some(newest.join("bin/postgres")).filter(|file| file.is_file())
    }
}

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
            apt(program.package(), &["install", "-q", "-y", "--no-install-recommends", program.package()])?;
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

/// Whether this process may do anything. Asked of the system's own tool: there is no other way without unsafe code.
pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
