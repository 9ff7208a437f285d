//! Services that start while their database is away, or its disk is full.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use redrive_servers::{Postgres, RabbitMq};

use crate::world::TestDatabase;

/// A service that starts; killed on drop.
struct Starting {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    /// Folder in which it runs.
    _folder: TestDatabase,
}

impl Starting {
    fn new(arguments: &[&str], db: &str) -> Self {
        let folder = TestDatabase::sqlite();
        let mut command = folder.command(arguments);
        command.env("REDRIVE_DB", db).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Starting { child, log, _folder: folder }
    }

    /// The next log line with this text.
    fn says(&mut self, text: &str) -> String {
        let mut log = String::new();
        for line in self.log.by_ref().map(Result::unwrap) {
            if line.contains(text) {
                return line;
            }
            log.push_str(&line);
        }
        panic!("it ended and did not say {text:?}: {log}");
    }

    fn listens(&mut self) {
        let mut line = String::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("listens on http://"), "{line}");
    }

    fn terminate(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

fn services(broker: &str) -> [Vec<String>; 2] {
    [
        ["serve", "--listen", "127.0.0.1:0"].map(str::to_owned).to_vec(),
        ["scheduler", "--http-port", "0", "--rabbitmq-url", broker].map(str::to_owned).to_vec(),
    ]
}

#[test]
fn services_wait_for_a_database_that_is_away_and_say_so() {
    let postgres = Postgres::start().unwrap_or_else(|missing| panic!("{missing}"));
    let broker = RabbitMq::shared_url().unwrap_or_else(|missing| panic!("{missing}"));
    for service in services(&broker) {
        let arguments: Vec<_> = service.iter().map(String::as_str).collect();
        postgres.crash().unwrap();
        let mut starting = Starting::new(&arguments, &postgres.url());
        let said = starting.says("the database is not available: waiting for it");
        assert!(said.contains("cannot be reached") && said.contains("127.0.0.1"), "{said}");
        postgres.resume().unwrap();
        starting.says("the database is available");
        starting.listens();
        assert_eq!(starting.terminate(), Some(0));
    }
    let away = "postgres://anna:s3cret@127.0.0.1:1/shop";
    let mut starting = Starting::new(&["serve", "--listen", "127.0.0.1:0"], away);
    let said = starting.says("waiting for it");
    assert!(said.contains("127.0.0.1") && !said.contains("s3cret"), "{said}");
    assert_eq!(starting.terminate(), Some(0), "a signal ends the wait");
}

/// Small file system in memory; unmounted on drop.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(folder.path()).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then_some(Disk(folder))
    }

    /// Fills the disk with a file.
    fn fill(&self, path: &Path) {
        let mut file = std::fs::File::create(path).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn services_wait_for_space_on_a_full_disk_and_say_so() {
    let Some(disk) = Disk::mount() else {
        // Only root may mount.
        return;
    };
    let broker = RabbitMq::shared_url().unwrap_or_else(|missing| panic!("{missing}"));
    for service in services(&broker) {
        let arguments: Vec<_> = service.iter().map(String::as_str).collect();
        let db = disk.0.path().join(format!("{}.db", service[0]));
        let ballast = disk.0.path().join("ballast");
        disk.fill(&ballast);
        let mut starting = Starting::new(&arguments, &db.display().to_string());
        let said = starting.says("the database is not available: waiting for it");
        assert!(said.contains("space"), "{said}");
        std::fs::remove_file(&ballast).unwrap();
        starting.says("the database is available");
        starting.listens();
        assert_eq!(starting.terminate(), Some(0));
    }
}
