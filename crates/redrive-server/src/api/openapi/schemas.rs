//! Reusable schemas: names that generators turn into good types, and one rule for enumerations and required fields.
//!
//! - A page of events is `EventPage`, not `Page_EventSummary`, and refers to its entries.
//! - An enumeration of a request is closed (`enum`): the server refuses other values. One of a response is open (`x-extensible-enum`).
//! - Every field of a response is required, because the server always writes it, as `null` without a value.

use std::collections::BTreeSet;

use redrive::store::NewEvent;
use serde_json::{Map, Value, json};

use super::for_each_operation;

/// Generic schemas as utoipa names them, their names here, and their descriptions.
const RENAMED: &[(&str, &str, &str)] = &[
    ("Page_EventSummary", "EventPage", "A page of events."),
    ("Page_DeadSummary", "DeadLetterPage", "A page of dead letters."),
    ("Page_Endpoint", "EndpointPage", "A page of endpoints."),
    ("Page_EndpointAttempt", "EndpointAttemptPage", "A page of attempts to deliver to an endpoint."),
    ("Page_Replay", "ReplayPage", "A page of replays."),
    ("Page_ReviewSummary", "ReviewPage", "A page of messages in review."),
    ("Page_Subscription", "SubscriptionPage", "A page of pull subscriptions."),
    ("Page_Token", "TokenPage", "A page of tokens."),
    ("List_DeadLetter", "DeadLetterList", "The dead letters of one event."),
    ("List_EndpointSecret", "EndpointSecretList", "The secrets of an endpoint, the newest first."),
    ("List_LeasedEvent", "LeasedEventList", "Events, each under a lease."),
    ("List_PublishedEvent", "PublishedEventList", "The published events, in the order of the request."),
];

/// Fields of responses that the server leaves out: they are written only with a value.
const SOMETIMES_WRITTEN: &[(&str, &str)] = &[("Problem", "errors"), ("ReviewTask", "unreadable")];

const REF: &str = "#/components/schemas/";

/// Names, simplifies and completes all schemas.
pub(super) fn complete(paths: &mut Value, components: &mut Value) {
    if let Some(schemas) = components["schemas"].as_object_mut() {
        name_pages(schemas);
        schemas.remove("Time");
    }
    walk(paths, &mut simplify);
    for (_, schema) in components["schemas"].as_object_mut().into_iter().flatten() {
        walk(schema, &mut simplify);
    }
    for_each_operation(paths, |_, _, operation| {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            remove_null(&mut parameter["schema"]);
            walk(parameter, &mut close);
        }
        if let Some(body) = operation.get_mut("requestBody") {
            make_optional(body);
            limit_batch(body);
        }
    });
    let Some(schemas) = components["schemas"].as_object_mut() else { return };
    let (mut requests, mut responses) = (BTreeSet::new(), BTreeSet::from(["Problem".to_owned()]));
    for_each_operation(paths, |_, _, operation| {
        collect(&operation["requestBody"], schemas, &mut requests);
        collect(&operation["responses"], schemas, &mut responses);
        describe_results(&mut operation["responses"], schemas);
    });
    for (name, schema) in schemas.iter_mut() {
        match (requests.contains(name), responses.contains(name)) {
            (true, false) => walk(schema, &mut close),
            (false, _) => require_all(name, schema),
            (true, true) => {}
        }
    }
}

/// Gives pages and lists their names, and lets them refer to their entries.
fn name_pages(schemas: &mut Map<String, Value>) {
    for (generic, name, description) in RENAMED {
        let Some(mut schema) = schemas.remove(*generic) else { continue };
        let (_, entry) = generic.split_once('_').unwrap_or_default();
        schema["description"] = (*description).into();
        schema["properties"]["data"]["items"] = json!({ "$ref": format!("{REF}{entry}") });
        schemas.insert((*name).to_owned(), schema);
    }
}

/// Calls a function for every object of a document, the inner ones first. The names of properties are no keywords, and examples no
/// schemas.
fn walk(value: &mut Value, visit: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match (name.as_str(), value) {
                    ("example" | "examples", _) => {}
                    ("properties", Value::Object(properties)) => {
                        properties.values_mut().for_each(|property| walk(property, visit));
                    }
                    (_, value) => walk(value, visit),
                }
            }
            visit(fields);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| walk(item, visit)),
        _ => {}
    }
}

/// Brings one object into the form that generators read best.
fn simplify(schema: &mut Map<String, Value>) {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        let name = target.strip_prefix(REF).unwrap_or_default();
        if name == "Time" {
            schema.remove("$ref");
            schema.insert("type".to_owned(), "string".into());
            schema.insert("format".to_owned(), "date-time".into());
        } else if let Some((_, name, _)) = RENAMED.iter().find(|(generic, ..)| *generic == name) {
            schema.insert("$ref".to_owned(), format!("{REF}{name}").into());
        }
    }
    simplify_nullable(schema);
    if schema.get("propertyNames").is_some_and(|names| *names == json!({ "type": "string" })) {
        schema.remove("propertyNames");
    }
    if schema.contains_key("type")
        && let Some(example) = schema.remove("example")
    {
        schema.insert("examples".to_owned(), json!([example]));
    }
}

/// `oneOf: [null, text]` becomes a type with `null`; a reference that may be `null` keeps the description outside.
fn simplify_nullable(schema: &mut Map<String, Value>) {
    let Some([null, inner]) = schema.get("oneOf").and_then(Value::as_array).map(Vec::as_slice) else {
        return;
    };
    let Some(mut inner) = inner.as_object().cloned().filter(|_| *null == json!({ "type": "null" })) else {
        return;
    };
    schema.remove("oneOf");
    if let Some(description) = inner.remove("description") {
        schema.entry("description").or_insert(description);
    }
    match inner.get("type").cloned() {
        Some(Value::String(kind)) => {
            inner.insert("type".to_owned(), json!([kind, "null"]));
            schema.extend(inner);
        }
        _ => {
            schema.insert("anyOf".to_owned(), json!([inner, { "type": "null" }]));
        }
    }
}

/// A parameter is present or missing, and never `null`.
fn remove_null(schema: &mut Value) {
    let kinds = schema["type"].as_array().cloned().unwrap_or_default();
    if let Some(kind) = kinds.iter().find(|kind| *kind != "null") {
        schema["type"] = kind.clone();
    }
}

/// An optional body is a missing one, and never `null`.
fn make_optional(body: &mut Value) {
    for content in body["content"].as_object_mut().into_iter().flatten().map(|(_, content)| content) {
        if let Some(inner) = content["schema"]["anyOf"].get(0).cloned() {
            content["schema"] = inner;
            body["required"] = false.into();
            return;
        }
    }
}

/// A body that is an array is a batch of events.
fn limit_batch(body: &mut Value) {
    if let Some(schema) = body.pointer_mut("/content/application~1json/schema")
        && schema["type"] == "array"
    {
        schema["minItems"] = 1.into();
        // No `maxItems`: its violation is expected to be an invalid request, and a large batch is too large a request (413).
        let about = format!("1 to {} events", NewEvent::MAX_BATCH_EVENTS);
        schema["description"] = about.into();
    }
}

/// Closes an enumeration: only the known values are valid.
fn close(schema: &mut Map<String, Value>) {
    let Some(Value::Array(mut values)) = schema.remove("x-extensible-enum") else { return };
    if schema.get("type").is_some_and(Value::is_array) {
        values.push(Value::Null);
    }
    schema.insert("enum".to_owned(), values.into());
    if let Some(text) = schema.get("description").and_then(Value::as_str) {
        let text = text.trim_end_matches("\n\nFurther values may be added.").to_owned();
        schema.insert("description".to_owned(), text.into());
    }
}

/// Collects the names of all schemas that a value refers to.
fn collect(value: &Value, schemas: &Map<String, Value>, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix(REF));
            if let Some((name, schema)) = name.and_then(|name| schemas.get_key_value(name))
                && found.insert(name.clone())
            {
                collect(schema, schemas, found);
            }
            fields.values().for_each(|value| collect(value, schemas, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, schemas, found)),
        _ => {}
    }
}

/// Requires every field of a response, except those that the server sometimes leaves out.
fn require_all(name: &str, schema: &mut Value) {
    walk(schema, &mut |schema| {
        let Some(fields) = schema.get("properties").and_then(Value::as_object) else { return };
        let written = fields.keys().filter(|field| !SOMETIMES_WRITTEN.contains(&(name, field.as_str())));
        let required: Vec<Value> = written.map(|field| field.as_str().into()).collect();
        if !required.is_empty() {
            schema.insert("required".to_owned(), required.into());
        }
    });
}

/// Describes the results of an operation: as the handler says, or as their schemas say.
fn describe_results(responses: &mut Value, schemas: &Map<String, Value>) {
    for (status, response) in responses.as_object_mut().into_iter().flatten() {
        if response["description"].as_str().is_some_and(|text| !text.is_empty()) {
            continue;
        }
        let schema = response["content"]["application/json"]["schema"]["$ref"].as_str();
        let schema = schema.and_then(|target| schemas.get(target.strip_prefix(REF)?));
        let text = schema.and_then(|schema| schema["description"].as_str());
        response["description"] = text.unwrap_or(if status == "204" { "Done" } else { "The result" }).into();
    }
}
