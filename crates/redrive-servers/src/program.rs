//! Programs that tests need, and where to find them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::missing::Missing;

/// A program that tests need beside the Rust toolchain.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// The server `postgres` with its tools in the same folder.
    Postgres,
    /// The connection pooler `pgbouncer`.
    PgBouncer,
    /// The broker `rabbitmq-server`, with `rabbitmqctl` in the same folder.
    RabbitMq,
    /// The broker `nats-server`.
    Nats,
    /// Injects faults into system calls.
    Strace,
}

impl Program {
    /// All programs.
    pub const ALL: [Program; 5] =
        [Program::Postgres, Program::PgBouncer, Program::RabbitMq, Program::Nats, Program::Strace];

    /// The name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Program::Postgres => "postgres",
            Program::PgBouncer => "pgbouncer",
            Program::RabbitMq => "rabbitmq-server",
            Program::Nats => "nats-server",
            Program::Strace => "strace",
        }
    }

    /// The environment variable that names the program's file and overrides the search.
    pub fn variable(self) -> &'static str {
        match self {
            Program::Postgres => "REDRIVE_POSTGRES_PROGRAM",
            Program::PgBouncer => "REDRIVE_PGBOUNCER_PROGRAM",
            Program::RabbitMq => "REDRIVE_RABBITMQ_PROGRAM",
            Program::Nats => "REDRIVE_NATS_PROGRAM",
            Program::Strace => "REDRIVE_STRACE_PROGRAM",
        }
    }

    pub(crate) fn package(self) -> &'static str {
        match self {
            Program::Postgres => "postgresql",
            Program::PgBouncer => "pgbouncer",
            Program::RabbitMq => "rabbitmq-server",
            Program::Nats => "nats-server",
            Program::Strace => "strace",
        }
    }

    /// Finds the program's file.
    pub fn find(self) -> Result<PathBuf, Missing> {
        let named = std::env::var_os(self.variable()).map(PathBuf::from);
        let on_path = || {
            std::env::split_paths(&std::env::var_os("PATH")?)
                .map(|dir| dir.join(self.name()))
                .find(|file| file.is_file())
        };
        named.or_else(|| self.before_path()).or_else(on_path).or_else(|| self.outside_path()).ok_or(
            Missing::Program { program: self.name(), package: self.package(), variable: self.variable() },
        )
    }

    /// RabbitMQ's own script: Debian's wrapper on the path runs only as its own user, and writes to the system's logs.
    fn before_path(self) -> Option<PathBuf> {
        let script = Path::new("/usr/lib/rabbitmq/bin").join(self.name());
        (self == Program::RabbitMq && script.is_file()).then_some(script)
    }

    /// Debian's folders outside the path: one for each PostgreSQL version, and `/usr/sbin` for other servers.
    fn outside_path(self) -> Option<PathBuf> {
        if self != Program::Postgres {
            return Some(Path::new("/usr/sbin").join(self.name())).filter(|file| file.is_file());
        }
        let version = |folder: &PathBuf| folder.file_name()?.to_str()?.parse::<u32>().ok();
        let folders = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path());
        let newest = folders.filter(|folder| version(folder).is_some()).max_by_key(version)?;
        Some(newest.join("bin/postgres")).filter(|file| file.is_file())
    }
}

/// Whether this process runs as root. Runs `id`, because the system call needs unsafe code.
pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
