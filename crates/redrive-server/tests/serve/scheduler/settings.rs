//! The environment of the specification, and what stands beside it.

use serde_json::Value;

use crate::world::{Place, SPECIFIED};

/// `scheduler.*` of `redrive config check`: value and source of a key.
fn setting(place: &Place, variables: &[(&str, &str)], key: &str) -> (String, String) {
    let output = place
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
fn the_environment_is_the_specified_one_with_its_defaults() {
    let place = Place::file();
    for (name, key, default, other) in SETTINGS {
        assert!(SPECIFIED.contains(&name));
        assert_eq!(setting(&place, &[], key), (default.to_owned(), "default".to_owned()));
        let expected = (other.to_owned(), format!("environment {name}"));
        assert_eq!(setting(&place, &[(name, other)], key), expected);
    }
    // What the specification has as an example is the default, in its own unit.
    for (name, value) in
        [("BASE_DELAY_MS", "2000"), ("MAX_DELAY_MS", "60000"), ("RETRY_POLL_INTERVAL_MS", "10000")]
    {
        let key = SETTINGS.iter().find(|setting| setting.0 == name).unwrap().1;
        assert_eq!(setting(&place, &[(name, value)], key).0, value);
    }
}

#[test]
fn the_database_is_that_of_the_specification_before_ours_and_no_password_is_shown() {
    let place = Place::file();
    let specified = "postgresql://retry_user:password@localhost:5432/eracun";
    let (value, source) = setting(&place, &[("DATABASE_URL", specified), ("REDRIVE_DB", "other.db")], "db");
    assert_eq!(
        (value.as_str(), source.as_str()),
        ("postgresql://retry_user@localhost:5432/eracun", "environment DATABASE_URL")
    );
    let ours = setting(&place, &[("REDRIVE_DB", "other.db")], "db");
    assert_eq!(ours, ("other.db".to_owned(), "environment REDRIVE_DB".to_owned()));
    assert_eq!(setting(&place, &[("DATABASE_URL", "")], "db").0, "redrive.db");
    let (value, _) = setting(&place, &[("RABBITMQ_URL", "amqp://anna:s3cret@host/shop")], "rabbitmq_url");
    assert!(value.contains("host/shop") && !value.contains("s3cret"), "{value}");

    // A flag counts before everything, also for what a person does.
    let output = place
        .command(&["scheduler", "review", "list", "--db", "none.db"])
        .env("DATABASE_URL", specified)
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("none.db does not exist"), "{output:?}");
}

#[test]
fn the_file_has_a_section_for_it_and_one_for_each_queue() {
    let place = Place::file();
    let name = place.name();
    let folder = std::path::Path::new(&name).parent().unwrap();
    let write = |text: &str| std::fs::write(folder.join("redrive.toml"), text).unwrap();
    write(
        "log_format = 'json'\nbase_delay = '9s'\ndb = 'top.db'\n[scheduler]\nbase_delay = '3s'\nhttp_port = 9002\n\
         [scheduler.queues.'a.orders']\nmax_retries = 8\nbase_delay = 500\n",
    );
    let is = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(setting(&place, &[], "base_delay"), is("3s", "redrive.toml, line 5"));
    assert_eq!(setting(&place, &[("HTTP_PORT", "9003")], "http_port"), is("9003", "environment HTTP_PORT"));
    assert_eq!(setting(&place, &[], "log_format"), is("json", "redrive.toml, line 1"), "for every service");
    assert_eq!(setting(&place, &[], "db"), is("top.db", "redrive.toml, line 3"));
    assert_eq!(setting(&place, &[], "max_delay"), is("60s", "default"), "that of webhooks is another");
    let queues = setting(&place, &[], "queues");
    assert_eq!(queues, is("a.orders=max_retries:8,base_delay:500", "redrive.toml, line 7"));
    write("[scheduler]\nhttp_prt = 1\n[scheduler.queues.orders]\ncolour = 'red'\n");
    for command in [&["config", "check"][..], &["scheduler"], &["scheduler", "review", "list"]] {
        let output = place.command(command).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("line 2: there is no key http_prt; did you mean http_port?"), "{said}");
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
