//! `GET /openapi.json`: the routes and the shapes of requests and answers, as an OpenAPI 3.1 document.
//!
//! It is kept by hand in `openapi.json`; a test holds it against the routes.

use axum::Json;
use serde_json::Value;

/// The document, with this build's version.
pub(crate) async fn document() -> Json<Value> {
    let mut document: Value = serde_json::from_str(include_str!("openapi.json")).unwrap_or_default();
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    Json(document)
}
