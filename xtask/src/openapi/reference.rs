//! Renders the OpenAPI document as one HTML page without scripts and without third-party hosts.

use std::fmt::Write as _;

use serde_json::{Map, Value};

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--soft:#8881;--link:light-dark(#0550ae,#79b8ff)}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:68rem;padding:1rem}
a{color:var(--link)}code,pre{font:13px/1.45 ui-monospace,monospace}pre{background:var(--soft);overflow:auto;padding:.6rem;border-radius:.3rem}
details{border:1px solid var(--line);border-radius:.3rem;margin:.4rem 0;padding:.4rem .7rem}summary{cursor:pointer}
table{border-collapse:collapse;width:100%}td,th{border-top:1px solid var(--line);padding:.3rem .5rem;text-align:left;vertical-align:top}
nav a{margin-right:.8rem}.m{display:inline-block;font-weight:600;text-transform:uppercase;width:4.2rem}h2{margin-top:2.2rem}";

const SCHEMA: &str = "#/components/schemas/";

/// Renders the document.
pub(super) fn render(document: &Value) -> String {
    Page { document, html: String::new() }.render()
}

struct Page<'a> {
    document: &'a Value,
    html: String,
}

impl Page<'_> {
    fn push(&mut self, html: impl AsRef<str>) {
        self.html.push_str(html.as_ref());
    }

    fn render(mut self) -> String {
        let info = &self.document["info"];
        let title = escape(&format!("{} HTTP API", text(&info["title"])));
        let about = prose(text(&info["description"]));
        let token = prose(text(&self.document["components"]["securitySchemes"]["token"]["description"]));
        let _ = write!(
            self.html,
            "<!doctype html>\n<!-- Generated from docs/openapi.json: cargo run -p xtask -- openapi write -->\n\
             <html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
             <title>{title}</title>\n<style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n{about}\n<h2>Authentication</h2>\n{token}\n"
        );
        let tags = list(&self.document["tags"]);
        let links: String = tags.iter().map(|tag| link(text(&tag["name"]))).collect();
        self.push(format!(
            "<nav>{links}<a href=\"#problems\">problems</a><a href=\"#schemas\">schemas</a></nav>\n"
        ));
        for tag in tags {
            let name = text(&tag["name"]);
            self.push(format!("<h2 id=\"{name}\">{name}</h2>\n{}\n", prose(text(&tag["description"]))));
            self.operations(name);
        }
        self.problems();
        self.schemas();
        self.push("</body></html>\n");
        self.html
    }

    fn operations(&mut self, tag: &str) {
        let document = self.document;
        for (path, item) in fields(&document["paths"]) {
            for (method, operation) in fields(item) {
                if text(&operation["tags"][0]) == tag {
                    self.operation(method, path, operation);
                }
            }
        }
    }

    fn operation(&mut self, method: &str, path: &str, operation: &Value) {
        let id = text(&operation["operationId"]);
        self.push(format!(
            "<details id=\"{id}\"><summary><span class=\"m\">{method}</span> <code>{}</code> {}</summary>\n<p><code>{id}</code></p>\n{}\n",
            escape(path),
            prose_line(text(&operation["summary"])),
            prose(text(&operation["description"])),
        ));
        let rows: String = list(&operation["parameters"]).iter().map(parameter_row).collect();
        if !rows.is_empty() {
            self.push(format!("<table><tr><th>parameter<th>in<th>type<th>description</tr>{rows}</table>\n"));
        }
        if operation["requestBody"].is_object() {
            self.push("<h4>Request</h4>\n");
            self.contents(&operation["requestBody"]["content"]);
        }
        let mut problems = Vec::new();
        for (status, response) in fields(&operation["responses"]) {
            match response["$ref"].as_str().and_then(|target| target.rsplit('/').next()) {
                Some(name) => problems.push(format!("<a href=\"#response-{name}\">{status}</a>")),
                None => {
                    self.push(format!(
                        "<h4>Response {status}</h4>\n{}\n",
                        prose(text(&response["description"]))
                    ));
                    self.contents(&response["content"]);
                }
            }
        }
        self.push(format!("<p>Problems: {}</p>\n</details>\n", problems.join(" ")));
    }

    fn contents(&mut self, contents: &Value) {
        for (media_type, content) in fields(contents) {
            let kind = kind(&content["schema"]);
            let example = match &content["example"] {
                Value::Null => String::new(),
                Value::String(text) => format!("<pre>{}</pre>\n", escape(text)),
                value => format!(
                    "<pre>{}</pre>\n",
                    escape(&serde_json::to_string_pretty(value).unwrap_or_default())
                ),
            };
            self.push(format!("<p><code>{media_type}</code>: {kind}</p>\n{example}"));
        }
    }

    fn problems(&mut self) {
        self.push("<h2 id=\"problems\">Problems</h2>\n");
        let document = self.document;
        for (name, response) in fields(&document["components"]["responses"]) {
            let rows: String = fields(&response["content"]["application/problem+json"]["examples"])
                .map(|(code, example)| {
                    let (title, detail) =
                        (text(&example["value"]["title"]), text(&example["value"]["detail"]));
                    let status = &example["value"]["status"];
                    format!(
                        "<tr><td>{status}<td><code>{code}</code><td>{}<td>{}</tr>",
                        escape(title),
                        escape(detail)
                    )
                })
                .collect();
            self.push(format!(
                "<h4 id=\"response-{name}\">{name}</h4>\n<table><tr><th>status<th>code<th>title<th>example of detail</tr>{rows}</table>\n"
            ));
        }
    }

    fn schemas(&mut self) {
        self.push("<h2 id=\"schemas\">Schemas</h2>\n");
        let document = self.document;
        for (name, schema) in fields(&document["components"]["schemas"]) {
            self.push(format!("<details id=\"schema-{name}\"><summary><code>{name}</code></summary>\n"));
            self.push(prose(text(&schema["description"])));
            for part in std::iter::once(schema).chain(list(&schema["allOf"])) {
                if part["$ref"].is_string() {
                    self.push(format!("<p>All fields of {}, and:</p>\n", kind(part)));
                }
                self.properties(part);
            }
            if schema["oneOf"].is_array() {
                self.push(format!("<p>One of: {}</p>\n", kind(schema)));
            }
            self.push("</details>\n");
        }
    }

    fn properties(&mut self, schema: &Value) {
        let required = list(&schema["required"]);
        let row = |(name, field): (&String, &Value)| {
            let is_required = required.iter().any(|required| *required == **name);
            let mark = if is_required { "" } else { " (optional)" };
            let description = prose(text(&field["description"]));
            format!(
                "<tr><td><code>{}</code>{mark}<td>{}{}<td>{description}</tr>\n",
                escape(name),
                kind(field),
                limits(field)
            )
        };
        let rows: String = fields(&schema["properties"]).map(row).collect();
        if !rows.is_empty() {
            self.push(format!("<table><tr><th>field<th>type<th>description</tr>\n{rows}</table>\n"));
        }
    }
}

fn parameter_row(parameter: &Value) -> String {
    let mark = if parameter["required"] == true { "" } else { " (optional)" };
    format!(
        "<tr><td><code>{}</code>{mark}<td>{}<td>{}{}<td>{}</tr>\n",
        escape(text(&parameter["name"])),
        text(&parameter["in"]),
        kind(&parameter["schema"]),
        limits(&parameter["schema"]),
        prose(text(&parameter["description"])),
    )
}

/// The type of a schema, with links to named schemas.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|target| target.strip_prefix(SCHEMA)) {
        return format!("<a href=\"#schema-{name}\">{name}</a>");
    }
    for keyword in ["anyOf", "oneOf"] {
        if schema[keyword].is_array() {
            return list(&schema[keyword]).iter().map(kind).collect::<Vec<_>>().join(" or ");
        }
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one.as_str()],
        several => list(several).iter().map(text).collect(),
    };
    let one = |name: &&str| match *name {
        "array" => format!("array of {}", kind(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map of {}", kind(&schema["additionalProperties"]))
        }
        "object" => {
            let names: Vec<&str> = fields(&schema["properties"]).map(|(name, _)| name.as_str()).collect();
            if names.is_empty() { "object".to_owned() } else { format!("object with {}", names.join(", ")) }
        }
        name => match schema["format"].as_str() {
            Some(format) if name != "null" => format!("{name} ({format})"),
            _ => name.to_owned(),
        },
    };
    if types.is_empty() {
        "any JSON".to_owned()
    } else {
        types.iter().map(one).collect::<Vec<_>>().join(" or ")
    }
}

/// Limits, values and default of a schema.
fn limits(schema: &Value) -> String {
    let names =
        ["minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "default", "pattern"];
    let limits = names.iter().filter_map(|name| Some(format!("{name} {}", schema.get(name)?)));
    let values = ["enum", "x-extensible-enum"].iter().flat_map(|name| list(&schema[*name]));
    let values = values.map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let all = limits.chain(Some(values).filter(|values| !values.is_empty()));
    all.map(|limit| format!("<br><code>{}</code>", escape(&limit))).collect()
}

fn link(name: &str) -> String {
    format!("<a href=\"#{name}\">{name}</a>")
}

/// Paragraphs and lists of Markdown.
fn prose(markdown: &str) -> String {
    let paragraph = |paragraph: &str| match paragraph.strip_prefix("- ") {
        Some(items) => {
            let items: String = items.split("\n- ").map(|item| format!("<li>{}", prose_line(item))).collect();
            format!("<ul>{items}</ul>")
        }
        None => format!("<p>{}</p>", prose_line(paragraph)),
    };
    markdown.split("\n\n").filter(|part| !part.is_empty()).map(paragraph).collect()
}

/// One line of Markdown: text with code in backticks.
fn prose_line(markdown: &str) -> String {
    let mut html = String::new();
    for (at, part) in markdown.split('`').enumerate() {
        let _ = match at % 2 {
            0 => write!(html, "{}", escape(part)),
            _ => write!(html, "<code>{}</code>", escape(part)),
        };
    }
    html
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_page_shows_operations_and_schemas_and_loads_nothing() {
        let page = render(&json!({
            "info": { "title": "Shop", "description": "Orders & `items`." },
            "tags": [{ "name": "events", "description": "Publish events." }],
            "paths": { "/v1/events": { "get": {
                "operationId": "listEvents",
                "summary": "List <events>",
                "tags": ["events"],
                "parameters": [{ "name": "limit", "in": "query", "schema": { "type": "integer", "maximum": 200 } }],
                "responses": {
                    "200": { "description": "A page.", "content": { "application/json": {
                        "schema": { "$ref": "#/components/schemas/EventPage" }, "example": { "data": [] },
                    } } },
                    "404": { "$ref": "#/components/responses/NotFound" },
                },
            } } },
            "components": { "schemas": { "EventPage": { "type": "object", "properties": { "next": { "type": ["string", "null"] } } } } },
        }));
        for part in [
            "<details id=\"listEvents\">",
            "List &lt;events&gt;",
            "<code>maximum 200</code>",
            "<a href=\"#schema-EventPage\">EventPage</a>",
            "<a href=\"#response-NotFound\">404</a>",
            "<code>next</code> (optional)<td>string or null",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        for part in ["<script", "src=", "http:", "https:", "@import"] {
            assert!(!page.contains(part), "{part}");
        }
    }

    #[test]
    fn lists_and_code_of_descriptions_are_rendered() {
        assert_eq!(prose("A `b`.\n\n- one\n- two"), "<p>A <code>b</code>.</p><ul><li>one<li>two</ul>");
    }
}
