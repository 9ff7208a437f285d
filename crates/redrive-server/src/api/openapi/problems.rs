//! The problems that each operation can answer with, as reusable responses.

use std::collections::BTreeMap;

use redrive_api::problem::MEDIA_TYPE;
use serde_json::{Value, json};

use super::for_each_operation;
use super::operations;

/// A kind of problem, as `api::problem` defines it; a test compares them.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) code: &'static str,
    pub(super) status: u16,
    pub(super) title: &'static str,
    /// `detail` of the example.
    detail: &'static str,
}

const fn kind(code: &'static str, status: u16, title: &'static str, detail: &'static str) -> Kind {
    Kind { code, status, title, detail }
}

/// Every kind of problem.
#[rustfmt::skip]
pub(super) const KINDS: &[Kind] = &[
    kind("invalid_request", 400, "The request is not valid", "limit must be from 1 to 200"),
    kind("invalid_batch", 400, "Nothing of the batch was stored", "one item is not valid: mend it and send the whole batch again"),
    kind("token_required", 401, "A token is required", "send the header `authorization: Bearer rdt_…`; `redrive tokens create` makes a token"),
    kind("invalid_token", 401, "The token is not valid", "there is no such token, or it was revoked: ask for a new one"),
    kind("missing_scope", 403, "The token does not allow this", "this needs the scope admin, and the token has read: use another token"),
    kind("cross_origin", 403, "Cross-origin request refused", "the browser says that the request comes from another site: send it from a program, or from a page of this server"),
    kind("not_found", 404, "Not found", "there is no event 0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19"),
    kind("method_not_allowed", 405, "The path has no such method", "use a method that the header `allow` names"),
    kind("request_timeout", 408, "The request took too long to arrive", "only 1024 bytes of the body arrived within 5s: send it faster"),
    kind("conflict", 409, "Conflict with the current state", "the endpoint has changed since version 3 was read: read it again"),
    kind("id_taken", 409, "Another event has this id", "another event has the id 0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19: use a new one"),
    kind("not_dead", 409, "The event is not in the dead-letter queue", "the event 0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19 is done, not in the dead-letter queue"),
    kind("not_in_review", 409, "The message is not in review", "the message was released already"),
    kind("in_progress", 409, "The same request is in flight", "a request with this key is in flight: wait, then send it again"),
    kind("too_large", 413, "The request is too large", "a body of more than 65536 bytes is not read: send less at once"),
    kind("unsupported_media_type", 415, "The content type is not supported", "say what the body is: send the header `content-type: application/json`"),
    kind("other_payload", 422, "The idempotency key belongs to another request", "this key was used for another request: use a new key, or send exactly what was sent before"),
    kind("reserved_type", 422, "The event type is reserved", "types that begin with `redrive.` are published by the server alone: use another type"),
    kind("rate_limited", 429, "Too many requests", "the rate limit of this token is exceeded: wait as `retry-after` says"),
    kind("internal", 500, "Internal error", "the store failed; its log says why"),
    kind("outcome_unknown", 503, "The outcome is unknown", "the store did not confirm it: send it again, a publish with the same id or Idempotency-Key"),
    kind("unavailable", 503, "Temporarily unavailable", "the database is busy: try again"),
    kind("shutting_down", 503, "The server is shutting down", "send the request again, to another server"),
];

/// Names of responses with several codes; a response with one code has the name of the code.
const NAMES: &[(&str, &[&str])] = &[
    ("InvalidRequestOrBatch", &["invalid_request", "invalid_batch"]),
    ("Unauthorized", &["token_required", "invalid_token"]),
    ("Forbidden", &["missing_scope", "cross_origin"]),
    ("PublishConflict", &["id_taken", "in_progress"]),
    ("PublishRefused", &["other_payload", "reserved_type"]),
    ("Unavailable", &["outcome_unknown", "unavailable", "shutting_down"]),
];

/// Adds the problems of every operation, and the reusable responses and headers.
pub(super) fn complete(paths: &mut Value, components: &mut Value) {
    let mut reusable = BTreeMap::new();
    for_each_operation(paths, |method, path, operation| {
        for (status, kinds) in of_operation(method, path, operation) {
            let codes: Vec<&str> = kinds.iter().map(|kind| kind.code).collect();
            let name = name(&codes);
            operation["responses"][status.to_string()] =
                json!({ "$ref": format!("#/components/responses/{name}") });
            reusable.entry(name).or_insert_with(|| response(&kinds));
        }
    });
    components["responses"] = json!(reusable);
    components["headers"] = json!({ "RetryAfter": {
        "description": "Seconds to wait before the request is sent again",
        "schema": { "type": "integer", "format": "int32", "minimum": 1 },
    } });
    let codes: Vec<&str> = KINDS.iter().map(|kind| kind.code).collect();
    let titles: Vec<String> = KINDS.iter().map(describe).collect();
    let code = &mut components["schemas"]["Problem"]["properties"]["code"];
    code["x-extensible-enum"] = json!(codes);
    code["description"] = format!(
        "The last part of `type`, for comparisons.\n\n{}\n\nFurther values may be added.",
        titles.join("\n")
    )
    .into();
}

/// The problems of an operation by status: those of its shape, those of the table, and those of statuses that the handler declares.
fn of_operation(method: &str, path: &str, operation: &Value) -> BTreeMap<u16, Vec<&'static Kind>> {
    let own = operations::find(method, path).map_or(&[][..], |known| known.problems);
    let implied = implied(method, path, operation);
    let mut found = BTreeMap::<u16, Vec<&'static Kind>>::new();
    for kind in KINDS.iter().filter(|kind| own.contains(&kind.code) || implied.contains(&kind.code)) {
        found.entry(kind.status).or_default().push(kind);
    }
    let declared = operation["responses"].as_object().into_iter().flatten();
    for status in declared.filter_map(|(status, _)| status.parse().ok()) {
        let kinds: Vec<_> = KINDS.iter().filter(|kind| kind.status == status).collect();
        if !kinds.is_empty() {
            found.entry(status).or_insert(kinds);
        }
    }
    found
}

/// Codes that follow from what an operation is: the middleware and the extractors refuse requests in the same way everywhere.
fn implied(method: &str, path: &str, operation: &Value) -> Vec<&'static str> {
    let has_token = operation["security"].as_array().is_some_and(|security| !security.is_empty());
    let is_health_check = operation["tags"][0] == "health";
    let sometimes: [(bool, &[&str]); 6] = [
        (true, &["invalid_request", "internal", "outcome_unknown", "unavailable", "shutting_down"]),
        (has_token, &["token_required", "invalid_token", "missing_scope"]),
        (!is_health_check, &["rate_limited"]),
        (method != "get", &["cross_origin"]),
        (operation["requestBody"].is_object(), &["request_timeout", "too_large", "unsupported_media_type"]),
        (path.contains('{'), &["not_found"]),
    ];
    sometimes.iter().filter(|(holds, _)| *holds).flat_map(|(_, codes)| codes.iter().copied()).collect()
}

fn name(codes: &[&str]) -> String {
    match NAMES.iter().find(|(_, of)| *of == codes) {
        Some((name, _)) => (*name).to_owned(),
        None => codes.iter().map(|code| pascal_case(code)).collect::<Vec<_>>().join("Or"),
    }
}

fn pascal_case(code: &str) -> String {
    let word = |word: &str| {
        let (head, tail) = word.split_at(word.len().min(1));
        head.to_ascii_uppercase() + tail
    };
    code.split('_').map(word).collect()
}

fn describe(kind: &Kind) -> String {
    format!("- `{}`: {}", kind.code, kind.title)
}

/// A reusable response of one status.
fn response(kinds: &[&Kind]) -> Value {
    let codes: Vec<&str> = kinds.iter().map(|kind| kind.code).collect();
    let titles: Vec<String> = kinds.iter().map(|kind| describe(kind)).collect();
    let examples: serde_json::Map<String, Value> =
        kinds.iter().map(|kind| (kind.code.to_owned(), json!({ "value": example(kind) }))).collect();
    let mut response = json!({
        "description": format!("Problem with one of these codes:\n\n{}", titles.join("\n")),
        "content": { MEDIA_TYPE: {
            "schema": { "$ref": "#/components/schemas/Problem" },
            "examples": examples,
        } },
        "x-problem-codes": codes,
    });
    match kinds.first().map(|kind| kind.status) {
        Some(401) => {
            response["headers"] = json!({ "WWW-Authenticate": {
                "description": "Always `Bearer`",
                "schema": { "type": "string" },
            } });
        }
        Some(429 | 503) => response["headers"] = json!({ "Retry-After": retry_after() }),
        _ if codes.contains(&"in_progress") => response["headers"] = json!({ "Retry-After": retry_after() }),
        _ => {}
    }
    response
}

fn retry_after() -> Value {
    json!({ "$ref": "#/components/headers/RetryAfter" })
}

fn example(kind: &Kind) -> Value {
    let mut example = json!({
        "type": format!("urn:redrive:problem:{}", kind.code),
        "title": kind.title,
        "status": kind.status,
        "code": kind.code,
        "detail": kind.detail,
    });
    if kind.code == "invalid_batch" {
        example["errors"] =
            json!([{ "index": 3, "detail": "the JSON is not what is expected: missing field `payload`" }]);
    }
    example
}
