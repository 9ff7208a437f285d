//! The OpenAPI document, generated from the handlers.

use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::routing::get;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    Components, ContentBuilder, Info, OpenApi, OpenApiBuilder, PathItem, Ref, RefOr, Response,
    ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use redrive_api::problem::{self, ItemError, Problem};

/// The document of `redrive serve`, without resources.
pub(crate) fn about() -> OpenApi {
    of("Redrive", "A published event is handled, or it is in the dead-letter queue.")
}

/// The document of a service, without resources.
pub(crate) fn of(title: &str, about: &str) -> OpenApi {
    let mut info = Info::new(title, env!("CARGO_PKG_VERSION"));
    info.description =
        Some(format!("{about} Every error is `application/problem+json` with a stable `code`."));
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("rdt_…").build();
    let mut components = Components::new();
    components.add_security_scheme("token", SecurityScheme::Http(scheme));
    components.schemas.insert(Problem::name().into_owned(), Problem::schema());
    components.schemas.insert(ItemError::name().into_owned(), ItemError::schema());
    OpenApiBuilder::new().info(info).components(Some(components)).build()
}

/// Serves the document, which is serialised once.
pub(crate) fn route<S: Clone + Send + Sync + 'static>(mut document: OpenApi) -> Router<S> {
    for (path, item) in &mut document.paths.paths {
        add_problems(path, item);
    }
    let text = Bytes::from(document.to_json().expect("a document always serialises"));
    Router::new().route(
        "/openapi.json",
        get(move || {
            let text = text.clone();
            async move { ([(header::CONTENT_TYPE, "application/json")], text) }
        }),
    )
}

/// Adds the problems that an operation can answer, by what it is: the middleware and the extractors refuse requests in the same way
/// everywhere. A status of one operation alone is in its own description.
fn add_problems(path: &str, item: &mut PathItem) {
    let PathItem { get, put, post, delete, patch, .. } = item;
    let changing = [put, post, delete, patch].into_iter().flatten().map(|operation| (operation, true));
    for (operation, changes) in changing.chain(get.iter_mut().map(|operation| (operation, false))) {
        let sometimes: [(bool, &[StatusCode]); 5] = [
            (
                true,
                &[
                    StatusCode::BAD_REQUEST,
                    StatusCode::INTERNAL_SERVER_ERROR,
                    StatusCode::SERVICE_UNAVAILABLE,
                ],
            ),
            (
                operation.security.is_some(),
                &[StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS],
            ),
            (
                operation.request_body.is_some(),
                &[
                    StatusCode::REQUEST_TIMEOUT,
                    StatusCode::PAYLOAD_TOO_LARGE,
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                ],
            ),
            (path.contains('{'), &[StatusCode::NOT_FOUND]),
            (changes, &[StatusCode::CONFLICT]),
        ];
        let responses = &mut operation.responses.responses;
        for status in sometimes.iter().filter(|(holds, _)| *holds).flat_map(|(_, statuses)| *statuses) {
            let description = status.canonical_reason().unwrap_or("A problem");
            responses.entry(status.as_str().to_owned()).or_insert_with(|| problem(description));
        }
        responses.insert("default".to_owned(), problem("A problem; `code` names its kind"));
    }
}

fn problem(description: &str) -> RefOr<Response> {
    let schema = Ref::from_schema_name(Problem::name());
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new().description(description).content(problem::MEDIA_TYPE, content).build().into()
}
