//! Addresses with passwords in flags, variables and the configuration file.

use std::process::Command;

/// Addresses with a password, right and wrong, in every flag that takes one, and where none is expected.
#[test]
fn no_error_repeats_the_password_of_a_url() {
    let folder = tempfile::tempdir().unwrap();
    let urls = [
        "postgres://anna:s3cret@127.0.0.1:1/shop",
        "postgre://anna:s3cret@h/shop",
        "mysql://anna:s3cret@h/shop",
        "anna:s3cret@h/shop",
        "//anna:s3cret@h/shop",
        "host=h user=anna password=s3cret",
        "http://anna:s3cret@h/x",
        "https://h/?token=s3cret",
        "amqp://anna:s3cret@h:port/x",
        "nats://anna:s3cret@h:port",
    ];
    let commands: [&[&str]; 12] = [
        &["events", "list", "--db"],
        &["doctor", "--db"],
        &["tokens", "list", "--db"],
        &["migrate", "--to"],
        &["serve", "--max-attempts", "0", "--db"],
        &["events", "list", "--server"],
        &["serve", "--otlp-endpoint"],
        &["scheduler", "--base-delay", "9m", "--rabbitmq-url"],
        &["scheduler", "--base-delay", "9m", "--nats-url"],
        &["events", "list"],
        &["scheduler", "--prefetch"],
        &[],
    ];
    for command in commands {
        for url in urls {
            let output = Command::new(env!("CARGO_BIN_EXE_redrive"))
                .args(command)
                .arg(url)
                .current_dir(folder.path())
                .env_remove("REDRIVE_DB")
                .output()
                .unwrap();
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(!output.status.success() && !said.is_empty(), "{command:?} {url}: {said}");
            assert!(!said.contains("s3cret"), "{command:?} {url}: {said}");
        }
    }
    for (variable, url) in
        [("REDRIVE_SERVER", "http://anna:s3cret@h"), ("REDRIVE_OTLP_ENDPOINT", "h://s3cret")]
    {
        for command in [&["events", "list"][..], &["config", "check"], &["serve", "--max-attempts", "0"]] {
            let mut run = Command::new(env!("CARGO_BIN_EXE_redrive"));
            let output = run.args(command).current_dir(folder.path()).env(variable, url).output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            assert!(!String::from_utf8_lossy(&said).contains("s3cret"), "{command:?} {variable}: {said:?}");
        }
    }
    std::fs::write(folder.path().join("redrive.toml"), "[serve]\notlp_endpoint = 'ftp://anna:s3cret@h'\n")
        .unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_redrive"));
    let output = run.args(["config", "check"]).current_dir(folder.path()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(!String::from_utf8_lossy(&said).contains("s3cret"), "{}", String::from_utf8_lossy(&said));
}
