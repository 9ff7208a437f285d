//! The OpenAPI document, generated from the handlers.

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::get;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    Components, ContentBuilder, Info, OpenApi, OpenApiBuilder, PathItem, Ref, ResponseBuilder,
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
    for item in document.paths.paths.values_mut() {
        add_problem(item);
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

/// Adds the problem answer to every operation.
fn add_problem(item: &mut PathItem) {
    let PathItem { get, put, post, delete, patch, .. } = item;
    let problem = ResponseBuilder::new()
        .description("A problem; `code` names its kind")
        .content(
            problem::MEDIA_TYPE,
            ContentBuilder::new().schema(Some(Ref::from_schema_name(Problem::name()))).build(),
        )
        .build();
    for operation in [get, put, post, delete, patch].into_iter().flatten() {
        operation.responses.responses.insert("default".to_owned(), problem.clone().into());
    }
}
