//! `redrive backup` and `redrive migrate` name the key of endpoint secrets, and a restored backup serves with it.

use redrive_servers::Schema;
use serde_json::Value;

use super::receiver::Receiver;
use super::world::{World, until};

#[test]
fn a_restored_backup_with_its_key_serves_and_signs_as_before() {
    let receiver = Receiver::start(204);
    let world = World::on_file();
    let endpoint = world.json(&["endpoints", "add", &receiver.url(), "--pattern", "order.*"]);
    let id = endpoint["id"].as_str().unwrap();
    let said = world.text(&["backup", "plain.db"]);
    assert!(said.contains("sealed with the key redrive.db.key") && said.contains("--with-key"), "{said}");
    let report = world.json(&["backup", "copy.db", "--with-key"]);
    assert_eq!(
        (report["key"].as_str(), report["key_copy"].as_str()),
        (Some("redrive.db.key"), Some("copy.db.key"))
    );

    let mut restored = World::on_file();
    for name in ["copy.db", "copy.db.key"] {
        let to = name.replace("copy", "redrive");
        std::fs::copy(world.folder.path().join(name), restored.folder.path().join(to)).unwrap();
    }
    restored.serve(&["--allow-range", "127.0.0.0/8"]);
    let event = restored.publish("order.created", "1");
    let got = until("the message was received", || receiver.requests().pop());
    assert_eq!(got.header("webhook-id"), Some(event.as_str()));
    assert_eq!(restored.json(&["endpoints", "show", id])["id"], id);
}

#[test]
#[cfg(unix)]
fn a_copied_key_is_private_and_overwrites_nothing() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::on_file();
    world.json(&["endpoints", "add", "http://127.0.0.1:9/", "--pattern", "*"]);
    world.text(&["backup", "copy.db", "--with-key"]);
    let path = |name: &str| world.folder.path().join(name);
    let mode = std::fs::metadata(path("copy.db.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(path("other.db.key"), "mine").unwrap();
    let said = world.refused(1, &["backup", "other.db", "--with-key"]);
    assert!(said.contains("other.db.key") && said.contains("choose a new name"), "{said}");
    assert_eq!(std::fs::read_to_string(path("other.db.key")).unwrap(), "mine");
    std::fs::remove_file(path("redrive.db.key")).unwrap();
    let said = world.refused(1, &["backup", "third.db", "--with-key"]);
    assert!(said.contains("redrive.db.key") && said.contains("--secret-key-file"), "{said}");
}

#[test]
fn a_migration_names_the_key_of_the_copied_secrets() {
    let world = World::on_file();
    world.json(&["endpoints", "add", "http://127.0.0.1:9/", "--pattern", "*"]);
    let schema = Schema::new().unwrap_or_else(|missing| panic!("{missing}"));
    let address = schema.address();
    let migrate = ["migrate", "--from", "redrive.db", "--to", &address];
    let text = world.text(&migrate);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("sealed with the key redrive.db.key") && words.contains("--secret-key-file"),
        "{text}"
    );
    let report: Value = world.json(&[&migrate[..], &["--dry-run"]].concat());
    assert_eq!(report["key"], "redrive.db.key");
    let listed = ["endpoints", "list", "--db", &address, "--secret-key-file", "redrive.db.key"];
    assert_eq!(world.json(&listed)["data"].as_array().unwrap().len(), 1);
}
