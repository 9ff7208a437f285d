//! Feeds random input to every parser of text, JSON and bytes: no parser panics or needs more than its input is worth, and
//! every refusal says what to write instead. Written values read back equal.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use redrive::dlq::{DlqCursor, DlqFilter, DlqPage};
use redrive::events::{EventFilter, EventPage, EventStatus};
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::policy::{ErrorRule, Rules};
use redrive::retry::{Failure, FailureClass, Jitter, RetryOverride, RetryPolicy, Timestamp};
use redrive::store::{NewEvent, StoreError};
use redrive::subscription::{Pattern, SubscriptionName};
use redrive::trace::TraceContext;
use redrive::{EventId, EventType};
use redrive_retry::audit::{AuditEvent, RetryLogEntry};
use redrive_retry::decision::{DecisionRecord, Identity, Outcome, Situation, decide};
use redrive_retry::duration::{format_duration, parse_duration};
use redrive_retry::http::parse_retry_after;
use redrive_retry::idempotency::{Fingerprint, IdempotencyKey, IdempotencyStore, MemoryStore, OwnerToken};
use redrive_retry::policy::{Backoff, Ratio};
use redrive_retry::{Category, Clock, RetryErrorReason, RetryManager};
use redrive_store::{Location, fingerprint};
use serde_json::{Map, Value, json};

use redrive_server::{database, failure};

// Parsers of the command line, included as source: the CLI is a program, not a library.
#[allow(dead_code, unused_imports)]
#[path = "../../redrive-cli/src/format.rs"]
mod format;
#[allow(dead_code)]
#[path = "../../redrive-cli/src/audit/line.rs"]
mod line;
#[allow(dead_code)]
#[path = "../../redrive-cli/src/audit/lines.rs"]
mod lines;
#[allow(dead_code)]
#[path = "../../redrive-cli/src/payload.rs"]
mod payload;
#[allow(dead_code)]
#[path = "../../redrive-cli/src/dlq/rate.rs"]
mod rate;
#[allow(dead_code)]
#[path = "../../redrive-cli/src/time_format.rs"]
mod time_format;

/// Maximum length of an error message, whatever the input.
const MAX_ERROR_CHARS: usize = 1000;

/// Text of every kind: random characters, nearly valid text, and far too long text.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => ".{0,40}",
        2 => proptest::collection::vec(any::<char>(), 0..40).prop_map(|chars| chars.into_iter().collect()),
        2 => "[a-z0-9.*_:%+ -]{0,40}",
        1 => Just(String::new()),
        1 => "[ -~]".prop_map(|one| one.repeat(70_000)),
        1 => Just("\u{0}".to_owned()),
        1 => Just("\u{202e}\u{feff}\u{1b}[2J".to_owned()),
    ]
}

/// A number that a file may contain.
fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0i64..100).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("JSON has no such number", |float| {
            serde_json::Number::from_f64(float).map(Value::Number)
        }),
        proptest::sample::select(vec![
            json!(0),
            json!(-1),
            json!(0.5),
            json!(1e308),
            json!(-1e308),
            json!(5e-324),
            json!(4_294_967_295_u64),
            json!(4_294_967_296_u64),
            json!(u64::MAX),
            json!(i64::MIN),
        ]),
    ]
}

/// Anything that JSON can say, a little nested.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number(),
        text().prop_map(Value::from),
        "[0-9]{1,6}(ms|s|m|h|days|%)?".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::hash_map("[a-z_]{0,12}", inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// An object with a random subset of these fields and random values.
fn document(fields: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let field = proptest::sample::select(fields.to_vec());
    proptest::collection::vec((field, anything()), 0..6)
        .prop_map(|list| {
            list.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>()
        })
        .prop_map(Value::Object)
}

/// A valid document with one changed value.
fn damaged(valid: Value) -> impl Strategy<Value = Value> {
    let pointers = pointers(&valid, "");
    (proptest::sample::select(pointers), anything()).prop_map(move |(pointer, value)| {
        let mut changed = valid.clone();
        if let Some(place) = changed.pointer_mut(&pointer) {
            *place = value;
        }
        changed
    })
}

fn pointers(value: &Value, here: &str) -> Vec<String> {
    let mut all = vec![here.to_owned()];
    match value {
        Value::Object(map) => {
            all.extend(map.iter().flat_map(|(name, value)| pointers(value, &format!("{here}/{name}"))));
        }
        Value::Array(list) => {
            all.extend(
                list.iter().enumerate().flat_map(|(n, value)| pointers(value, &format!("{here}/{n}"))),
            );
        }
        _ => {}
    }
    all
}

/// Text with one of its characters changed, left out or doubled, or cut off.
fn misspelt(valid: &'static str) -> impl Strategy<Value = String> {
    (any::<proptest::sample::Index>(), any::<char>(), 0u8..4).prop_map(move |(place, other, how)| {
        let mut chars: Vec<char> = valid.chars().collect();
        let place = place.index(chars.len());
        match how {
            0 => chars[place] = other,
            1 => drop(chars.remove(place)),
            2 => chars.insert(place, chars[place]),
            _ => chars.truncate(place),
        }
        chars.into_iter().collect()
    })
}

fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn check_error(error: &str, advice: &str) -> Result<(), TestCaseError> {
    prop_assert!(error.contains(advice), "{error} does not say {advice:?}");
    prop_assert!(error.len() <= MAX_ERROR_CHARS, "{} bytes of error", error.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn event_types_are_what_they_say_and_nothing_else(text in text()) {
        let is_one = (1..=255).contains(&text.len())
            && text.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != '*');
        match EventType::new(&text) {
            Ok(event_type) => {
                prop_assert!(is_one);
                prop_assert_eq!(event_type.as_str(), text.as_str());
                prop_assert_eq!(&EventType::new(event_type.to_string()).unwrap(), &event_type);
                let json = serde_json::to_string(&event_type).unwrap();
                prop_assert_eq!(serde_json::from_str::<EventType>(&json).unwrap(), event_type);
            }
            Err(error) => {
                prop_assert!(!is_one);
                check_error(&error.to_string(), "such as order.created")?;
                prop_assert!(serde_json::from_value::<EventType>(text.into()).is_err());
            }
        }
    }

    #[test]
    fn subscription_names_are_what_they_say_and_nothing_else(text in text()) {
        let is_one = (1..=255).contains(&text.len()) && !text.chars().any(char::is_control);
        match SubscriptionName::new(&text) {
            Ok(name) => {
                prop_assert!(is_one);
                let json = serde_json::to_string(&name).unwrap();
                let back: SubscriptionName = serde_json::from_str(&json).unwrap();
                prop_assert_eq!(back.as_str(), text.as_str());
            }
            Err(error) => {
                prop_assert!(!is_one);
                check_error(&error.to_string(), "use 1 to 255 bytes")?;
            }
        }
    }

    #[test]
    fn patterns_read_back_and_match_in_little_time(pattern in text(), against in text()) {
        match pattern.parse::<Pattern>() {
            Ok(parsed) => {
                prop_assert_eq!(&parsed.to_string().parse::<Pattern>().unwrap(), &parsed);
                let began = Instant::now();
                let matched = parsed.matches(&against);
                prop_assert!(began.elapsed() < Duration::from_millis(500));
                if !pattern.contains('*') {
                    prop_assert_eq!(matched, pattern == against, "without a star it is the text itself");
                }
            }
            Err(error) => check_error(&error.to_string(), "order.* or *")?,
        }
    }

    /// Builds a matching text: the pattern's parts in order, with random text for each star.
    #[test]
    fn a_pattern_matches_what_was_made_from_it(
        parts in proptest::collection::vec("[^*\\s\\p{Cc}]{0,6}", 2..6),
        between in proptest::collection::vec("[^\\s\\p{Cc}]{1,6}", 5),
    ) {
        let Ok(pattern) = parts.join("*").parse::<Pattern>() else { return Ok(()) };
        let mut made = parts[0].clone();
        for (something, part) in between.iter().zip(&parts[1..]) {
            made.push_str(something);
            made.push_str(part);
        }
        prop_assert!(pattern.matches(&made), "{pattern} and {made}");
    }

    #[test]
    fn event_ids_read_back(text in prop_oneof![text(), misspelt("0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19")], any: u128) {
        match text.parse::<EventId>() {
            Ok(id) => prop_assert_eq!(id.to_string().parse::<EventId>().unwrap(), id),
            Err(error) => check_error(&error.to_string(), "use a UUID")?,
        }
        let id = EventId::from_uuid(uuid::Uuid::from_u128(any));
        prop_assert_eq!(id.to_string().parse::<EventId>().unwrap(), id);
        prop_assert_eq!(serde_json::from_value::<EventId>(json!(id)).unwrap(), id);
    }

    #[test]
    fn statuses_read_back(text in text()) {
        match text.parse::<EventStatus>() {
            Ok(status) => prop_assert_eq!(status.to_string(), text),
            Err(error) => check_error(&error.to_string(), "use pending, processing, done or dlq")?,
        }
    }

    #[test]
    fn cursors_read_back(
        text in prop_oneof![text(), misspelt("1767225600000.17.3"), "-?[0-9]{1,25}(\\.-?[0-9]{1,25}){0,4}"],
        parts: [i64; 3],
    ) {
        match text.parse::<DlqCursor>() {
            Ok(cursor) => prop_assert_eq!(cursor.to_string().parse::<DlqCursor>().unwrap(), cursor),
            Err(error) => check_error(&error.to_string(), "pass the one that came with the previous page")?,
        }
        let written = format!("{}.{}.{}", parts[0], parts[1], parts[2]);
        prop_assert_eq!(written.parse::<DlqCursor>().unwrap().to_string(), written);
    }

    #[test]
    fn traceparents_read_back(
        text in prop_oneof![
            text(),
            misspelt("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            "[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[a-z]{0,5})?",
        ],
    ) {
        match text.parse::<TraceContext>() {
            Ok(context) => {
                prop_assert_eq!(context.to_string().parse::<TraceContext>().unwrap(), context);
                prop_assert_eq!((context.trace_id().len(), context.span_id().len()), (32, 16));
            }
            Err(error) => check_error(&error.to_string(), "such as")?,
        }
    }

    #[test]
    fn instants_read_back(
        text in prop_oneof![text(), misspelt("2026-01-31T12:00:00.5Z")],
        millis in 0i64..253_402_300_799_999,
        any: i64,
    ) {
        if let Ok(instant) = text.parse::<Timestamp>() {
            prop_assert_eq!(instant.to_string().parse::<Timestamp>().unwrap(), instant);
        }
        let instant = Timestamp::from_millis(millis);
        prop_assert_eq!(instant.to_string().parse::<Timestamp>().unwrap(), instant);
        let _ = Timestamp::from_millis(any).to_string();
    }

    /// Unit tests beside the parser show that every formatted duration reads back; here the text is random.
    #[test]
    fn durations_are_read_or_refused(text in prop_oneof![text(), "[0-9]{0,30}\\.?[0-9]{0,12} ?[a-zµ]{0,7}( [0-9]{1,20}[smhdwy])?"]) {
        match parse_duration(&text) {
            Ok(duration) => {
                // Longer durations are formatted as the longest.
                let written = format_duration(duration);
                prop_assert_eq!(format_duration(parse_duration(&written).unwrap()), written);
            }
            Err(error) => check_error(&error.to_string(), "such as 250ms, 1s")?,
        }
    }

    /// Unit tests beside the parser feed random text; here the text is nearly a date, and the delay is bounded.
    #[test]
    fn a_misspelt_retry_after_asks_for_nothing_absurd(
        value in prop_oneof![
            misspelt("Fri, 06 Nov 2026 08:49:37 GMT"),
            misspelt("Friday, 06-Nov-26 08:49:37 GMT"),
            misspelt("Fri Nov  6 08:49:37 2026"),
            "[A-Z][a-z]{2}, [0-9]{1,2} [A-Z][a-z]{2} [0-9]{1,5} [0-9]{1,2}:[0-9]{2}:[0-9]{2} GMT",
            "[0-9]{1,40}",
        ],
        now: i64,
    ) {
        if let Some(wait) = parse_retry_after(&value, Timestamp::from_millis(now)) {
            let class = FailureClass::retry_after(wait);
            let situation = Situation::new(
                &RetryPolicy::bus(), Identity::new(1, "e", "s"), 1, Outcome::Failed(class), Timestamp::from_millis(now),
            );
            let _ = decide(&situation);
        }
    }

    #[test]
    fn the_command_line_reads_moments_and_shows_payloads(text in prop_oneof![text(), misspelt("2026-01-31T12:00:00Z"), misspelt("2h 5m")]) {
        if let Err(error) = time_format::parse(&text) {
            check_error(&error, "such as 30m or 7d")?;
        }
        let shown = payload::pretty(&text);
        // Indented by at most eighty columns for each character.
        prop_assert!(shown.len() <= text.len() * 90 + 10);
    }

    #[test]
    fn a_place_for_events_is_a_file_or_a_server(text in prop_oneof![text(), "(sqlite|file|postgres|postgresql|mysql|[a-z ]{0,3}):/{0,3}.{0,20}"]) {
        let location = Location::of(&text);
        match &location {
            // The displayed location parses to the same location.
            Location::Sqlite(path) => {
                let path = path.to_str().unwrap();
                prop_assert_eq!(text.strip_prefix("sqlite:").unwrap_or(&text), path);
                prop_assert_eq!(location.to_string(), path);
            }
            Location::Postgres(address) => {
                prop_assert_eq!(address, &text);
                prop_assert!(location.to_string().starts_with("postgres"));
            }
        }
        match text.parse::<database::Database>() {
            Ok(database) => {
                prop_assert_eq!(database.to_string(), location.to_string());
                prop_assert_eq!(database.path().is_some(), database.address().is_none());
            }
            Err(error) => check_error(&error, "give the path of a file")?,
        }
    }

    /// clap repeats a refused value, so a value with a password is not refused there; later messages do not repeat it.
    #[test]
    fn the_database_of_a_command_is_never_shown_with_its_password(
        scheme in prop_oneof![misspelt("postgres://"), misspelt("postgresql://"), Just("mysql://".to_owned())],
        password in "[þ@:/?#%&= ]{0,8}þ",
    ) {
        let text = format!("{scheme}anna:{password}@host/shop");
        if !scheme.contains("//") || scheme.contains('þ') {
            return Ok(()); // may be a file name, or no password is shown
        }
        let database: database::Database = text.parse().unwrap();
        let shown = format!("{database} {database:?} {}", database.flag());
        prop_assert!(!shown.contains('þ'), "{text}: {shown}");
        let address = database.address().unwrap();
        if let Err(failure::Failure::Usage(why)) = database::check_scheme(address) {
            prop_assert!(!why.contains('þ'), "{text}: {why}");
            check_error(&why, "give the path of a file, or postgres://")?;
        }
    }

    #[test]
    fn rates_are_whole_numbers_by_the_second(text in prop_oneof![text(), misspelt("50/s"), "[0-9]{1,12}(/s)?"], rate in 1u32..=1000) {
        match text.parse::<rate::Rate>() {
            Ok(read) => {
                prop_assert!((1..=1000).contains(&read.0));
                prop_assert_eq!(read.0.to_string().parse(), Ok(read));
            }
            Err(error) => check_error(&error, "such as 50/s")?,
        }
        prop_assert_eq!(format!("{rate}/s").parse(), Ok(rate::Rate(rate)));
    }

    #[test]
    fn payloads_on_the_command_line_are_kept_to_the_letter(
        text in prop_oneof![text(), misspelt(r#"{"order": 7, "of": [1.10, null]}"#), "[\\[{]{0,300}"],
        value in anything(),
        space in "[ \t\r\n]{0,3}",
    ) {
        match payload::parse(&text) {
            Ok(read) => {
                prop_assert_eq!(read.get(), text.trim());
                let again = payload::parse(read.get()).unwrap();
                prop_assert_eq!(again.get(), read.get());
            }
            Err(error) => check_error(&error, "quote it whole, such as")?,
        }
        let written = value.to_string();
        let read = payload::parse(&format!("{space}{written}{space}")).unwrap();
        prop_assert_eq!(read.get(), written);
    }

    #[test]
    fn idempotency_keys_are_what_they_say_and_nothing_else(text in text()) {
        let is_one = (1..=255).contains(&text.len()) && !text.chars().any(char::is_control);
        match IdempotencyKey::new(text.as_str()) {
            Ok(key) => {
                prop_assert!(is_one);
                prop_assert_eq!(key.as_str(), text.as_str());
                prop_assert_eq!(&IdempotencyKey::new(key.to_string()).unwrap(), &key);
                let json = serde_json::to_string(&key).unwrap();
                prop_assert_eq!(serde_json::from_str::<IdempotencyKey>(&json).unwrap(), key);
            }
            Err(error) => {
                prop_assert!(!is_one);
                check_error(&error.to_string(), "use 1 to 255 bytes without control characters")?;
                prop_assert!(serde_json::from_value::<IdempotencyKey>(text.into()).is_err());
            }
        }
    }

    /// Random content of the table is the result or an error that says so. The operation does not run again.
    #[test]
    fn a_stored_result_is_read_or_refused_and_nothing_runs_again(
        stored in prop_oneof![text(), anything().prop_map(|value| value.to_string()), misspelt(r#"{"charged":true,"cents":7}"#)],
    ) {
        let store = Arc::new(MemoryStore::new(Clock::system()));
        let (key, owner) = (IdempotencyKey::new("charge/7").unwrap(), OwnerToken::new());
        let manager = RetryManager::builder().idempotency_store(store.clone()).build();
        let (category, minute) = (Category::KvPut, Duration::from_secs(60));
        in_runtime(async {
            store.begin(&key, Fingerprint::default(), owner, minute).await.unwrap();
            store.complete(&key, owner, &stored, None, minute).await.unwrap();
        });
        macro_rules! read_as {
            ($($kind:ty),*) => {$(
                let call = manager.execute(&category, "charge").idempotent(key.clone());
                let read = call.run_blocking(|_| -> Result<$kind, std::io::Error> { panic!("it ran again") });
                match (read, serde_json::from_str::<$kind>(&stored)) {
                    (Ok(read), Ok(expected)) => prop_assert_eq!(read, expected),
                    (Err(error), Err(_)) => {
                        prop_assert_eq!(error.reason(), &RetryErrorReason::UnreadableResult);
                        check_error(&error.to_string(), "read it as that type, or clear the key")?;
                    }
                    (read, expected) => prop_assert!(false, "{:?}, and not {:?}", read, expected),
                }
            )*};
        }
        read_as!(Value, u32, String, (), Option<f64>, Vec<bool>, std::collections::BTreeMap<String, Value>);
    }

    /// An operation returns its first result every time.
    #[test]
    fn results_read_back(value in anything(), float: f64, text in text(), nested: Option<(i128, Vec<Option<bool>>)>) {
        let store = Arc::new(MemoryStore::new(Clock::system()));
        let manager = RetryManager::builder().idempotency_store(store).build();
        let result = (value, Some(float).filter(|float| float.is_finite()), text, nested);
        for _ in 0..2 {
            let call = manager.execute(&Category::KvPut, "charge").idempotent(IdempotencyKey::new("k").unwrap());
            let read = call.run_blocking(|_| Ok::<_, std::io::Error>(result.clone())).unwrap();
            prop_assert_eq!(&read, &result);
        }
    }

    #[test]
    fn fingerprints_are_short(error in prop_oneof![text(), "[a-z0-9\"`:#. -]{0,600}"]) {
        let shape = fingerprint(&error);
        prop_assert!(shape.chars().count() <= 512, "{shape}");
        prop_assert_eq!(fingerprint(&error), shape);
    }

    #[test]
    fn rules_read_back(
        text in prop_oneof![
            text(),
            "(type|message|status|class|colour):.{0,20}",
            "status:[0-9]{0,5}(xx)?",
            "class:[a-z]{1,12}",
        ],
    ) {
        match text.parse::<ErrorRule>() {
            Ok(rule) => {
                prop_assert_eq!(&rule.to_string().parse::<ErrorRule>().unwrap(), &rule);
                let failure = Failure::new(text.clone());
                let _ = (rule.matches(&failure), Rules::new().non_retryable(rule).class_of(&failure));
            }
            Err(error) => prop_assert!(error.to_string().len() <= MAX_ERROR_CHARS, "{}", error.to_string().len()),
        }
    }

    #[test]
    fn jitter_and_ratios_read_back(text in prop_oneof![text(), "[0-9.]{1,12}%", "0\\.\\.[0-9]{1,9}(ms|s|h)"], any in anything()) {
        match text.parse::<Jitter>() {
            Ok(jitter) => prop_assert_eq!(jitter.to_string().parse::<Jitter>().unwrap(), jitter),
            Err(error) => check_error(&error.to_string(), "none, 10%, 0..1s, full, equal")
                .or_else(|_| check_error(&error.to_string(), "from 0 to 1"))?,
        }
        if let Ok(ratio) = serde_json::from_value::<Ratio>(any) {
            prop_assert_eq!(serde_json::from_value::<Ratio>(json!(ratio)).unwrap(), ratio);
        }
    }

    #[test]
    fn categories_read_back(any in prop_oneof![anything(), "RETRY_[A-Z_]{1,12}".prop_map(Value::from)]) {
        if let Ok(category) = serde_json::from_value::<Category>(any) {
            prop_assert_eq!(serde_json::from_value::<Category>(json!(category)).unwrap(), category);
        }
    }
}

/// All field names of a policy.
const POLICY_FIELDS: &[&str] = &[
    "max_attempts",
    "maxAttempts",
    "MaxAttempts",
    "max_retries",
    "maxRetries",
    "DEFAULT_MAX_RETRIES",
    "base_delay",
    "initial_interval",
    "InitialInterval",
    "baseDelayMs",
    "base_delay_ms",
    "BASE_DELAY_MS",
    "multiplier",
    "backoff_multiplier",
    "backoffMultiplier",
    "Multiplier",
    "max_delay",
    "max_interval",
    "MaxInterval",
    "maxDelayMs",
    "max_delay_ms",
    "MAX_DELAY_MS",
    "jitter",
    "Jitter",
    "jitter_enabled",
    "jitter_factor",
    "attempt_timeout",
    "timeout",
    "timeoutMs",
    "timeout_ms",
    "deadline",
    "non_retryable",
    "non_retryable_exceptions",
    "retryable",
    "retryable_exceptions",
    "max_retires",
];

/// A value that is likely to fit its field.
fn fitting_policy() -> impl Strategy<Value = Value> {
    (
        proptest::option::of(1u32..1_000_000),
        proptest::option::of("[0-9]{1,5}(ms|s|m)"),
        proptest::option::of(1.0f64..1000.0),
        proptest::option::of("[0-9]{1,5}(s|m|h)"),
        proptest::option::of(prop_oneof!["none|full|equal", "[0-9]{1,2}%", "0\\.\\.[0-9]{1,4}ms"]),
        proptest::option::of("[0-9]{1,4}s"),
        proptest::collection::vec("(message:[a-z ]{1,10}|status:[45]xx|class:timeout|any)", 0..3),
    )
        .prop_map(|(attempts, base, multiplier, longest, jitter, deadline, rules)| {
            let mut map = Map::new();
            let mut add = |name: &str, value: Option<Value>| {
                if let Some(value) = value {
                    map.insert(name.to_owned(), value);
                }
            };
            add("max_attempts", attempts.map(Value::from));
            add("base_delay", base.map(Value::from));
            add("multiplier", multiplier.map(Value::from));
            add("max_delay", longest.map(Value::from));
            add("jitter", jitter.map(Value::from));
            add("deadline", deadline.map(Value::from));
            add("non_retryable", Some(rules.into()));
            Value::Object(map)
        })
}

fn use_policy(policy: &RetryPolicy) -> Result<(), TestCaseError> {
    let identity = Identity::new(7, "event", "subscription");
    for attempt in [0, 1, 2, 3, 40, u32::MAX] {
        let range = policy.backoff().range(attempt, None);
        let delay = policy.backoff().delay(attempt, None, identity);
        prop_assert!(range.min() <= delay && delay <= range.max());
        prop_assert!(delay <= RetryPolicy::MAX_DURATION * 2, "{delay:?} by {policy:?}");
        let failed = Outcome::Failed(FailureClass::Transient);
        let record = DecisionRecord::decide(Situation::new(
            policy,
            identity,
            attempt.max(1),
            failed,
            Timestamp::EPOCH,
        ));
        prop_assert_eq!(record.verify(), Ok(()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn policies_are_refused_or_work_and_read_back(document in prop_oneof![document(POLICY_FIELDS), anything(), fitting_policy()]) {
        match serde_json::from_value::<RetryPolicy>(document.clone()) {
            Ok(policy) => {
                use_policy(&policy)?;
                let written = serde_json::to_string(&policy).unwrap();
                let back: RetryPolicy = serde_json::from_str(&written).unwrap();
                prop_assert_eq!(&back, &policy, "{} became {}", document, written);
                prop_assert_eq!(serde_json::to_string(&back).unwrap(), written);
            }
            // The JSON parser quotes the unexpected value, at most the input.
            Err(error) => prop_assert!(error.to_string().len() <= MAX_ERROR_CHARS + 2 * document.to_string().len()),
        }
    }

    #[test]
    fn overrides_are_refused_or_read_back_and_merge(one in document(POLICY_FIELDS), two in fitting_policy()) {
        let read = |document: Value| serde_json::from_value::<RetryOverride>(document).ok();
        let all: Vec<RetryOverride> = [one, two].into_iter().filter_map(read).collect();
        for each in &all {
            let written = serde_json::to_string(each).unwrap();
            prop_assert_eq!(&serde_json::from_str::<RetryOverride>(&written).unwrap(), each, "{}", written);
        }
        for preset in [RetryPolicy::bus(), RetryPolicy::webhook(), RetryPolicy::scheduler(), RetryPolicy::call()] {
            if let Ok(policy) = RetryOverride::merge(&all, &preset) {
                use_policy(&policy)?;
            }
        }
    }

    #[test]
    fn breakers_are_refused_or_read_back(document in document(&[
        "failure_ratio", "min_samples", "window", "open_for", "open_growth", "max_open_for", "probe_lease", "more",
    ])) {
        if let Ok(config) = serde_json::from_value::<BreakerConfig>(document) {
            let written = serde_json::to_string(&config).unwrap();
            prop_assert_eq!(serde_json::from_str::<BreakerConfig>(&written).unwrap(), config);
            let mut breaker = redrive_retry::breaker::Breaker::new(config);
            for now in [0, 1, i64::MAX, i64::MIN, 5] {
                let now = Timestamp::from_millis(now);
                if let Ok(admission) = breaker.admit(now) {
                    breaker.record(admission, false, now);
                }
                let _ = breaker.snapshot(now);
            }
        }
    }
}

fn record() -> Value {
    let situation = Situation::new(
        &RetryPolicy::builder().deadline(Duration::from_secs(60)).build().unwrap(),
        Identity::new(7, "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19", "shipping"),
        2,
        Outcome::Failed(FailureClass::retry_after(Duration::from_secs(3))),
        Timestamp::from_millis(1_767_225_600_000),
    );
    serde_json::to_value(DecisionRecord::decide(situation)).unwrap()
}

fn audit_events() -> Vec<Value> {
    let common = json!({"retry_category": "RETRY_KV_PUT", "operation": "shipping", "tenant_id": null,
        "correlation_id": "c", "trace_id": null, "timestamp": "2026-01-25T21:15:00Z"});
    let with = |more: Value| {
        let mut all = common.as_object().unwrap().clone();
        all.extend(more.as_object().unwrap().clone());
        Value::Object(all)
    };
    vec![
        with(
            json!({"event_type": "retry_attempt", "attempt_number": 2, "max_attempts": 3, "delay_seconds": 1.05,
            "exception_type": "TimeoutError", "exception_message": "m"}),
        ),
        with(json!({"event_type": "retry_exhausted", "total_attempts": 3, "final_exception_type": "T",
            "final_exception_message": "m"})),
        with(json!({"event_type": "idempotency", "idempotency_key": "k", "action": "hit"})),
        json!({"event_type": "retry_decision", "retry_category": "RETRY_KV_PUT", "operation": "shipping",
            "record": record()}),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Unit tests beside the record flip single bits; here whole values change consistently.
    #[test]
    fn a_forged_record_is_survived(forged in damaged(record())) {
        if let Ok(read) = serde_json::from_value::<DecisionRecord>(forged.clone()) {
            let _ = read.verify().map_err(|discrepancy| discrepancy.to_string());
            // Also with a valid digest: then the decision is computed from the forged values.
            let _ = decide(read.situation());
            let resealed = DecisionRecord::of(read.situation().clone(), read.decision());
            let _ = resealed.verify().map_err(|discrepancy| discrepancy.to_string());
            let back: DecisionRecord = serde_json::from_value(json!(resealed)).unwrap();
            prop_assert_eq!(back, resealed);
        }
        if let Ok(backoff) = serde_json::from_value::<Backoff>(forged["situation"]["backoff"].clone()) {
            for attempt in [0, 2, 3, u32::MAX] {
                let _ = backoff.delay(attempt, Some(Duration::MAX), Identity::new(1, "e", "s"));
            }
        }
    }

    #[test]
    fn audit_events_are_refused_or_read_back(
        event in prop_oneof![
            proptest::sample::select(audit_events()).prop_flat_map(damaged),
            anything(),
        ],
    ) {
        if let Ok(read) = serde_json::from_value::<AuditEvent>(event.clone()) {
            prop_assert_eq!(serde_json::from_value::<AuditEvent>(json!(read)).unwrap(), read);
        }
        if let Ok(read) = serde_json::from_value::<RetryLogEntry>(event) {
            prop_assert_eq!(serde_json::from_value::<RetryLogEntry>(json!(read)).unwrap(), read);
        }
    }

    #[test]
    fn a_line_of_an_audit_log_is_judged_whatever_it_is(
        event in proptest::sample::select(audit_events()).prop_flat_map(damaged),
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        place: proptest::sample::Index,
    ) {
        let mut text = serde_json::to_vec(&event).unwrap();
        let _ = line::judge(&text);
        let _ = line::judge(&bytes);
        let at = place.index(text.len());
        text.splice(at..at, bytes);
        if let line::Verdict::Unreadable(why) | line::Verdict::Discrepancy(why) = line::judge(&text) {
            prop_assert!(why.len() <= 4 * MAX_ERROR_CHARS && !why.chars().any(char::is_control), "{:?}", why);
        }
        text.truncate(at);
        let _ = line::judge(&text);
    }

    #[test]
    fn lines_are_all_of_the_file_and_nothing_else(bytes in proptest::collection::vec(prop_oneof![4 => any::<u8>(), 1 => Just(b'\n')], 0..400)) {
        let mut lines = lines::Lines::new(&bytes[..]);
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            let lines::Line::Whole(line) = line else { return Err(TestCaseError::fail("too long?")) };
            all.extend_from_slice(line);
            all.push(b'\n');
        }
        if !bytes.is_empty() && bytes.last() != Some(&b'\n') {
            all.pop();
        }
        prop_assert_eq!(all, bytes);
    }
}

mod in_a_bus {
    //! Sends random input through a bus: accepted values are stored exactly, refused ones cause an error.

    use super::*;
    use redrive::retry::ClassifyError;
    use redrive::testing::TestBus;
    use redrive::{BusError, Event};

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    const MAX_PAYLOAD: usize = 1000;

    async fn bus() -> TestBus {
        let bus = TestBus::with(|builder| builder.max_payload(MAX_PAYLOAD)).await.unwrap();
        bus.subscribe("*", |event: Event| async move {
            let error: String = event.metadata().get("error").cloned().unwrap_or_default();
            let _ = event.trace_context();
            if error.is_empty() { Ok(()) } else { Err(error.permanent()) }
        })
        .breaker(BreakerConfig::builder().min_samples(u32::MAX).build().unwrap())
        .register()
        .unwrap();
        bus.start().await.unwrap();
        bus
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn payload_and_metadata_are_kept_to_the_letter(
            events in proptest::collection::vec(
                (anything(), proptest::collection::btree_map(text(), text(), 0..4), text()), 1..8),
        ) {
            runtime().block_on(async {
                let bus = bus().await;
                for (payload, metadata, traceparent) in events {
                    let mut publish = bus.bus().publish("x", &payload);
                    for (name, value) in &metadata {
                        publish = publish.metadata(name, value);
                    }
                    publish = publish.metadata("traceparent", &traceparent);
                    let id = EventId::new();
                    let mut expected = metadata.clone();
                    expected.insert("traceparent".to_owned(), traceparent);
                    let bytes: usize = expected.iter().map(|(name, value)| name.len() + value.len()).sum();
                    let text = serde_json::to_string(&payload).unwrap();
                    match bus.run(publish.id(id)).await {
                        Ok(_) => {
                            prop_assert!(text.len() <= MAX_PAYLOAD && bytes <= NewEvent::MAX_METADATA_BYTES);
                            let shown = bus.store().event(id).await.unwrap();
                            prop_assert_eq!(shown.payload.get(), text);
                            prop_assert_eq!(shown.metadata, expected);
                        }
                        Err(BusError::Store(StoreError::PayloadTooLarge { bytes, limit })) => {
                            prop_assert_eq!((bytes, limit), (text.len(), MAX_PAYLOAD));
                            prop_assert!(bytes > limit);
                        }
                        Err(BusError::Store(StoreError::MetadataTooLarge { bytes: found, limit })) => {
                            prop_assert_eq!((found, limit), (bytes, NewEvent::MAX_METADATA_BYTES));
                            prop_assert!(found > limit);
                        }
                        Err(other) => return Err(TestCaseError::fail(other.to_string())),
                    }
                }
                Ok(())
            })?;
        }

        /// An error text of a handler is stored exactly up to its limit: in the event, in its attempts and in the
        /// dead-letter queue, and is found there.
        #[test]
        fn errors_are_kept_to_the_letter(errors in proptest::collection::vec(text(), 1..6)) {
            runtime().block_on(async {
                let bus = bus().await;
                for error in errors.iter().filter(|error| !error.is_empty() && error.len() < 8000) {
                    let id = bus.run(bus.bus().publish("x", &1).metadata("error", error)).await.unwrap();
                    let shown = bus.store().event(id).await.unwrap();
                    prop_assert_eq!(shown.status, EventStatus::Dlq);
                    prop_assert_eq!(&shown.errors, std::slice::from_ref(error));
                    prop_assert_eq!(&shown.attempts[0].error, error);
                    let letters = bus.dlq().get(id).await.unwrap();
                    prop_assert_eq!(&letters[0].errors, std::slice::from_ref(error));
                    let filter = DlqFilter { text: Some(error.clone()), ..DlqFilter::default() };
                    let found = bus.dlq().list(filter, DlqPage::default()).await.unwrap();
                    prop_assert!(found.iter().any(|letter| letter.id == id), "{error:?} is not found by its own text");
                    let filter = DlqFilter { fingerprint: Some(fingerprint(error)), ..DlqFilter::default() };
                    let found = bus.dlq().list(filter.clone(), DlqPage::default()).await.unwrap();
                    prop_assert!(found.iter().any(|letter| letter.id == id));
                    prop_assert!(bus.dlq().groups(filter).await.unwrap().iter().any(|group| group.count > 0));
                }
                let mut out = Vec::new();
                bus.dlq().export(DlqFilter::default(), &mut out).await.unwrap();
                for line in out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                    serde_json::from_slice::<Value>(line).unwrap();
                }
                Ok(())
            })?;
        }

        #[test]
        fn filters_and_pages_of_every_kind_are_answered(
            text in text(), fingerprint in text(), reason in text(),
            times: (i64, i64), offset: u32, limit: u32, cursor: [i64; 3], after: i64,
        ) {
            runtime().block_on(async {
                let bus = bus().await;
                bus.run(bus.bus().publish("x", &1).metadata("error", "e")).await.unwrap();
                let filter = DlqFilter {
                    event_type: Some(EventType::new("x").unwrap()),
                    since: Some(Timestamp::from_millis(times.0)),
                    until: Some(Timestamp::from_millis(times.1)),
                    reason: Some(reason),
                    text: Some(text),
                    fingerprint: Some(fingerprint),
                    subscription: None,
                };
                let cursor = format!("{}.{}.{}", cursor[0], cursor[1], cursor[2]).parse().unwrap();
                let page = DlqPage { offset, limit, after: Some(cursor) };
                prop_assert!(bus.dlq().list(filter.clone(), page).await.unwrap().len() <= 1);
                prop_assert!(bus.dlq().list(DlqFilter::default(), page).await.unwrap().len() <= 1);
                bus.dlq().groups(filter).await.unwrap();
                let page = EventPage { limit, after: Some(after) };
                prop_assert!(bus.store().events(EventFilter::default(), page).await.unwrap().len() <= 1);
                bus.dlq().purge_older_than(Duration::MAX).await.unwrap();
                bus.dlq().purge_until(Timestamp::from_millis(times.0)).await.unwrap();
                bus.store().purge_done(Timestamp::from_millis(times.1), limit).await.unwrap();
                Ok(())
            })?;
        }

        /// An absurd due time is accepted: long past, or never.
        #[test]
        fn a_due_time_of_every_kind_is_taken(due: i64, delay: u64) {
            runtime().block_on(async {
                let bus = bus().await;
                let id = bus.bus().publish("x", &1).due_at(Timestamp::from_millis(due)).enqueue().await.unwrap();
                let delay = Duration::from_millis(delay);
                let delayed = bus.bus().publish("x", &1).delay(delay).enqueue().await.unwrap();
                bus.advance(Duration::from_secs(1)).await;
                for (id, is_due) in [
                    (id, due <= bus.time().now().as_millis()),
                    (delayed, delay <= Duration::from_secs(1)),
                ] {
                    let expected = if is_due { EventStatus::Done } else { EventStatus::Pending };
                    prop_assert_eq!(bus.store().event(id).await.unwrap().status, expected);
                }
                Ok(())
            })?;
        }
    }

    #[test]
    fn the_limits_hold_to_the_byte() {
        runtime().block_on(async {
            let bus = bus().await;
            let of = |bytes: usize| "x".repeat(bytes - 2);
            bus.bus().publish("x", &of(MAX_PAYLOAD)).enqueue().await.unwrap();
            let error = bus.bus().publish("x", &of(MAX_PAYLOAD + 1)).enqueue().await.unwrap_err();
            assert!(error.to_string().contains("larger than the limit of 1000"), "{error}");
            let meta =
                |bytes: usize| bus.bus().publish("x", &1).metadata("a", "x".repeat(bytes - 1)).enqueue();
            meta(NewEvent::MAX_METADATA_BYTES).await.unwrap();
            let error = meta(NewEvent::MAX_METADATA_BYTES + 1).await.unwrap_err();
            assert!(error.to_string().contains("put large values into the payload"), "{error}");
            let one = bus.bus().publish("x", &1).into_event().unwrap();
            let batch = |events: usize| {
                (0..events)
                    .map(|_| NewEvent { id: EventId::new(), payload: Arc::from("1"), ..one.clone() })
                    .collect()
            };
            bus.store().append(batch(NewEvent::MAX_BATCH_EVENTS)).await.unwrap();
            let error = bus.store().append(batch(NewEvent::MAX_BATCH_EVENTS + 1)).await.unwrap_err();
            assert!(error.to_string().contains("publish it in parts"), "{error}");
        });
    }
}
