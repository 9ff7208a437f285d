//! Operation ids, tags, scopes and descriptions of the operations.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::for_each_operation;

/// An operation by its route.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// Name of the function that generators write: verb and noun.
    pub(super) id: &'static str,
    /// Codes of problems of this operation, beside those that its shape implies (`problems::implied`).
    pub(super) problems: &'static [&'static str],
}

const fn op(
    method: &'static str,
    path: &'static str,
    id: &'static str,
    problems: &'static [&'static str],
) -> Operation {
    Operation { method, path, id, problems }
}

/// Every operation of `redrive serve` and of the scheduler service.
#[rustfmt::skip]
pub(super) const OPERATIONS: &[Operation] = &[
    op("post", "/v1/events", "publishEvent", &["id_taken", "in_progress", "other_payload", "reserved_type"]),
    op("post", "/v1/events/batch", "publishEvents", &["invalid_batch", "id_taken", "in_progress", "other_payload"]),
    op("get", "/v1/events", "listEvents", &[]),
    op("get", "/v1/events/{id}", "getEvent", &[]),
    op("post", "/v1/events/{id}/replay", "replayEvent", &["conflict"]),
    op("get", "/v1/stream", "streamEvents", &[]),
    op("get", "/v1/dlq", "listDeadLetters", &[]),
    op("delete", "/v1/dlq", "purgeDeadLetters", &[]),
    op("get", "/v1/dlq/groups", "listDeadLetterGroups", &[]),
    op("get", "/v1/dlq/{id}", "getDeadLetter", &["not_dead"]),
    op("post", "/v1/dlq/{id}/retry", "redriveDeadLetter", &["not_dead", "reserved_type"]),
    op("post", "/v1/dlq/retry", "redriveDeadLetters", &[]),
    op("get", "/v1/endpoints", "listEndpoints", &[]),
    op("post", "/v1/endpoints", "createEndpoint", &["conflict"]),
    op("get", "/v1/endpoints/{id}", "getEndpoint", &["conflict"]),
    op("patch", "/v1/endpoints/{id}", "updateEndpoint", &["conflict"]),
    op("delete", "/v1/endpoints/{id}", "deleteEndpoint", &["conflict"]),
    op("post", "/v1/endpoints/{id}/test", "testEndpoint", &["conflict"]),
    op("get", "/v1/endpoints/{id}/attempts", "listEndpointAttempts", &["conflict"]),
    op("get", "/v1/endpoints/{id}/secret", "listEndpointSecrets", &["conflict"]),
    op("post", "/v1/endpoints/{id}/secret/rotate", "rotateEndpointSecret", &["conflict"]),
    op("post", "/v1/endpoints/{id}/replays", "startReplay", &["conflict"]),
    op("get", "/v1/replays", "listReplays", &[]),
    op("get", "/v1/replays/{id}", "getReplay", &[]),
    op("post", "/v1/replays/{id}/cancel", "cancelReplay", &[]),
    op("get", "/v1/subscriptions", "listSubscriptions", &[]),
    op("get", "/v1/subscriptions/{name}", "getSubscription", &[]),
    op("put", "/v1/subscriptions/{name}", "putSubscription", &["conflict"]),
    op("delete", "/v1/subscriptions/{name}", "deleteSubscription", &["conflict"]),
    op("post", "/v1/subscriptions/{name}/pull", "pullEvents", &[]),
    op("post", "/v1/subscriptions/{name}/ack", "ackEvents", &[]),
    op("post", "/v1/subscriptions/{name}/nack", "nackEvents", &[]),
    op("post", "/v1/subscriptions/{name}/extend", "extendLeases", &[]),
    op("get", "/v1/review", "listReviewMessages", &[]),
    op("get", "/v1/review/{id}", "getReviewMessage", &[]),
    op("post", "/v1/review/{id}/retry", "releaseReviewMessage", &["not_in_review"]),
    op("post", "/v1/review/{id}/discard", "discardReviewMessage", &["not_in_review"]),
    op("get", "/v1/tokens", "listTokens", &[]),
    op("post", "/v1/tokens", "createToken", &["conflict"]),
    op("delete", "/v1/tokens/{id}", "revokeToken", &[]),
    op("get", "/v1/stats", "getStats", &[]),
    op("get", "/v1/diagnostics", "getDiagnostics", &[]),
    op("get", "/metrics", "getMetrics", &[]),
    op("get", "/healthz", "getHealth", &[]),
    op("get", "/health", "getHealthAlias", &[]),
    op("get", "/readyz", "getReadiness", &[]),
];

/// Descriptions of operations whose handlers have only a summary.
const DESCRIPTIONS: &[(&str, &str)] = &[
    ("listSubscriptions", "Pull subscriptions in the order of their names."),
    ("getSubscription", "The settings of a pull subscription; `getDiagnostics` counts its deliveries."),
    ("ackEvents", "`lost` names the leases that had ended: their events are delivered again."),
    (
        "nackEvents",
        "`failed` charges the attempt: the event is delivered again after `delay_ms`, or as the retry policy decides, and is \
         dead-lettered after the last attempt. `snooze` charges none. `permanent` dead-letters the event at once. `lost` names the \
         leases that had ended.",
    ),
    ("extendLeases", "The leases end `lease_ms` from now. `lost` names the leases that had ended."),
    ("getHealthAlias", "An alias of `/healthz`, for platforms that ask at this path."),
    (
        "getMetrics",
        "Counters and gauges of the responding process, and the depth of the queues in the database.",
    ),
    ("getReadiness", "For readiness checks of load balancers. Needs no token and is not limited."),
];

/// Tags and their descriptions, in the order of the reference.
const TAGS: &[(&str, &str)] = &[
    ("events", "Publish events, look them up, and watch them as they are published and as they end."),
    ("subscriptions", "Pull consumers: events fetched over HTTP under a lease, and settled by ack or nack."),
    ("endpoints", "Receivers of webhooks: their settings, secrets, health and attempts."),
    ("dlq", "The dead-letter queue: list, group, redrive and purge events whose retries are exhausted."),
    ("replays", "Send events to an endpoint again: one event, or all dead letters of the endpoint."),
    (
        "review",
        "Broker messages of the retry scheduler whose retries are exhausted, and decisions about them.",
    ),
    ("tokens", "Bearer tokens of the API and their scopes."),
    ("stats", "Counts of events and of work that waits."),
    ("metrics", "Metrics for Prometheus."),
    ("health", "Liveness and readiness checks. They need no token."),
];

/// Finds the operation of a route.
pub(super) fn find(method: &str, path: &str) -> Option<&'static Operation> {
    OPERATIONS.iter().find(|operation| operation.method == method && operation.path == path)
}

/// Completes every operation, and returns the tags that they use.
pub(super) fn complete(paths: &mut Value) -> Value {
    let mut used = BTreeSet::new();
    for_each_operation(paths, |method, path, operation| {
        let id = match find(method, path) {
            Some(known) => known.id.to_owned(),
            None => camel_case(operation["operationId"].as_str().unwrap_or_default()),
        };
        let scope = operation["security"][0]["token"][0].as_str().map(str::to_owned);
        operation["description"] = describe(&id, operation, scope.as_deref()).into();
        operation["operationId"] = id.into();
        operation["security"] = match scope {
            Some(_) => json!([{ "token": [] }]),
            None => json!([]),
        };
        if let Some(scope) = scope {
            operation["x-required-scope"] = scope.into();
        }
        let tags = operation["tags"].as_array().into_iter().flatten();
        used.extend(tags.filter_map(Value::as_str).map(str::to_owned));
        add_parameter_examples(operation);
        add_replayed_header(operation);
    });
    let used = TAGS.iter().filter(|(name, _)| used.contains(*name));
    used.map(|(name, description)| json!({ "name": name, "description": description })).collect()
}

/// The description of the handler, or that of the table, and the scope.
fn describe(id: &str, operation: &Value, scope: Option<&str>) -> String {
    let of_table = || DESCRIPTIONS.iter().find(|(of, _)| *of == id).map(|(_, text)| *text);
    let text = operation["description"].as_str().or_else(of_table).unwrap_or_default();
    let scope = scope.map(|scope| format!("Required scope: `{scope}`.")).unwrap_or_default();
    format!("{}\n\n{scope}", unwrap_lines(text)).trim().to_owned()
}

/// Joins the lines of each paragraph, which a doc comment wraps.
fn unwrap_lines(text: &str) -> String {
    text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}

/// `publish_event` becomes `publishEvent`.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |id, word| {
        let (head, tail) = word.split_at(word.len().min(1));
        id + &head.to_ascii_uppercase() + tail
    })
}

/// Adds an example to the parameters of the path, by their form.
fn add_parameter_examples(operation: &mut Value) {
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        let schema = &parameter["schema"];
        let form = (schema["format"].as_str(), schema["pattern"].as_str().and_then(|text| text.get(..3)));
        let example = match (parameter["in"].as_str(), form) {
            (Some("path"), (Some("uuid"), _)) => "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19",
            (Some("path"), (_, Some("^ep"))) => "ep_0190b3c47d2e7a118f006d5e4c3b2a19",
            (Some("path"), (_, Some("^rp"))) => "rp_0190b3c47d2e7a118f006d5e4c3b2a19",
            (Some("path"), _) => "billing",
            (Some("header"), _) if parameter["name"] == "Idempotency-Key" => "order-7-created",
            (Some("header"), _) if parameter["name"] == "traceparent" => {
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
            }
            _ => continue,
        };
        parameter["example"] = example.into();
    }
}

/// An operation with `Idempotency-Key` says whether its response is a recorded one.
fn add_replayed_header(operation: &mut Value) {
    let mut parameters = operation["parameters"].as_array().into_iter().flatten();
    if parameters.any(|parameter| parameter["name"] == "Idempotency-Key") {
        operation["responses"]["202"]["headers"]["Idempotency-Replayed"] = json!({
            "description": "`true` if this is the recorded response of an earlier request with the key",
            "schema": { "type": "string", "enum": ["true"] },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::camel_case;

    #[test]
    fn ids_of_unknown_operations_follow_the_name_of_the_handler() {
        assert_eq!(camel_case("list_events"), "listEvents");
        assert_eq!(camel_case("ack"), "ack");
        assert_eq!(camel_case(""), "");
    }
}
