//! The OpenAPI document: collected from the handlers, then completed with facts that their annotations cannot state.
//!
//! [`complete`] adds operation ids and scopes (`operations`), reusable schemas (`schemas`), the problems of every operation (`problems`)
//! and examples (`examples`). The document of `redrive serve` is also the file docs/openapi.json, from which clients are generated; after
//! a change `UPDATE_OPENAPI=1 cargo test -p redrive-server --lib openapi` rewrites the file.

mod examples;
mod operations;
mod problems;
mod schemas;
#[cfg(test)]
mod tests;

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::get;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, Info, OpenApi, OpenApiBuilder};
use utoipa::{PartialSchema, ToSchema};

use redrive_api::problem::{ItemError, Problem};

/// The document of `redrive serve`, without resources.
pub(crate) fn about() -> OpenApi {
    of("Redrive", "A published event is handled, or it is in the dead-letter queue.")
}

/// The document of a service, without resources.
pub(crate) fn of(title: &str, about: &str) -> OpenApi {
    let mut info = Info::new(title, env!("CARGO_PKG_VERSION"));
    info.description = Some(format!("{about}\n\n{CONVENTIONS}"));
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .bearer_format("rdt_…")
        .description(Some(TOKENS))
        .build();
    let mut components = Components::new();
    components.add_security_scheme("token", SecurityScheme::Http(scheme));
    components.schemas.insert(Problem::name().into_owned(), Problem::schema());
    components.schemas.insert(ItemError::name().into_owned(), ItemError::schema());
    OpenApiBuilder::new().info(info).components(Some(components)).build()
}

const CONVENTIONS: &str = "\
Lists are pages: `data` has the entries, and `next` is the cursor of the next page, or `null`. Times are RFC 3339 in UTC. Unknown fields \
of a request are refused; responses may get further fields, and enumerations of responses further values.

Every error is `application/problem+json` (RFC 9457) with a stable `code`. A request with `Idempotency-Key` or with event ids of its own \
can be repeated safely, also after `outcome_unknown`.";

const TOKENS: &str = "\
A token of `redrive tokens create` or `createToken`. `x-required-scope` of an operation names the scope that the token needs: \
`publish`, `read`, `consume` or `admin`, which includes the others. Without any token on record, requests of the server's own user from \
its own machine need none.";

/// Parts of a document, in the order in which a person reads them.
#[derive(Debug, Serialize)]
struct Document {
    openapi: Value,
    info: Value,
    servers: Value,
    tags: Value,
    paths: Value,
    components: Value,
}

/// Completes the document of the handlers.
fn complete(document: &OpenApi) -> Document {
    let mut document = serde_json::to_value(document).expect("a document always serialises");
    let [openapi, mut info, mut paths, mut components] =
        ["openapi", "info", "paths", "components"].map(|name| document[name].take());
    info["contact"] = json!({ "name": "The maintainers of Redrive" });
    info["license"] = json!({ "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" });
    let servers = json!([{
        "url": "http://127.0.0.1:8080",
        "description": "Default address of `redrive serve`; clients take the address of their server as an option",
    }]);
    let tags = operations::complete(&mut paths);
    schemas::complete(&mut paths, &mut components);
    problems::complete(&mut paths, &mut components);
    examples::complete(&mut paths);
    Document { openapi, info, servers, tags, paths, components }
}

/// Serves the document, which is serialised once.
pub(crate) fn route<S: Clone + Send + Sync + 'static>(document: OpenApi) -> Router<S> {
    let document = complete(&document);
    let text = Bytes::from(serde_json::to_vec(&document).expect("a document always serialises"));
    Router::new().route(
        "/openapi.json",
        get(move || {
            let text = text.clone();
            async move { ([(header::CONTENT_TYPE, "application/json")], text) }
        }),
    )
}

/// Calls a function for every operation with its method and path.
fn for_each_operation(paths: &mut Value, mut visit: impl FnMut(&str, &str, &mut Value)) {
    for (path, item) in paths.as_object_mut().into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            visit(method, path, operation);
        }
    }
}
