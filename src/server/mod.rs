//! The OpenAI-compatible HTTP API as an axum router, without sockets: it also builds for a browser tab.
//!
//! [`router`] turns a [`ServerState`] into the routes. A request passes the `guards` (host, origin, key, limits of the
//! body), is checked field by field by the table in `parameters`, becomes token ids through [`crate::text`], and goes
//! to the engine: all that in the file of its endpoint (`routes`). What comes back is one receiver per choice; `reply`
//! makes of them chunks of JSON, and of these a stream or a whole reply. Strict JSON, errors and events are `wire`
//! forms. Dropping the response drops the receivers, and that is the one way to cancel.
//!
//! `docs/api.md` describes routes, fields and clients for users.
//!
//! Nothing here knows a device, a model's weights or the engine's thread; only [`socket`] (feature `server`) knows
//! connections, timeouts and signals.

pub(crate) mod counters;
pub(crate) mod guards;
mod local;
pub(crate) mod parameters;
pub(crate) mod reply;
pub(crate) mod routes;
#[cfg(feature = "server")]
pub mod socket;
pub(crate) mod state;
pub(crate) mod wire;

pub use local::{LocalApi, LocalBody, LocalError, LocalEvents, LocalResponse};
pub use state::{Limits, ServerOptions, ServerState};
pub use wire::error::BodyTimeout;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, HeaderValue, Method};
use guards::access;
use routes::table::routes;
use std::time::Duration;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use wire::error::ApiError;

/// How long a browser may remember what a page of another site may do.
const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(600);

/// The paths of [`router`], as they are written in its document.
pub fn paths() -> Vec<&'static str> {
    routes().into_iter().map(|route| route.path).collect()
}

/// Lets pages of other sites in, if there are any to let in.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    let any = origins.iter().any(|origin| origin == "*");
    let listed = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
    let origin = if any { AllowOrigin::mirror_request() } else { AllowOrigin::list(listed) };
    let seen = ["x-request-id", "x-should-retry", "retry-after"].map(HeaderName::from_static);
    let layer = CorsLayer::new().allow_origin(origin).allow_methods([Method::GET, Method::POST]);
    let layer = layer.allow_headers(AllowHeaders::mirror_request()).expose_headers(seen);
    (!origins.is_empty()).then(|| layer.max_age(PREFLIGHT_MAX_AGE))
}

/// All routes.
pub fn router(state: ServerState) -> Router {
    let panics = tower_http::catch_panic::CatchPanicLayer::custom(|_| {
        tracing::error!("a request handler panicked");
        axum::response::IntoResponse::into_response(ApiError::internal())
    });
    let cors = cors(&state.options.allowed_origins);
    let mut router = Router::new();
    for route in routes() {
        router = router.route(route.path, route.handlers);
    }
    let router = router
        .fallback(async |request: Request| ApiError::unknown_route(request.uri().path()))
        .method_not_allowed_fallback(async |request: Request| ApiError::wrong_method(request.method().as_str()))
        .layer(axum::middleware::from_fn_with_state(state.clone(), access::guard));
    // Outside the guard: a browser asks whether it may send the key before it sends it.
    let router = if let Some(cors) = cors { router.layer(cors) } else { router };
    router
        .layer(panics)
        // Bodies are bounded where they are read, with an answer in the API's own form.
        .layer(DefaultBodyLimit::disable())
        .with_state(state)
}
