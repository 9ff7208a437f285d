//! Settings by flag, environment, file and default; `redrive config …`.

use std::process::Output;

use serde_json::Value;

use super::world::World;

fn setting(output: &Output, key: &str) -> (String, String) {
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let settings = found["settings"].as_array().unwrap();
    let one = settings.iter().find(|one| one["key"] == key).unwrap_or_else(|| panic!("{key} in {found}"));
    (one["value"].as_str().unwrap_or("-").to_owned(), one["source"].as_str().unwrap().to_owned())
}

fn is(value: &str, source: &str) -> (String, String) {
    (value.to_owned(), source.to_owned())
}

#[test]
fn flags_override_the_environment_and_the_environment_overrides_the_file() {
    let world = World::on_file();
    let check = |flags: &[&str], variable: Option<&str>| {
        let mut command = world.command(&[&["config", "check", "--json"], flags].concat());
        if let Some(value) = variable {
            command.env("REDRIVE_RATE_LIMIT", value);
        }
        command.output().unwrap()
    };
    assert_eq!(setting(&check(&[], None), "rate_limit"), is("50000", "default"));
    std::fs::write(
        world.folder.path().join("redrive.toml"),
        "\nrate_limit = 7\nallow_plain_http = true\nallow_range = ['10.0.0.0/8', '127.0.0.0/8']\n",
    )
    .unwrap();
    assert_eq!(setting(&check(&[], None), "rate_limit"), is("7", "redrive.toml, line 2"));
    assert_eq!(setting(&check(&[], None), "allow_plain_http"), is("true", "redrive.toml, line 3"));
    assert_eq!(
        setting(&check(&[], None), "allow_range"),
        is("10.0.0.0/8,127.0.0.0/8", "redrive.toml, line 4")
    );
    assert_eq!(setting(&check(&[], Some("8")), "rate_limit"), is("8", "environment REDRIVE_RATE_LIMIT"));
    assert_eq!(
        setting(&check(&["--rate-limit", "9"], Some("8")), "rate_limit"),
        is("9", "flag --rate-limit")
    );
    assert_eq!(
        setting(&check(&["--allow-range", "::1/128"], None), "allow_range"),
        is("::1/128", "flag --allow-range")
    );
    std::fs::write(world.folder.path().join("other.toml"), "rate_limit = 5").unwrap();
    assert_eq!(
        setting(&check(&["--config", "other.toml"], None), "rate_limit"),
        is("5", "other.toml, line 1")
    );
    let by_variable =
        world.command(&["config", "check", "--json"]).env("REDRIVE_CONFIG", "other.toml").output().unwrap();
    assert_eq!(setting(&by_variable, "rate_limit"), is("5", "other.toml, line 1"));
}

#[test]
fn all_configuration_errors_are_reported_together() {
    let world = World::on_file();
    std::fs::write(world.folder.path().join("redrive.toml"), "lisen = 'x'\nrate_limit = 'many'\n").unwrap();
    for command in [&["config", "check"][..], &["serve"], &["tokens", "list"]] {
        let output = world.command(command).env("REDRIVE_BODY_MEMORY", "1").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        for part in [
            "redrive.toml, line 1: unknown key lisen; did you mean listen?",
            "redrive.toml, line 2: ",
            "REDRIVE_BODY_MEMORY: ",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
    }
    // Commands without a database ignore the file.
    assert!(world.command(&["config", "example"]).output().unwrap().status.success());
    assert!(world.command(&["completions", "bash"]).output().unwrap().status.success());
    std::fs::write(world.folder.path().join("redrive.toml"), "base_delay = '2h'\n").unwrap();
    let output = world.command(&["config", "check"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("retry policy"), "{said}");
    let output = world.command(&["config", "check", "--config", "none.toml"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("cannot read none.toml"), "{said}");
}

#[test]
fn help_names_the_variable_of_every_flag() {
    let world = World::on_file();
    let output = world.command(&["serve", "--help"]).env("REDRIVE_BODY_MEMORY", "none").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    for name in [
        "REDRIVE_LISTEN",
        "REDRIVE_MAX_ATTEMPTS",
        "REDRIVE_SHUTDOWN_TIMEOUT",
        "REDRIVE_ALLOW_RANGE",
        "REDRIVE_CONFIG",
    ] {
        assert!(said.contains(name), "{name} in {said}");
    }
}

#[test]
fn secrets_are_hidden() {
    let world = World::on_file();
    let output = world
        .command(&["config", "check"])
        .env("REDRIVE_DB", "postgres://anna:s3cret@host/shop")
        .env("REDRIVE_SECRET_KEY", "s3cret")
        .env("REDRIVE_OTLP_HEADER", "authorization: Bearer s3cret")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("otlp_header")
            && said.contains("postgres://anna@host/shop")
            && said.contains("secret_key")
            && !said.contains("s3cret"),
        "{said}"
    );
}

#[test]
fn the_example_is_valid_and_every_command_uses_its_database() {
    let mut world = World::on_file();
    let example = world.command(&["config", "example"]).output().unwrap();
    let text = String::from_utf8(example.stdout).unwrap().replace("#db = \"redrive.db\"", "db = \"shop.db\"");
    std::fs::write(world.folder.path().join("redrive.toml"), text).unwrap();
    world.serve(&[]);
    assert!(world.folder.path().join("shop.db").exists());
    world.publish("order.created", "1");
    let listed = world.command(&["events", "list", "--json"]).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("order.created"), "{listed:?}");
    assert!(!world.folder.path().join("redrive.db").exists());
}

#[test]
fn an_invalid_header_is_refused_without_being_shown() {
    let world = World::on_file();
    let output = world.command(&["config", "check", "--otlp-header", "Bearer s3cret"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && said.contains("otlp_header") && !said.contains("s3cret"),
        "{said}"
    );
    let help = world.command(&["serve", "--help"]).env("REDRIVE_OTLP_HEADER", "a: s3cret").output().unwrap();
    assert!(!String::from_utf8_lossy(&help.stdout).contains("s3cret"));
}

#[test]
fn standard_variables_rank_below_the_file() {
    let world = World::on_file();
    let check = |own: Option<&str>, standard: &str| {
        let mut command = world.command(&["config", "check", "--json"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", standard);
        if let Some(own) = own {
            command.env("REDRIVE_OTLP_ENDPOINT", own);
        }
        command.output().unwrap()
    };
    let standard = "http://collector:4318";
    let found = setting(&check(None, standard), "otlp_endpoint");
    assert_eq!(found, is(standard, "environment OTEL_EXPORTER_OTLP_ENDPOINT"));
    assert_eq!(setting(&check(None, ""), "otlp_endpoint"), is("-", "default"));
    let found = setting(&check(Some("http://own:4318"), standard), "otlp_endpoint");
    assert_eq!(found, is("http://own:4318", "environment REDRIVE_OTLP_ENDPOINT"));
    let output = check(None, "collector:4317");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("OTEL_EXPORTER_OTLP_ENDPOINT: "), "{said}");
    std::fs::write(world.folder.path().join("redrive.toml"), "otlp_endpoint = 'http://file:4318'\n").unwrap();
    assert_eq!(
        setting(&check(None, standard), "otlp_endpoint"),
        is("http://file:4318", "redrive.toml, line 1")
    );
}
