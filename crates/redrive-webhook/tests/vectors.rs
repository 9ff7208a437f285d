//! The shared vectors of signatures in `clients/vectors`, which the TypeScript and the Python client verify: this crate signs the genuine
//! ones alike.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use redrive_webhook::Secret;
use serde_json::Value;

#[test]
fn genuine_messages_of_the_shared_vectors_are_signed_alike() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/vectors/signatures.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut signed = 0;
    for case in file["cases"].as_array().unwrap().iter().filter(|case| case["valid"] == true) {
        let header = |name: &str| case["headers"][name].as_str().unwrap();
        let (id, at) = (header("webhook-id"), header("webhook-timestamp").parse().unwrap());
        let secrets: Vec<&str> =
            case["secrets"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        if secrets.iter().any(|secret| secret.starts_with("whpk_")) {
            continue; // a receiver of v1a has the public key only
        }
        let found = secrets.iter().any(|secret| {
            let ours =
                secret.parse::<Secret>().unwrap().sign(id, at, case["body"].as_str().unwrap().as_bytes());
            header("webhook-signature").split(' ').any(|theirs| theirs == ours)
        });
        assert!(found, "{}", case["name"]);
        signed += 1;
    }
    assert!(signed >= 12, "{signed} genuine messages");
}
