use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use redrive_api::page::{List, Page};
use redrive_api::{
    diagnostics, dlq, endpoints, events, health, replays, review, stats, subscriptions, tokens,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;

use super::operations::OPERATIONS;
use super::problems::KINDS;
use super::{about, complete, examples, for_each_operation};

/// The document of `redrive serve`.
fn document() -> Value {
    let routes = crate::api::authenticated_routes().merge(crate::api::health::routes());
    let document = OpenApiRouter::with_openapi(about()).merge(routes).into_openapi();
    serde_json::to_value(complete(&document)).unwrap()
}

fn operations(document: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for_each_operation(&mut document["paths"].clone(), |method, path, operation| {
        found.push((format!("{method} {path}"), operation.clone()));
    });
    found
}

#[test]
fn the_committed_document_is_the_generated_one() {
    let routes = crate::api::authenticated_routes().merge(crate::api::health::routes());
    let document = complete(&OpenApiRouter::with_openapi(about()).merge(routes).into_openapi());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(&path, serde_json::to_string_pretty(&document).unwrap() + "\n").unwrap();
    }
    let committed: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(
        committed == serde_json::to_value(document).unwrap(),
        "docs/openapi.json is not the document of the server: run UPDATE_OPENAPI=1 cargo test -p redrive-server --lib openapi, then \
         cargo run -p xtask -- openapi"
    );
}

#[test]
fn every_operation_has_a_unique_id_a_known_tag_a_description_and_a_scope() {
    let document = document();
    let tags: BTreeSet<&str> =
        document["tags"].as_array().unwrap().iter().filter_map(|tag| tag["name"].as_str()).collect();
    let mut ids = BTreeSet::new();
    for (route, operation) in operations(&document) {
        let id = operation["operationId"].as_str().unwrap();
        assert!(ids.insert(id.to_owned()), "{route}: the id {id} of another operation");
        assert!(
            OPERATIONS
                .iter()
                .any(|known| known.id == id && format!("{} {}", known.method, known.path) == route),
            "{route}: add its id to OPERATIONS in openapi/operations.rs"
        );
        assert!(tags.contains(operation["tags"][0].as_str().unwrap()), "{route}: describe its tag in TAGS");
        assert!(operation["summary"].is_string(), "{route}: the doc comment of the handler is the summary");
        let description = operation["description"].as_str().unwrap();
        assert!(
            !description.trim_start().is_empty() && !description.starts_with("Required scope"),
            "{route}: describe it in the second paragraph of the doc comment of the handler"
        );
        let is_public = operation["tags"][0] == "health";
        assert_eq!(operation["x-required-scope"].is_string(), !is_public, "{route}");
        assert!(operation["responses"].get("default").is_none(), "{route}");
    }
    let stale: Vec<_> =
        OPERATIONS.iter().filter(|known| !ids.contains(known.id)).map(|known| known.id).collect();
    assert_eq!(
        stale,
        ["getHealthAlias"],
        "entries of OPERATIONS without a route; the scheduler has the alias"
    );
}

#[test]
fn the_table_of_problems_has_every_code_with_its_status_and_title() {
    let source = include_str!("../problem.rs");
    let (_, table) = source.split_once("\ncodes! {").unwrap();
    let (table, _) = table.split_once("\n}").unwrap();
    let defined: BTreeMap<&str, (&str, &str)> = table
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(" = \"")?.1.split_once("\", ")?;
            let (status, title) = rest.split_once(", \"")?;
            Some((name, (status, title.trim_end_matches("\";"))))
        })
        .collect();
    let listed: BTreeMap<&str, (u16, &str)> =
        KINDS.iter().map(|kind| (kind.code, (kind.status, kind.title))).collect();
    let names = |status: u16| {
        let reason = axum::http::StatusCode::from_u16(status).unwrap();
        reason.canonical_reason().unwrap().to_ascii_uppercase().replace(' ', "_")
    };
    let listed: BTreeMap<&str, (String, &str)> =
        listed.into_iter().map(|(code, (status, title))| (code, (names(status), title))).collect();
    let defined: BTreeMap<&str, (String, &str)> =
        defined.into_iter().map(|(code, (status, title))| (code, (status.to_owned(), title))).collect();
    assert_eq!(listed, defined, "KINDS in openapi/problems.rs and codes! in problem.rs differ");
}

#[test]
fn every_schema_and_response_is_used_and_none_is_generic() {
    let document = document();
    let text = document.to_string();
    for part in ["schemas", "responses", "headers"] {
        for name in document["components"][part].as_object().unwrap().keys() {
            assert!(!name.contains('_'), "{name}: name it in RENAMED of openapi/schemas.rs");
            assert!(text.contains(&format!("\"#/components/{part}/{name}\"")), "{name} is not used");
        }
    }
    for target in text.split("\"$ref\":\"#/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(document.pointer(&format!("/{target}")).is_some(), "{target} does not exist");
    }
}

/// Checks an example of a request: the server reads it.
fn request<T: DeserializeOwned>(value: &Value, _: &[String]) {
    serde_json::from_value::<T>(value.clone()).unwrap();
}

/// Checks an example of a response: the server would write exactly this, and writes every required field also without a value.
fn response<T: Serialize + DeserializeOwned>(value: &Value, required: &[String]) {
    let written = |value: &Value| {
        serde_json::from_value::<T>(value.clone()).map(|typed| serde_json::to_value(typed).unwrap())
    };
    assert_eq!(&written(value).unwrap(), value);
    for field in required {
        let mut without = value.clone();
        without[field] = Value::Null;
        if let Ok(written) = written(&without) {
            assert!(
                written.get(field).is_some(),
                "{field} is required in the schema, and left out without a value"
            );
        }
    }
}

type Check = fn(&Value, &[String]);

/// Types of the examples: the body of the request, and of responses by status.
#[rustfmt::skip]
const CHECKS: &[(&str, &str, Check)] = &[
    ("publishEvent", "request", request::<events::PublishEvent>),
    ("publishEvent", "202", response::<events::PublishedEvent>),
    ("publishEvents", "request", request::<Vec<events::PublishEvent>>),
    ("publishEvents", "202", response::<List<events::PublishedEvent>>),
    ("listEvents", "200", response::<Page<events::EventSummary>>),
    ("getEvent", "200", response::<events::Event>),
    ("replayEvent", "request", request::<replays::ReplayEvent>),
    ("replayEvent", "202", response::<replays::EventReplayed>),
    ("streamEvents", "200", request::<String>),
    ("listDeadLetters", "200", response::<Page<dlq::DeadSummary>>),
    ("purgeDeadLetters", "200", response::<dlq::Purged>),
    ("listDeadLetterGroups", "200", response::<dlq::DeadGroups>),
    ("getDeadLetter", "200", response::<List<dlq::DeadLetter>>),
    ("redriveDeadLetter", "request", request::<dlq::RetryDead>),
    ("redriveDeadLetter", "202", response::<dlq::RetriedDead>),
    ("redriveDeadLetters", "request", request::<dlq::RetryDeadMany>),
    ("redriveDeadLetters", "200", response::<dlq::RetryReport>),
    ("listEndpoints", "200", response::<Page<endpoints::Endpoint>>),
    ("createEndpoint", "request", request::<endpoints::CreateEndpoint>),
    ("createEndpoint", "201", response::<endpoints::CreatedEndpoint>),
    ("getEndpoint", "200", response::<endpoints::Endpoint>),
    ("updateEndpoint", "request", request::<endpoints::UpdateEndpoint>),
    ("updateEndpoint", "200", response::<endpoints::Endpoint>),
    ("testEndpoint", "200", response::<endpoints::AttemptRecord>),
    ("listEndpointAttempts", "200", response::<Page<endpoints::EndpointAttempt>>),
    ("listEndpointSecrets", "200", response::<List<endpoints::EndpointSecret>>),
    ("rotateEndpointSecret", "request", request::<endpoints::RotateSecret>),
    ("rotateEndpointSecret", "200", response::<List<endpoints::EndpointSecret>>),
    ("startReplay", "request", request::<replays::BeginReplay>),
    ("startReplay", "202", response::<replays::Replay>),
    ("startReplay", "200", response::<replays::ReplayCount>),
    ("listReplays", "200", response::<Page<replays::Replay>>),
    ("getReplay", "200", response::<replays::Replay>),
    ("cancelReplay", "200", response::<replays::Replay>),
    ("listSubscriptions", "200", response::<Page<subscriptions::Subscription>>),
    ("getSubscription", "200", response::<subscriptions::Subscription>),
    ("putSubscription", "request", request::<subscriptions::PutSubscription>),
    ("putSubscription", "200", response::<subscriptions::Subscription>),
    ("pullEvents", "request", request::<subscriptions::Pull>),
    ("pullEvents", "200", response::<List<subscriptions::LeasedEvent>>),
    ("ackEvents", "request", request::<subscriptions::Ack>),
    ("ackEvents", "200", response::<subscriptions::LeaseResults>),
    ("nackEvents", "request", request::<subscriptions::Nack>),
    ("nackEvents", "200", response::<subscriptions::LeaseResults>),
    ("extendLeases", "request", request::<subscriptions::Extend>),
    ("extendLeases", "200", response::<subscriptions::LeaseResults>),
    ("listReviewMessages", "200", response::<Page<review::ReviewSummary>>),
    ("getReviewMessage", "200", response::<review::ReviewTask>),
    ("releaseReviewMessage", "request", request::<review::ReleaseMessage>),
    ("releaseReviewMessage", "202", response::<review::DecidedMessage>),
    ("discardReviewMessage", "request", request::<review::DiscardMessage>),
    ("discardReviewMessage", "202", response::<review::DecidedMessage>),
    ("listTokens", "200", response::<Page<tokens::Token>>),
    ("createToken", "request", request::<tokens::CreateToken>),
    ("createToken", "201", response::<tokens::CreatedToken>),
    ("getStats", "200", response::<stats::Stats>),
    ("getDiagnostics", "200", response::<diagnostics::Diagnostics>),
    ("getMetrics", "200", request::<String>),
    ("getHealth", "200", response::<health::Health>),
    ("getHealthAlias", "200", response::<health::Health>),
    ("getReadiness", "200", response::<health::Health>),
];

#[test]
fn every_example_is_a_value_of_the_type_of_its_operation() {
    let (table, document) = (examples::table(), document());
    for (id, part, check) in CHECKS {
        let example = table.get(*id).and_then(|parts| parts.get(part));
        let example = example.unwrap_or_else(|| panic!("{id}: examples.json has no {part}"));
        check(example, &required(&document, id, part));
    }
    let listed: usize = table.values().map(|parts| parts.as_object().unwrap().len()).sum();
    assert_eq!(listed, CHECKS.len(), "every example of examples.json has its type in CHECKS");
}

/// Required fields of the schema of a response.
fn required(document: &Value, id: &str, status: &str) -> Vec<String> {
    let operations = operations(document);
    let operation =
        operations.iter().find(|(_, operation)| operation["operationId"] == id).map(|(_, found)| found);
    let content = operation.map(|operation| &operation["responses"][status]["content"]["application/json"]);
    let name = content.and_then(|content| content["schema"]["$ref"].as_str()?.rsplit('/').next());
    let schema = name.map(|name| &document["components"]["schemas"][name]["required"]);
    let names = schema.and_then(Value::as_array).into_iter().flatten();
    names.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[test]
fn every_body_has_an_example() {
    for (route, operation) in operations(&document()) {
        let request = operation["requestBody"]["content"].as_object().into_iter().flatten();
        let responses = operation["responses"].as_object().unwrap().values();
        let results = responses.filter_map(|response| response["content"].as_object()).flatten();
        for (media_type, content) in request.chain(results) {
            assert!(
                content.get("example").is_some(),
                "{route}: add an example of {media_type} to examples.json"
            );
        }
    }
}

#[test]
fn enumerations_of_requests_are_closed_and_those_of_responses_open() {
    let document = document();
    let schemas = &document["components"]["schemas"];
    assert!(schemas["EventStatus"]["x-extensible-enum"].is_array());
    assert!(schemas["Signing"]["enum"].is_array(), "only requests have it");
    assert!(schemas["Scope"]["x-extensible-enum"].is_array(), "requests and responses have it");
    let parameters = document["paths"]["/v1/events"]["get"]["parameters"].as_array().unwrap();
    let status = parameters.iter().find(|parameter| parameter["name"] == "status").unwrap();
    assert_eq!(status["schema"]["enum"][0], "pending");
}
