//! Runs the commands on PostgreSQL with the real binary, and checks output and exit codes.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use redrive::retry::{BoxError, RetryPolicy};
use redrive::{Event, EventBus};
use redrive_servers::Schema;
use serde_json::Value;

/// Password in every URL; must never be printed.
const PASSWORD: &str = "s3cret";

struct World {
    schema: Schema,
    address: String,
}

impl World {
    fn new() -> Self {
        let schema = Schema::new().unwrap_or_else(|missing| panic!("{missing}"));
        let address = schema.address();
        let address = match address.split_once('@') {
            Some((user, rest)) if !user.trim_start_matches("postgres://").contains(':') => {
                format!("{user}:{PASSWORD}@{rest}")
            }
            _ => address,
        };
        World { schema, address }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(arguments)
            .env("REDRIVE_DB", &self.address)
            .env_remove("COLUMNS")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = format!("{output:?}");
        assert!(!said.contains(PASSWORD), "{arguments:?}: {said}");
        output
    }

    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[arguments, &["--json"]].concat())).unwrap()
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs a bus until nothing is pending: `ok` succeeds, `bad` always fails.
    async fn handle(&self) {
        let policy =
            RetryPolicy::builder().max_attempts(2).base_delay(Duration::from_millis(1)).build().unwrap();
        let bus = EventBus::builder().policy(policy).open(&self.address).await.unwrap();
        bus.subscribe("ok", |_: Event| async { Ok::<_, BoxError>(()) }).register().unwrap();
        bus.subscribe("bad", |_: Event| async { Err::<(), _>("no such order") }).register().unwrap();
        bus.start().await.unwrap();
        loop {
            let depth = bus.store().depth().await.unwrap();
            if depth.is_idle() {
                break;
            }
            tokio::task::yield_now().await;
        }
        bus.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn every_event_command_works_on_postgresql() {
    let world = World::new();
    let good = world.text(&["publish", "ok", "{\"order\": 7}", "--meta", "source=cron"]).trim().to_owned();
    let bad = world.text(&["publish", "bad", "1"]).trim().to_owned();
    assert_eq!(world.json(&["publish", "bad", "1", "--id", &bad])["duplicate"], true);
    assert_eq!(world.json(&["events", "list", "--status", "pending"])["data"].as_array().unwrap().len(), 2);
    world.handle().await;

    let shown = world.json(&["events", "show", &good]);
    assert_eq!((&shown["status"], &shown["metadata"]["source"]), (&"done".into(), &"cron".into()));
    assert!(world.text(&["events", "show", &bad]).contains("no such order"));
    let list = world.json(&["dlq", "list"]);
    assert_eq!(list["data"][0]["id"], bad.as_str());
    assert_eq!(world.json(&["dlq", "groups"])["data"][0]["count"], 1);
    assert!(world.text(&["dlq", "show", &bad]).contains("no such order"));
    assert_eq!(world.text(&["dlq", "export"]).lines().count(), 1);
    let doctor = world.run(&["doctor", "--json"]);
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let worse: Vec<&Value> = checks.iter().filter(|check| check["verdict"] != "ok").collect();
    assert_eq!((worse.len(), &worse[0]["check"]), (1, &"dead letters".into()), "{doctor}");
    assert!(world.refused(&["doctor"]).contains("checks that need a person: dead letters"));

    assert_eq!(world.json(&["dlq", "retry", "--all", "--dry-run"])["matched"], 1);
    assert_eq!(world.json(&["dlq", "retry", &bad])["id"], bad.as_str());
    assert_eq!(world.json(&["events", "show", &bad])["status"], "pending");
    world.handle().await;
    assert_eq!(world.json(&["dlq", "purge", "--older-than", "0s", "--yes"])["purged"], 1);
    assert_eq!(world.text(&["dlq", "list"]).trim(), "The dead-letter queue is empty.");
}

#[test]
fn read_commands_create_no_schema_and_report_it_missing() {
    let world = World::new();
    for arguments in [&["events", "list"][..], &["dlq", "list"], &["dlq", "groups"], &["doctor"]] {
        let output = world.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("there is no schema {}", world.schema.name())), "{said}");
    }
}

#[test]
fn unusable_urls_are_refused_without_showing_the_password() {
    let world = World::new();
    for (address, why) in [
        (format!("postgres://anna:{PASSWORD}@127.0.0.1:1/shop"), "cannot be reached"),
        (format!("postgres:anna:{PASSWORD}@127.0.0.1:1/shop"), "not an address"),
        (
            format!("postgres://anna:{PASSWORD}@127.0.0.1:1/shop?schema=Not-Good"),
            "cannot be the name of a schema",
        ),
        (format!("postgres://anna:{PASSWORD}@127.0.0.1:1/shop?nonsense=1"), "not an address"),
    ] {
        let said = world.refused(&["events", "list", "--db", &address]);
        assert!(said.contains(why), "{said}");
    }
    assert!(
        !world.text(&["events", "list", "--help"]).contains(world.schema.name()),
        "the help does not show the URL"
    );
    let output = world.run(&["backup", "copy.db"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("pg_dump"));
}

#[tokio::test]
async fn missing_permissions_are_reported_without_the_password() {
    let world = World::new();
    let (client, connection) =
        tokio_postgres::connect(world.schema.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let (name, user) = (world.schema.name(), format!("r{}", world.schema.name()));
    let create = format!(
        "DO $$ BEGIN CREATE ROLE with_password NOLOGIN; EXCEPTION WHEN OTHERS THEN NULL; END $$;
         CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}' IN ROLE with_password"
    );
    client.batch_execute(&create).await.unwrap();
    let config: tokio_postgres::Config = world.schema.url().parse().unwrap();
    let host = format!("127.0.0.1:{}", config.get_ports()[0]);
    let database = config.get_dbname().unwrap();
    let mine = format!("postgres://{user}:{PASSWORD}@{host}/{database}?schema={name}");
    let wrong = format!("postgres://{user}:{PASSWORD}-but-wrong@{host}/{database}?schema={name}");
    let none = format!("postgres://{user}@{host}/{database}?schema={name}");
    let nowhere = format!("postgres://{user}:{PASSWORD}@{host}/there_is_none?schema={name}");
    let uncertain = format!("{mine}&sslrootcert=/no/such.pem");
    for (address, command, why) in [
        (&wrong, &["events", "list"][..], "check user and password"),
        (&wrong, &["publish", "order.created", "1"], "check user and password"),
        (&wrong, &["dlq", "retry", "--all"], "check user and password"),
        (&none, &["events", "list"], "password missing"),
        (&nowhere, &["dlq", "list"], "has no such database"),
        (&uncertain, &["dlq", "list"], "/no/such.pem cannot be read"),
        (&mine, &["dlq", "list"], "there is no schema"),
        (&mine, &["publish", "order.created", "1"], "let a user who may create schemas open the store once"),
    ] {
        let said = world.refused(&[command, &["--db", address]].concat());
        assert!(said.contains(why), "{command:?}: {said}");
    }
    world.text(&["publish", "order.created", "1"]);
    let said = world.refused(&["events", "list", "--db", &mine]);
    assert!(said.contains("permission denied for schema") && said.contains("USAGE on the schema"), "{said}");
    let doctor = world.run(&["doctor", "--db", &mine]);
    assert_eq!(doctor.status.code(), Some(1));
    let grant = format!(
        "GRANT USAGE ON SCHEMA {name} TO {user}; GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {user}"
    );
    client.batch_execute(&grant).await.unwrap();
    assert!(
        world.text(&["events", "list", "--db", &mine]).contains("order.created"),
        "SELECT is enough to list"
    );
    let said = world.refused(&["publish", "order.created", "1", "--db", &mine]);
    assert!(said.contains("permission denied for table"), "{said}");
    // Poll-only mode by the URL, as behind a transaction pooler.
    assert!(
        world.text(&["events", "list", "--db", &format!("{mine}&poll_only=true")]).contains("order.created")
    );
    client.batch_execute(&format!("DROP OWNED BY {user}; DROP ROLE {user}")).await.unwrap();
}
