//! The OpenAPI document: made of what the handlers say of themselves.

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::get;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    Components, ContentBuilder, Info, OpenApi, OpenApiBuilder, PathItem, Ref, ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use super::problem::{self, ItemError, ProblemView};

/// What the document says before any resource is in it.
pub(crate) fn about() -> OpenApi {
    of("Redrive", "An event that was published is handled, or it stands in the dead-letter queue.")
}

/// The same of another service.
pub(crate) fn of(title: &str, about: &str) -> OpenApi {
    let mut info = Info::new(title, env!("CARGO_PKG_VERSION"));
    info.description =
        Some(format!("{about} Every error is `application/problem+json` with a stable `code`."));
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("rdt_…").build();
    let mut components = Components::new();
    components.add_security_scheme("token", SecurityScheme::Http(scheme));
    components.schemas.insert(ProblemView::name().into_owned(), ProblemView::schema());
    components.schemas.insert(ItemError::name().into_owned(), ItemError::schema());
    OpenApiBuilder::new().info(info).components(Some(components)).build()
}

/// Serves it. It is written once.
pub(crate) fn route<S: Clone + Send + Sync + 'static>(mut document: OpenApi) -> Router<S> {
    for item in document.paths.paths.values_mut() {
        may_go_wrong(item);
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

/// Every operation answers what goes wrong in the same shape.
fn may_go_wrong(item: &mut PathItem) {
    let PathItem { get, put, post, delete, patch, .. } = item;
    let problem = ResponseBuilder::new()
        .description("What went wrong; `code` says which kind of problem it is")
        .content(
            problem::MEDIA_TYPE,
            ContentBuilder::new().schema(Some(Ref::from_schema_name(ProblemView::name()))).build(),
        )
        .build();
    for operation in [get, put, post, delete, patch].into_iter().flatten() {
        operation.responses.responses.insert("default".to_owned(), problem.clone().into());
    }
}
