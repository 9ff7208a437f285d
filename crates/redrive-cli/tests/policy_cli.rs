//! `redrive policy …` with the real binary: output and exit codes.

#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn redrive(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.args(arguments.split_whitespace()).env_remove("COLUMNS").env_remove("NO_COLOR");
    command
}

fn run(arguments: &str) -> Output {
    redrive(arguments).output().unwrap()
}

fn stdout(arguments: &str) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command with `--json` and parses its output; standard error must be empty.
fn json(arguments: &str) -> Value {
    let output = run(&format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}: {output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

/// `[attempt, delay, min, max, total]` of every row, which has no other field.
fn rows(document: &Value) -> Vec<[u64; 5]> {
    let keys = ["attempt", "delay_ms", "min_ms", "max_ms", "total_ms"];
    let row = |row: &Value| {
        assert_eq!(row.as_object().unwrap().len(), keys.len(), "{row}");
        keys.map(|key| row[key].as_u64().unwrap())
    };
    document["attempts"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn explain_prints_the_exact_delays_of_every_preset() {
    let first = [1, 0, 0, 0, 0];
    let bus = [first, [2, 1000, 900, 1100, 1000], [3, 2000, 1800, 2200, 3000], [4, 4000, 3600, 4400, 7000]];
    assert_eq!(rows(&json("policy explain")), bus);
    assert_eq!(rows(&json("policy explain --preset bus")), bus);
    let mut webhook = bus.to_vec();
    webhook.push([5, 8000, 7200, 8800, 15_000]);
    assert_eq!(rows(&json("policy explain --preset webhook")), webhook);
    assert_eq!(
        rows(&json("policy explain --preset scheduler")),
        [first, [2, 2000, 2000, 3000, 2000], [3, 4000, 4000, 5000, 6000], [4, 8000, 8000, 9000, 14_000]]
    );
    assert_eq!(rows(&json("policy explain --preset API_REQUEST")), bus[..3]);
    assert_eq!(
        rows(&json("policy explain --preset RETRY_KV_GET")),
        [first, [2, 500, 450, 550, 500], [3, 1000, 900, 1100, 1500]]
    );
    assert_eq!(rows(&json("policy explain --preset REPLAY_PROCESSING")), [first]);
}

#[test]
fn explain_prints_the_policy_and_its_totals() {
    let document = json(
        "policy explain --preset webhook --max-retries 2 --base 100ms --multiplier 3 --cap 1s --jitter equal",
    );
    assert_eq!(rows(&document)[2], [3, 300, 150, 300, 400]);
    assert_eq!(
        document["policy"],
        json!({"max_attempts": 3, "base_delay": "100ms", "multiplier": 3.0, "max_delay": "1s", "jitter": "equal"})
    );
    assert_eq!(
        [&document["total_ms"], &document["total_min_ms"], &document["total_max_ms"]],
        [400, 200, 400]
    );
}

#[test]
fn explain_with_a_seed_prints_the_delays_of_one_event() {
    let delays = |arguments: &str| -> Vec<u64> {
        let document = json(&format!("policy explain --preset webhook --jitter full {arguments}"));
        let attempts = document["attempts"].as_array().unwrap();
        attempts.iter().map(|row| row["seeded_ms"].as_u64().unwrap()).collect()
    };
    let example = delays("--seed 7");
    assert_eq!(example.len(), 5);
    assert_eq!(example[0], 0);
    assert_eq!(delays("--seed 7 --event example --subscription example"), example);
    assert_ne!(delays("--seed 8"), example);
    assert_ne!(delays("--seed 7 --event other"), example);
    assert_ne!(delays("--seed 7 --subscription other"), example);
    let policy = redrive_retry::RetryPolicy::preset("webhook").unwrap();
    let policy = policy.to_builder().jitter(redrive_retry::Jitter::Full).build().unwrap();
    let identity = redrive_retry::decision::Identity::new(7, "example", "example");
    let expected: Vec<u64> = policy.delays(identity).map(|d| u64::try_from(d.as_millis()).unwrap()).collect();
    assert_eq!(example[1..], expected);
}

#[test]
fn explain_prints_a_table() {
    let text = stdout("policy explain --preset webhook");
    for part in [
        "webhook: 5 attempts, waiting 1s, then 2× as long each time up to 1h, ±10%",
        "attempt   delay        range   total",
        "      5      8s    7.2s–8.8s     15s",
        "▓",
    ] {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    assert!(!text.contains('\x1b'), "no colours without a terminal");
}

#[test]
fn a_long_table_omits_its_middle_and_json_has_all() {
    let text = stdout("policy explain --max-attempts 1000");
    assert!(text.contains("975 attempts omitted"), "{text}");
    assert!(text.lines().count() < 70);
    assert_eq!(rows(&json("policy explain --max-attempts 1000")).len(), 1000);
}

#[test]
fn lines_fit_the_requested_width() {
    for (arguments, width) in [
        ("policy explain --max-attempts 60 --cap 1h --jitter full", 60),
        ("policy simulate --preset webhook --outage 5s", 60),
    ] {
        let output = redrive(arguments).env("COLUMNS", width.to_string()).output().unwrap();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            assert!(line.chars().count() <= width, "{line}");
        }
    }
}

#[test]
fn wrong_flags_exit_with_2_and_a_remedy() {
    for (arguments, remedy) in [
        ("policy explain --max-retries 3 --max-attempts 4", "cannot be used with"),
        ("policy explain --base 1m", "raise max_delay or lower base_delay"),
        ("policy explain --base 1m", "--cap sets max_delay"),
        ("policy explain --max-attempts 0", "set it to 1 for no retries"),
        ("policy explain --max-attempts 2000000", "lower max_attempts"),
        ("policy explain --multiplier 0", "from 1 (constant delay) to 1000"),
        ("policy explain --jitter 10", "none, 10%, 0..1s, full, equal"),
        ("policy explain --jitter 200%", "from 0 to 1"),
        ("policy explain --base 10", "such as 250ms, 1s, 5m or 1h"),
        ("policy explain --preset buss", "a similar value exists: 'bus'"),
        ("policy explain --event x", "--seed"),
        ("policy simulate --events 0", "choose from 1 to 1000000"),
        ("policy simulate --events 1000000 --max-attempts 21", "lower the number of events to 952380"),
        ("policy simulate --capacity 0", "set it to 1 or more"),
        ("policy simulate --outage 2y", "shorten it"),
        ("policy", "Usage"),
        ("polcy", "policy"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(output.stdout.is_empty(), "{arguments}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(remedy), "{arguments} says {said}");
    }
}

/// Checks that elements are closed and text is escaped.
fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    let mut rest = svg;
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("every < has a >");
        let tag = &rest[start + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closes the open element");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap());
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    for part in ["<title", "<desc", "role=\"img\"", "prefers-color-scheme:dark", "<metadata>redrive policy"] {
        assert!(svg.contains(part), "{part} is missing");
    }
    assert!(!svg.contains("<script") && !svg.contains("NaN"));
}

#[test]
fn pictures_are_well_formed_and_do_not_change_the_output() {
    for arguments in [
        "policy explain --preset webhook",
        "policy explain --preset webhook --max-attempts 15 --jitter full",
        "policy explain --max-attempts 20000",
        "policy explain --max-attempts 1",
        "policy explain --base 0 --cap 0 --jitter none",
        "policy simulate --preset webhook --outage 5s",
        "policy simulate --jitter none --outage 0s",
        "policy simulate --outage 1h --events 1",
    ] {
        let path = scratch("picture.svg");
        let output = run(&format!("{arguments} --json --svg {}", path.display()));
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), format!("wrote {}\n", path.display()));
        serde_json::from_slice::<Value>(&output.stdout).expect("standard output is one JSON object");
        let svg = std::fs::read_to_string(&path).unwrap();
        assert_well_formed(&svg);
        assert!(svg.len() < 100_000, "{arguments}: {} bytes", svg.len());
        std::fs::remove_file(path).unwrap();
    }
}

/// Redraws each picture by the command in its metadata.
#[test]
fn the_pictures_of_the_documentation_are_up_to_date() {
    let pictures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    for name in ["explain-webhook.svg", "simulate-webhook.svg"] {
        let kept = std::fs::read_to_string(pictures.join(name)).unwrap();
        let (_, after) = kept.split_once("<metadata>redrive ").unwrap();
        let (command, _) = after.split_once("</metadata>").unwrap();
        let path = scratch(name);
        stdout(&format!("{command} --svg {}", path.display()));
        let drawn = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(kept == drawn, "draw it again: redrive {command} --svg docs/pictures/{name}");
    }
}

#[test]
fn an_unwritable_picture_is_a_failure() {
    for command in ["explain", "simulate"] {
        let output = run(&format!("policy {command} --json --svg /nonexistent/picture.svg"));
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("error: cannot write the picture to /nonexistent/picture.svg"), "{said}");
        assert!(said.contains("a writable directory"), "{said}");
    }
}

#[test]
fn simulate_prints_consistent_counts() {
    let document = json("policy simulate --preset webhook --events 500 --outage 5s --capacity 50 --seed 3");
    assert_eq!(
        [&document["events"], &document["outage_ms"], &document["capacity_per_second"], &document["seed"]],
        [500, 5000, 50, 3]
    );
    assert_eq!(document["policy"]["max_attempts"], 5);
    assert!(document["conclusion"].as_str().unwrap().starts_with("Jitter delivers "));
    for run in ["with_jitter", "without_jitter"] {
        let result = &document[run];
        let number = |key: &str| result[key].as_u64().unwrap_or_else(|| panic!("{run}.{key}: {result}"));
        assert_eq!(number("delivered") + number("dead"), 500);
        assert!(number("p50_ms") <= number("p95_ms") && number("p95_ms") <= number("last_delivery_ms"));
        assert!(number("last_delivery_ms") <= number("settled_ms"));
        assert!(number("peak_per_second") > 0);
        let series = &result["series"];
        assert!(series["bucket_ms"].as_u64().unwrap() > 0);
        for key in ["attempts", "delivered", "rejected"] {
            let sum: u64 = series[key].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
            assert_eq!(sum, number(key), "{run}.series.{key}");
        }
    }
    assert_eq!(document["with_jitter"]["jitter"], "10%");
    assert_eq!(document["without_jitter"]["jitter"], "none");
}

#[test]
fn simulate_is_deterministic_per_seed() {
    let run = |seed| stdout(&format!("policy simulate --preset webhook --outage 5s --json --seed {seed}"));
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
    let text = |seed| stdout(&format!("policy simulate --preset webhook --outage 5s --seed {seed}"));
    assert_eq!(text(7), text(7));
}

#[test]
fn the_recommendation_of_simulate_works() {
    let text = stdout("policy simulate");
    assert!(text.contains("No event is delivered, with or without jitter"), "{text}");
    let advice = json("policy simulate")["conclusion"].as_str().unwrap().to_owned();
    let (_, after) = advice.split_once("--max-attempts ").unwrap();
    let attempts = after.split(' ').next().unwrap();
    let advised = json(&format!("policy simulate --max-attempts {attempts}"));
    assert_eq!(advised["with_jitter"]["dead"], 0, "{advice}");
}

#[test]
fn simulate_compares_no_jitter_with_full_jitter() {
    let document = json("policy simulate --preset webhook --jitter none --outage 5s");
    assert_eq!(document["with_jitter"]["jitter"], "full");
    assert_eq!(document["policy"]["jitter"], "none");
    assert!(
        stdout("policy simulate --preset webhook --jitter none --outage 5s").contains("full jitter instead")
    );
}

#[test]
fn a_closed_pipe_is_no_failure() {
    for arguments in ["policy explain --max-attempts 1000000 --json", "completions bash"] {
        let mut child = redrive(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut reader = BufReader::with_capacity(16, child.stdout.take().unwrap());
        reader.fill_buf().unwrap();
        drop(reader);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = redrive("policy explain").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot write to standard output"));
}

#[test]
fn help_has_examples_and_every_shell_has_completions() {
    for command in ["", "policy", "policy explain", "policy simulate", "audit", "audit verify", "completions"]
    {
        let help = stdout(&format!("{command} --help"));
        assert!(help.contains("Example"), "{command}: {help}");
    }
    assert!(stdout("--version").starts_with("redrive "));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(stdout(&format!("completions {shell}")).contains("redrive"));
    }
    assert!(stdout("completions bash").contains("webhook"), "presets are completed");
}
