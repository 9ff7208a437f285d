//! Examples of requests and responses, from the table `examples.json`: by operation, `request` and the statuses of responses.

use serde_json::{Map, Value};

use super::for_each_operation;

const TABLE: &str = include_str!("examples.json");

/// Reads the table: values by operation id, and by `request` or status.
pub(super) fn table() -> Map<String, Value> {
    serde_json::from_str(TABLE).expect("a test reads the table")
}

/// Adds the examples of every operation.
pub(super) fn complete(paths: &mut Value) {
    let table = table();
    for_each_operation(paths, |_, _, operation| {
        let Some(examples) = operation["operationId"].as_str().and_then(|id| table.get(id)) else { return };
        for (part, example) in examples.as_object().into_iter().flatten() {
            let pointer = match part.as_str() {
                "request" => "/requestBody/content".to_owned(),
                status => format!("/responses/{status}/content"),
            };
            let contents = operation.pointer_mut(&pointer).and_then(Value::as_object_mut);
            for (_, content) in contents.into_iter().flatten() {
                content["example"] = example.clone();
            }
        }
    });
}
