//! The shared vectors in `clients/vectors`: Rust, TypeScript and Python compute the same delays, decisions and keys.
//!
//! `UPDATE_VECTORS=1 cargo test -p redrive-retry --test vectors` writes the files anew.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::path::PathBuf;
use std::time::Duration;

use redrive_retry::breaker::BreakerSnapshot;
use redrive_retry::budget::BudgetSnapshot;
use redrive_retry::decision::{Identity, Outcome, Situation, decide};
use redrive_retry::idempotency::IdempotencyKey;
use redrive_retry::{FailureClass, Jitter, RetryPolicy, Timestamp};
use serde_json::{Value, json};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../clients/vectors").join(name)
}

/// The cases of a file, which is written first if the environment asks for it.
fn cases(name: &str, about: &str, make: impl FnOnce() -> Vec<Value>) -> Vec<Value> {
    if std::env::var_os("UPDATE_VECTORS").is_some() {
        let cases: Vec<String> = make().iter().map(|case| format!("    {case}")).collect();
        let text = format!(
            "{{\n  \"description\": {},\n  \"cases\": [\n{}\n  ]\n}}\n",
            json!(about),
            cases.join(",\n")
        );
        std::fs::write(path(name), text).unwrap();
    }
    let text = std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut file: Value = serde_json::from_str(&text).unwrap();
    let cases: Vec<Value> = file["cases"].as_array_mut().unwrap().drain(..).collect();
    assert!(cases.len() >= 12, "{name} has {} cases", cases.len());
    cases
}

/// Numbers that look random and are the same at every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn one_of<T: Clone>(&mut self, values: &[T]) -> T {
        values[usize::try_from(self.below(values.len() as u64)).unwrap()].clone()
    }

    fn jitter(&mut self) -> Value {
        let kinds = [
            json!({"kind": "none"}),
            json!({"kind": "full"}),
            json!({"kind": "equal"}),
            json!({"kind": "additive", "ms": 1000}),
            json!({"kind": "proportional", "factor": 0.1}),
            json!({"kind": "proportional", "factor": 0.25}),
        ];
        self.one_of(&kinds)
    }

    fn policy(&mut self) -> Value {
        let base = self.one_of(&[1u64, 100, 500, 1000, 2000]);
        json!({
            "max_attempts": self.one_of(&[1u32, 3, 5, 8]), "base_delay_ms": base,
            "max_delay_ms": base * self.one_of(&[1u64, 4, 60, 3600]),
            "multiplier": self.one_of(&[1.0, 1.5, 2.0, 3.25]), "jitter": self.jitter(),
        })
    }
}

fn jitter(value: &Value) -> Jitter {
    match value["kind"].as_str().unwrap() {
        "none" => Jitter::None,
        "full" => Jitter::Full,
        "equal" => Jitter::Equal,
        "additive" => Jitter::Additive(Duration::from_millis(value["ms"].as_u64().unwrap())),
        "proportional" => Jitter::proportional(value["factor"].as_f64().unwrap()).unwrap(),
        other => panic!("{other}"),
    }
}

fn policy(value: &Value) -> RetryPolicy {
    if value["growth"] == "standard_webhooks" {
        return RetryPolicy::standard();
    }
    let millis = |name: &str| Duration::from_millis(value[name].as_u64().unwrap());
    RetryPolicy::builder()
        .max_attempts(u32::try_from(value["max_attempts"].as_u64().unwrap()).unwrap())
        .base_delay(millis("base_delay_ms"))
        .max_delay(millis("max_delay_ms"))
        .multiplier(value["multiplier"].as_f64().unwrap())
        .jitter(jitter(&value["jitter"]))
        .build()
        .unwrap()
}

fn delay_ms(case: &Value) -> u64 {
    let seed = case["seed"].as_str().unwrap().parse().unwrap();
    let name = |name: &str| case["identity"][name].as_str().unwrap();
    let identity = Identity::new(seed, name("event"), name("subscription"));
    let attempt = u32::try_from(case["attempt"].as_u64().unwrap()).unwrap();
    let minimum = case["retry_after_ms"].as_u64().map(Duration::from_millis);
    u64::try_from(policy(&case["policy"]).backoff().delay(attempt, minimum, identity).as_millis()).unwrap()
}

#[test]
fn the_delays_of_the_shared_vectors() {
    let about = "Wait before an attempt. A seed is an unsigned 64-bit number as text.";
    let make = || {
        let mut numbers = Numbers(1);
        let standard = json!({"max_attempts": 10, "base_delay_ms": 5000, "max_delay_ms": 86_400_000, "multiplier": 1.0,
            "jitter": {"kind": "proportional", "factor": 0.1}, "growth": "standard_webhooks"});
        let mut case = |index: u32| {
            let policy = if index.is_multiple_of(8) { standard.clone() } else { numbers.policy() };
            let mut case = json!({
                "policy": policy,
                "seed": numbers.one_of(&["0", "42", "9007199254740993", "18446744073709551615"]),
                "identity": {
                    "event": numbers.one_of(&["", "order-1", "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19", "évènement"]),
                    "subscription": numbers.one_of(&["shipping", "billing", ""]),
                },
                "attempt": numbers.one_of(&[1u32, 2, 2, 3, 4, 7, 40, 4_000_000_000]),
                "retry_after_ms": numbers.one_of(&[None, None, Some(0u64), Some(1500), Some(600_000)]),
            });
            case["delay_ms"] = json!(delay_ms(&case));
            case
        };
        (0..160).map(&mut case).collect()
    };
    for case in cases("delays.json", about, make) {
        assert_eq!(json!(delay_ms(&case)), case["delay_ms"], "{case}");
    }
}

#[test]
fn the_decisions_of_the_shared_vectors() {
    let about =
        "Next step after an attempt, in the form of decision records. Times are milliseconds since 1970.";
    let make = || {
        let mut numbers = Numbers(2);
        let now = Timestamp::from_millis(1_767_225_600_000);
        let mut case = |_| {
            let policy = policy(&numbers.policy());
            let throttled = |after| Outcome::Failed(FailureClass::Throttled { retry_after: after });
            let outcome = numbers.one_of(&[
                Outcome::Succeeded,
                Outcome::Refused,
                Outcome::Failed(FailureClass::Transient),
                Outcome::Failed(FailureClass::Transient),
                Outcome::Failed(FailureClass::Timeout),
                Outcome::Failed(FailureClass::Permanent),
                Outcome::Failed(FailureClass::Crashed),
                throttled(None),
                throttled(Some(90_000)),
                throttled(Some(400 * 86_400_000)),
            ]);
            let (event, subscription) =
                (numbers.one_of(&["order-1", "order-2"]), numbers.one_of(&["shipping", "mail"]));
            let identity = Identity::new(numbers.below(1 << 31), event, subscription);
            let attempt = numbers.one_of(&[1u32, 2, 3, 5]);
            let later = |millis: u64| now.plus_millis(millis);
            let situation = Situation {
                deadline_ms: numbers.one_of(&[None, None, Some(2000), Some(10_000_000)]),
                started_at: Timestamp::from_millis(
                    now.as_millis() - i64::try_from(numbers.below(100_000)).unwrap(),
                ),
                breaker: numbers.one_of(&[
                    BreakerSnapshot::Closed,
                    BreakerSnapshot::Closed,
                    BreakerSnapshot::Open { until: later(30_000) },
                    BreakerSnapshot::HalfOpen { until: later(100) },
                ]),
                budget: numbers.one_of(&[
                    BudgetSnapshot::Unlimited,
                    BudgetSnapshot::Granted,
                    BudgetSnapshot::Spent { again_at: None },
                    BudgetSnapshot::Spent { again_at: Some(later(7000)) },
                ]),
                ..Situation::new(&policy, identity, attempt, outcome, now)
            };
            json!({ "situation": &situation, "decision": decide(&situation) })
        };
        (0..160).map(&mut case).collect()
    };
    for case in cases("decisions.json", about, make) {
        let situation: Situation<'_> = serde_json::from_value(case["situation"].clone()).unwrap();
        assert_eq!(json!(decide(&situation)), case["decision"], "{case}");
    }
}

fn key(case: &Value) -> String {
    let text = |name: &str| case[name].as_str();
    let operation = text("operation").unwrap();
    let key = IdempotencyKey::compute(operation, text("tenant_id"), text("correlation_id"), &case["params"]);
    key.unwrap().as_str().to_owned()
}

#[test]
fn the_idempotency_keys_of_the_shared_vectors() {
    let about = "Key of an operation. The order of parameters does not matter.";
    let make = || {
        let params = [
            Value::Null,
            json!({}),
            json!({"switch_name": "all_execution"}),
            json!({"b": {"y": 900_719_925_474_099u64, "x": true}, "a": [1, 2.5, null, "é"]}),
            json!({"amount": -12, "note": "line\nbreak \"quoted\" \\ \u{1}", "tags": ["z", "a"]}),
            json!(["a list", 0, false]),
        ];
        let scopes = [(None, None), (Some("tenant-123"), Some("corr-456")), (Some(""), Some("абонент"))];
        let operations = ["charge", "kill_switch_update", "naïve operation"];
        let mut cases = Vec::new();
        for (index, params) in params.iter().enumerate() {
            for (tenant_id, correlation_id) in scopes {
                let operation = operations[(index + cases.len()) % operations.len()];
                let mut case = json!({ "operation": operation, "tenant_id": tenant_id,
                    "correlation_id": correlation_id, "params": params });
                case["key"] = json!(key(&case));
                cases.push(case);
            }
        }
        cases
    };
    for case in cases("idempotency_keys.json", about, make) {
        assert_eq!(json!(key(&case)), case["key"], "{case}");
    }
}
