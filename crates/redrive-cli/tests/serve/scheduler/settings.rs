//! Settings of the scheduler: the specified variables and the file.

use serde_json::Value;

use crate::world::{SPECIFIED, TestDatabase};

/// `scheduler.*` of `redrive config check`: value and source of a key.
fn setting(database: &TestDatabase, variables: &[(&str, &str)], key: &str) -> (String, String) {
    let output = database
        .command(&["config", "check", "--json"])
        .env_remove("REDRIVE_DB")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let key = format!("scheduler.{key}");
    let one = all["settings"].as_array().unwrap().iter().find(|one| one["key"] == key.as_str());
    let one = one.unwrap_or_else(|| panic!("{key} in {all}"));
    (one["value"].as_str().unwrap_or("-").to_owned(), one["source"].as_str().unwrap().to_owned())
}

/// Name, key, default, another value.
const SETTINGS: [(&str, &str, &str, &str); 9] = [
    ("SERVICE_NAME", "service_name", "retry-scheduler", "mailer"),
    ("HTTP_PORT", "http_port", "8086", "9001"),
    ("RABBITMQ_URL", "rabbitmq_url", "amqp://localhost:5672", "amqps://broker/shop"),
    ("RETRY_QUEUE", "retry_queue", "retry.scheduled", "failed"),
    ("MANUAL_REVIEW_QUEUE", "manual_review_queue", "manual-review.pending", "people"),
    ("DEFAULT_MAX_RETRIES", "default_max_retries", "3", "5"),
    ("BASE_DELAY_MS", "base_delay", "2s", "1500"),
    ("MAX_DELAY_MS", "max_delay", "60s", "90000"),
    ("RETRY_POLL_INTERVAL_MS", "poll_interval", "10s", "5000"),
];

#[test]
fn the_specified_variables_have_the_specified_defaults() {
    let database = TestDatabase::sqlite();
    for (name, key, default, other) in SETTINGS {
        assert!(SPECIFIED.contains(&name));
        assert_eq!(setting(&database, &[], key), (default.to_owned(), "default".to_owned()));
        let expected = (other.to_owned(), format!("environment {name}"));
        assert_eq!(setting(&database, &[(name, other)], key), expected);
    }
    // The examples of the specification are the defaults, in milliseconds.
    for (name, value) in
        [("BASE_DELAY_MS", "2000"), ("MAX_DELAY_MS", "60000"), ("RETRY_POLL_INTERVAL_MS", "10000")]
    {
        let key = SETTINGS.iter().find(|setting| setting.0 == name).unwrap().1;
        assert_eq!(setting(&database, &[(name, value)], key).0, value);
    }
}

#[test]
fn database_url_overrides_redrive_db_and_passwords_are_hidden() {
    let database = TestDatabase::sqlite();
    let specified = "postgresql://retry_user:password@localhost:5432/eracun";
    let (value, source) =
        setting(&database, &[("DATABASE_URL", specified), ("REDRIVE_DB", "other.db")], "db");
    assert_eq!(
        (value.as_str(), source.as_str()),
        ("postgresql://retry_user@localhost:5432/eracun", "environment DATABASE_URL")
    );
    let own = setting(&database, &[("REDRIVE_DB", "other.db")], "db");
    assert_eq!(own, ("other.db".to_owned(), "environment REDRIVE_DB".to_owned()));
    assert_eq!(setting(&database, &[("DATABASE_URL", "")], "db").0, "redrive.db");
    let (value, _) = setting(&database, &[("RABBITMQ_URL", "amqp://anna:s3cret@host/shop")], "rabbitmq_url");
    assert!(value.contains("host/shop") && !value.contains("s3cret"), "{value}");

    // A flag overrides everything, also for review commands.
    let output = database
        .command(&["scheduler", "review", "list", "--db", "none.db"])
        .env("DATABASE_URL", specified)
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("none.db does not exist"), "{output:?}");
}

#[test]
fn the_file_has_a_scheduler_section_with_queue_subsections() {
    let database = TestDatabase::sqlite();
    let name = database.name();
    let folder = std::path::Path::new(&name).parent().unwrap();
    let write = |text: &str| std::fs::write(folder.join("redrive.toml"), text).unwrap();
    write(
        "log_format = 'json'\nbase_delay = '9s'\ndb = 'top.db'\n[scheduler]\nbase_delay = '3s'\nhttp_port = 9002\n\
         [scheduler.queues.'a.orders']\nmax_retries = 8\nbase_delay = 500\n",
    );
    let is = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(setting(&database, &[], "base_delay"), is("3s", "redrive.toml, line 5"));
    assert_eq!(
        setting(&database, &[("HTTP_PORT", "9003")], "http_port"),
        is("9003", "environment HTTP_PORT")
    );
    assert_eq!(
        setting(&database, &[], "log_format"),
        is("json", "redrive.toml, line 1"),
        "applies to every service"
    );
    assert_eq!(setting(&database, &[], "db"), is("top.db", "redrive.toml, line 3"));
    assert_eq!(
        setting(&database, &[], "max_delay"),
        is("60s", "default"),
        "max_delay of `redrive serve` does not apply"
    );
    let queues = setting(&database, &[], "queues");
    assert_eq!(queues, is("a.orders=max_retries:8,base_delay:500", "redrive.toml, line 7"));
    write("[scheduler]\nhttp_prt = 1\n[scheduler.queues.orders]\ncolour = 'red'\n");
    for command in [&["config", "check"][..], &["scheduler"], &["scheduler", "review", "list"]] {
        let output = database.command(command).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("line 2: unknown key http_prt; did you mean http_port?"), "{said}");
        assert!(said.contains("line 4") && said.contains("colour"), "{said}");
    }
}

#[test]
fn the_example_environment_is_the_specified_one() {
    let text = include_str!("../../../../../examples/scheduler/.env.example");
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(
        lines,
        [
            "SERVICE_NAME=retry-scheduler",
            "HTTP_PORT=8086",
            "RABBITMQ_URL=amqp://localhost:5672",
            "RETRY_QUEUE=retry.scheduled",
            "MANUAL_REVIEW_QUEUE=manual-review.pending",
            "DEFAULT_MAX_RETRIES=3",
            "BASE_DELAY_MS=2000",
            "MAX_DELAY_MS=60000",
            "RETRY_POLL_INTERVAL_MS=10000",
            "DATABASE_URL=postgresql://retry_user:password@localhost:5432/eracun",
        ]
    );
}

#[test]
fn the_help_of_the_port_names_the_address_and_its_variable() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_redrive"))
        .args(["scheduler", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("on 127.0.0.1 unless --bind (REDRIVE_SCHEDULER_BIND)"), "{words}");
}

/// The specified in-memory queue would lose its tasks on restart.
#[test]
fn a_database_in_memory_is_refused() {
    let database = TestDatabase::sqlite();
    for name in [":memory:", "sqlite::memory:"] {
        let by_flag = database.command(&["scheduler", "--db", name]).output().unwrap();
        let by_variable = database
            .command(&["scheduler"])
            .env_remove("REDRIVE_DB")
            .env("DATABASE_URL", name)
            .output()
            .unwrap();
        for output in [by_flag, by_variable] {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains("a database in memory is lost"), "{said}");
        }
    }
}
