//! Finds changes of an OpenAPI document that break its clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value};

/// A change that breaks clients of one operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Break {
    /// Id of the operation, as the earlier document has it.
    pub(crate) operation: String,
    pub(crate) what: String,
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.what)
    }
}

/// Returns the breaking changes from `old` to `new`, by operation.
pub(crate) fn breaking_changes(old: &Value, new: &Value) -> Vec<Break> {
    let mut found = Vec::new();
    for (path, method, operation) in operations(old) {
        let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
        let mut comparison = Comparison { old, new, breaks: Vec::new(), seen: BTreeSet::new() };
        match new["paths"][path].get(method) {
            Some(now) => comparison.operation(operation, now),
            None => comparison.breaks.push(format!("{method} {path} is removed")),
        }
        found.extend(comparison.breaks.into_iter().map(|what| Break { operation: id.clone(), what }));
    }
    found.sort();
    found.dedup();
    found
}

fn operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    let paths = document["paths"].as_object().into_iter().flatten();
    paths.flat_map(|(path, item)| {
        let methods = item.as_object().into_iter().flatten();
        methods.map(|(method, operation)| (path.as_str(), method.as_str(), operation))
    })
}

/// The direction in which a value travels: a request may get more permissive, a response stricter.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Direction {
    Request,
    Response,
}

/// Comparison of one operation.
struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    breaks: Vec<String>,
    /// Pairs of references that were compared, so that a recursive schema ends.
    seen: BTreeSet<(String, String, Direction)>,
}

impl<'a> Comparison<'a> {
    fn report(&mut self, what: impl Into<String>) {
        self.breaks.push(what.into());
    }

    fn operation(&mut self, old: &'a Value, new: &'a Value) {
        if old["operationId"] != new["operationId"] {
            self.report(format!("its id is now {}", new["operationId"]));
        }
        if old["x-required-scope"] != new["x-required-scope"] {
            self.report(format!("its scope is now {}", new["x-required-scope"]));
        }
        self.parameters(list(&old["parameters"]), list(&new["parameters"]));
        self.body(&old["requestBody"], &new["requestBody"]);
        for (status, response) in fields(&old["responses"]) {
            match new["responses"].get(status) {
                Some(now) => {
                    let (response, now) = (resolve(self.old, response), resolve(self.new, now));
                    self.contents(&response["content"], &now["content"], Direction::Response, status);
                }
                None => self.report(format!("the status {status} is removed")),
            }
        }
    }

    fn parameters(&mut self, old: &'a [Value], new: &'a [Value]) {
        let (old, new): (Vec<_>, Vec<_>) = (
            old.iter().map(|parameter| resolve(self.old, parameter)).collect(),
            new.iter().map(|parameter| resolve(self.new, parameter)).collect(),
        );
        let key = |parameter: &Value| (parameter["in"].clone(), parameter["name"].clone());
        for before in &old {
            let name = format!("the parameter {}", text(&before["name"]));
            match new.iter().find(|now| key(now) == key(before)) {
                None => self.report(format!("{name} is removed")),
                Some(now) => {
                    if now["required"] == true && before["required"] != true {
                        self.report(format!("{name} is now required"));
                    }
                    self.schema(&before["schema"], &now["schema"], Direction::Request, &name);
                }
            }
        }
        for now in &new {
            if now["required"] == true && !old.iter().any(|before| key(before) == key(now)) {
                self.report(format!("the parameter {} is new and required", text(&now["name"])));
            }
        }
    }

    fn body(&mut self, old: &'a Value, new: &'a Value) {
        let (old, new) = (resolve(self.old, old), resolve(self.new, new));
        if old.is_object() && !new.is_object() {
            self.report("the request body is removed");
        }
        if new["required"] == true && old["required"] != true {
            self.report("the request body is now required");
        }
        if new.is_object() {
            self.contents(&old["content"], &new["content"], Direction::Request, "the request");
        }
    }

    fn contents(&mut self, old: &'a Value, new: &'a Value, direction: Direction, place: &str) {
        for (media_type, before) in fields(old) {
            match new.get(media_type) {
                Some(now) => self.schema(&before["schema"], &now["schema"], direction, place),
                None => self.report(format!("{place} has no {media_type} any more")),
            }
        }
    }

    fn schema(&mut self, old: &'a Value, new: &'a Value, direction: Direction, place: &str) {
        if old["$ref"].is_string() || new["$ref"].is_string() {
            let pair = (text(&old["$ref"]).to_owned(), text(&new["$ref"]).to_owned(), direction);
            if !self.seen.insert(pair) {
                return;
            }
        }
        let (old, new) = (resolve(self.old, old), resolve(self.new, new));
        self.types(old, new, direction, place);
        self.values(old, new, direction, place);
        if direction == Direction::Request {
            self.limits(old, new, place);
        }
        self.properties(old, new, direction, place);
        if old["items"].is_object() && new["items"].is_object() {
            self.schema(&old["items"], &new["items"], direction, &format!("{place}[]"));
        }
        for keyword in ["anyOf", "oneOf"] {
            let (before, now) = (list(&old[keyword]), list(&new[keyword]));
            if before.len() != now.len() {
                self.report(format!("{place} has {} alternatives instead of {}", now.len(), before.len()));
            }
            for (before, now) in before.iter().zip(now) {
                self.schema(before, now, direction, place);
            }
        }
    }

    fn types(&mut self, old: &Value, new: &Value, direction: Direction, place: &str) {
        let (before, now) = (types(old), types(new));
        let fits = match direction {
            Direction::Request => now.is_empty() || !before.is_empty() && before.is_subset(&now),
            Direction::Response => before.is_empty() || !now.is_empty() && now.is_subset(&before),
        };
        if !fits {
            self.report(format!("the type of {place} is now {now:?} instead of {before:?}"));
        }
        if old["format"] != new["format"] {
            self.report(format!(
                "the format of {place} is now {} instead of {}",
                new["format"], old["format"]
            ));
        }
    }

    /// Enumerations: a request may not lose a value, and a closed one of a response not get any.
    fn values(&mut self, old: &Value, new: &Value, direction: Direction, place: &str) {
        let closed = |schema: &'_ Value| schema["enum"].is_array();
        let (before, now) = (values(old), values(new));
        let lost: Vec<_> = before.difference(&now).collect();
        let gained: Vec<_> = now.difference(&before).collect();
        match direction {
            Direction::Request if !lost.is_empty() && (closed(new) || !now.is_empty()) => {
                self.report(format!("{place} has lost the values {lost:?}"));
            }
            Direction::Request if closed(new) && !closed(old) => {
                self.report(format!("{place} is now one of {now:?}"));
            }
            Direction::Response if closed(old) && (!closed(new) || !gained.is_empty()) => {
                self.report(format!("{place} may now be another value than {before:?}"));
            }
            _ => {}
        }
    }

    fn limits(&mut self, old: &Value, new: &Value, place: &str) {
        let lower = ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"];
        let upper = ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"];
        let limits = lower.map(|name| (name, true)).into_iter().chain(upper.map(|name| (name, false)));
        for (name, is_lower) in limits {
            let Some(now) = new[name].as_f64() else { continue };
            let is_narrower = match old[name].as_f64() {
                None => true,
                Some(before) if is_lower => now > before,
                Some(before) => now < before,
            };
            if is_narrower {
                self.report(format!("{name} of {place} is now {} instead of {}", new[name], old[name]));
            }
        }
        if new["pattern"].is_string() && new["pattern"] != old["pattern"] {
            self.report(format!("the pattern of {place} is now {}", new["pattern"]));
        }
    }

    fn properties(&mut self, old: &'a Value, new: &'a Value, direction: Direction, place: &str) {
        let (before, now) = (Object::of(self.old, old), Object::of(self.new, new));
        for (name, schema) in &before.properties {
            match now.properties.get(name) {
                None => self.report(format!("the property {place}.{name} is removed")),
                Some(now) => self.schema(schema, now, direction, &format!("{place}.{name}")),
            }
        }
        let (required, no_longer) = match direction {
            Direction::Request => (now.required.difference(&before.required), "is now required"),
            Direction::Response => (before.required.difference(&now.required), "is no longer always there"),
        };
        for name in required {
            if direction == Direction::Request || now.properties.contains_key(name.as_str()) {
                self.report(format!("the property {place}.{name} {no_longer}"));
            }
        }
        let (old, new) = (&old["additionalProperties"], &new["additionalProperties"]);
        if direction == Direction::Request && *new == false && *old != false {
            self.report(format!("{place} refuses further properties"));
        }
        if old.is_object() && new.is_object() {
            self.schema(old, new, direction, &format!("{place}.*"));
        }
    }
}

/// Properties of an object, also of the parts of `allOf`.
#[derive(Default)]
struct Object<'a> {
    properties: BTreeMap<&'a str, &'a Value>,
    required: BTreeSet<String>,
}

impl<'a> Object<'a> {
    fn of(document: &'a Value, schema: &'a Value) -> Self {
        let schema = resolve(document, schema);
        let mut object = Object {
            properties: fields(&schema["properties"]).map(|(name, schema)| (name.as_str(), schema)).collect(),
            required: list(&schema["required"]).iter().map(|name| text(name).to_owned()).collect(),
        };
        for part in list(&schema["allOf"]) {
            let part = Object::of(document, part);
            object.properties.extend(part.properties);
            object.required.extend(part.required);
        }
        object
    }
}

/// Follows references inside a document.
fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let target = value["$ref"].as_str().and_then(|target| document.pointer(target.strip_prefix('#')?));
    target.map_or(value, |target| resolve(document, target))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The types of a schema; none for any value.
fn types(schema: &Value) -> BTreeSet<&str> {
    match &schema["type"] {
        Value::String(one) => BTreeSet::from([one.as_str()]),
        several => list(several).iter().map(text).collect(),
    }
}

/// The values of an enumeration, open or closed.
fn values(schema: &Value) -> BTreeSet<&str> {
    list(&schema["enum"]).iter().chain(list(&schema["x-extensible-enum"])).map(text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A document with one operation that takes and returns `Thing`.
    fn document() -> Value {
        json!({
            "paths": { "/things": { "post": {
                "operationId": "putThing",
                "parameters": [{ "in": "query", "name": "limit", "schema": { "type": "integer", "maximum": 200 } }],
                "requestBody": { "content": { "application/json": { "schema": { "$ref": "#/components/schemas/ThingRequest" } } } },
                "responses": {
                    "200": { "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Thing" } } } },
                    "404": { "$ref": "#/components/responses/NotFound" },
                },
            } } },
            "components": {
                "responses": { "NotFound": { "description": "Not found" } },
                "schemas": {
                    "ThingRequest": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": { "type": "string", "maxLength": 10 },
                            "kind": { "type": "string", "enum": ["a", "b"] },
                        },
                    },
                    "Thing": {
                        "allOf": [
                            { "type": "object", "required": ["id"], "properties": { "id": { "type": "string" } } },
                            { "type": "object", "properties": {
                                "kind": { "type": "string", "x-extensible-enum": ["a"] },
                                "part": { "$ref": "#/components/schemas/Thing" },
                            } },
                        ],
                    },
                },
            },
        })
    }

    const OPERATION: &str = "/paths/~1things/post";
    const REQUEST: &str = "/components/schemas/ThingRequest";
    const THING: &str = "/components/schemas/Thing";

    /// Sets a value of the document, or removes it for `null`, and compares.
    fn after(place: &str, value: Value) -> Vec<String> {
        let mut new = document();
        let (parent, name) = place.rsplit_once('/').unwrap();
        match (new.pointer_mut(parent).unwrap(), value) {
            (Value::Object(fields), Value::Null) => {
                fields.remove(name).unwrap();
            }
            (Value::Object(fields), value) => {
                fields.insert(name.to_owned(), value);
            }
            (Value::Array(items), value) => items[name.parse::<usize>().unwrap()] = value,
            _ => panic!("{place}"),
        }
        breaking_changes(&document(), &new).into_iter().map(|change| change.to_string()).collect()
    }

    #[test]
    fn a_document_is_compatible_with_itself() {
        assert_eq!(breaking_changes(&document(), &document()), []);
    }

    #[test]
    fn removals_break() {
        for (place, what) in [
            ("/paths/~1things/post".to_owned(), "post /things is removed"),
            (format!("{OPERATION}/parameters"), "the parameter limit is removed"),
            (format!("{OPERATION}/requestBody"), "the request body is removed"),
            (format!("{OPERATION}/responses/404"), "the status 404 is removed"),
            (format!("{REQUEST}/properties/kind"), "the property the request.kind is removed"),
            (format!("{THING}/allOf/1/properties/kind"), "the property 200.kind is removed"),
        ] {
            let found = after(&place, Value::Null);
            assert!(found.contains(&format!("putThing: {what}")), "{place}: {found:?}");
        }
    }

    #[test]
    fn stricter_requests_break() {
        let required = json!([{ "in": "query", "name": "limit", "required": true, "schema": { "type": "integer", "maximum": 200 } }]);
        for (place, value) in [
            (format!("{OPERATION}/parameters"), required),
            (format!("{OPERATION}/parameters/0/schema/maximum"), json!(100)),
            (format!("{OPERATION}/requestBody/required"), json!(true)),
            (format!("{OPERATION}/x-required-scope"), json!("admin")),
            (format!("{REQUEST}/required"), json!(["name", "kind"])),
            (format!("{REQUEST}/additionalProperties"), json!(false)),
            (format!("{REQUEST}/properties/name/maxLength"), json!(9)),
            (format!("{REQUEST}/properties/name/minLength"), json!(1)),
            (format!("{REQUEST}/properties/name/pattern"), json!("^a")),
            (format!("{REQUEST}/properties/name/type"), json!("integer")),
            (format!("{REQUEST}/properties/name/format"), json!("uuid")),
            (format!("{REQUEST}/properties/kind/enum"), json!(["a"])),
        ] {
            assert_eq!(after(&place, value).len(), 1, "{place}");
        }
    }

    #[test]
    fn looser_responses_break() {
        for (place, value) in [
            (format!("{THING}/allOf/0/properties/id/type"), json!(["string", "null"])),
            (format!("{THING}/allOf/0/required"), json!([])),
            (format!("{OPERATION}/operationId"), json!("setThing")),
        ] {
            assert_eq!(after(&place, value).len(), 1, "{place}");
        }
    }

    #[test]
    fn additions_and_looser_requests_are_compatible() {
        for (place, value) in [
            ("/paths/~1others".to_owned(), json!({ "get": { "operationId": "getOther" } })),
            (format!("{OPERATION}/responses/409"), json!({ "description": "Conflict" })),
            (format!("{OPERATION}/parameters/0/schema/maximum"), json!(500)),
            (format!("{REQUEST}/properties/more"), json!({ "type": "string" })),
            (format!("{REQUEST}/required"), json!([])),
            (format!("{REQUEST}/properties/name/maxLength"), Value::Null),
            (format!("{REQUEST}/properties/kind/enum"), json!(["a", "b", "c"])),
            (format!("{THING}/allOf/1/properties/more"), json!({ "type": "string" })),
            (format!("{THING}/allOf/1/properties/kind/x-extensible-enum"), json!(["a", "b"])),
            (format!("{THING}/allOf/1/required"), json!(["kind"])),
        ] {
            assert_eq!(after(&place, value), [""; 0], "{place}");
        }
    }
}
