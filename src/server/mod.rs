//! The OpenAI-compatible HTTP API as an axum router, without sockets: it also builds for a browser tab.
//!
//! [`router`] turns a [`ServerState`] into the routes. A request passes the `guards` (host, origin, key, limits of the
//! body). If there are several models, it is forwarded to the one that it asks for, once that is loaded. The handler of
//! its endpoint (`routes`) checks its fields by the table in `parameters`, turns text into token
//! ids with [`crate::text`], and submits it to the engine. The engine returns one receiver per choice. `reply` turns
//! their events into JSON chunks, and the chunks into a stream or a whole reply. `wire` has strict JSON, errors and
//! server-sent events. Dropping the response drops the receivers, which is the only way to cancel a request.
//!
//! `docs/api.md` documents routes, fields and clients for users. `images` reads what conversations show.
//!
//! Nothing here knows a device, a model's weights or the engine's thread; only [`socket`] (feature `server`) knows
//! connections, timeouts and signals.

pub(crate) mod counters;
pub(crate) mod guards;
pub(crate) mod images;
mod local;
pub(crate) mod parameters;
pub(crate) mod reply;
pub(crate) mod routes;
#[cfg(feature = "server")]
pub mod socket;
pub(crate) mod state;
pub(crate) mod stored;
pub(crate) mod traces;
pub(crate) mod wire;

pub use images::ImageReader;
pub use local::{LocalApi, LocalBody, LocalError, LocalEvents, LocalResponse};
pub use parameters::read::nearest;
pub use state::{
    AdapterReader, FleetOptions, Limits, LoadedModel, ModelOutline, ModelSource, Puller, Reranker,
    ResponseBytes, ServedAdapter, ServerOptions, ServerState,
};
pub use traces::{RequestTrace, TraceParent, TraceSink};
pub use wire::error::BodyTimeout;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method};
use guards::access;
use parameters::kind::{Bounds, Group, Row};
use parameters::table::ChatRequest;
use routes::forward;
use routes::openapi::{Handlers, Route};
use routes::table::routes;
use std::sync::LazyLock;
use std::time::Duration;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use wire::error::ApiError;

/// How long a browser may cache the result of a CORS preflight request.
const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(600);

/// The paths of [`router`], as `/openapi.json` writes them.
pub fn paths() -> Vec<&'static str> {
    routes()
        .iter()
        .flat_map(|route| route.paths)
        .copied()
        .collect()
}

/// The documentation of a chat request's fields.
fn chat_rows() -> &'static [Row] {
    static ROWS: LazyLock<Vec<Row>> =
        LazyLock::new(|| ChatRequest::rows(&Bounds::new(&Limits::default(), None)));
    &ROWS
}

/// Names of the fields of a chat request.
pub fn field_names() -> impl Iterator<Item = &'static str> {
    chat_rows().iter().map(|row| row.name)
}

/// All names of a field of a chat request of which this is one; a request may have one of them.
pub fn names_of(name: &str) -> impl Iterator<Item = &'static str> {
    let row = chat_rows().iter().find(|row| row.name == name);
    let field = row.map(|row| row.field);
    chat_rows()
        .iter()
        .filter(move |row| Some(row.field) == field)
        .map(|row| row.name)
}

/// Help for a command-line flag that sets this field of a chat request: its sentence and its range.
pub fn field_help(name: &str) -> String {
    chat_rows()
        .iter()
        .find(|row| row.name == name)
        .map(Row::help)
        .unwrap_or_default()
}

/// CORS for pages of the allowed sites; `None` if no site is allowed.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    let allowed = origins.to_vec();
    let origin = AllowOrigin::predicate(move |origin: &HeaderValue, _: &Parts| {
        origin.to_str().is_ok_and(|origin| {
            allowed
                .iter()
                .any(|pattern| access::matches(pattern, origin))
        })
    });
    let seen = [
        "x-request-id",
        "x-should-retry",
        "retry-after",
        "x-ignored-tools",
    ]
    .map(HeaderName::from_static);
    let layer = CorsLayer::new().allow_origin(origin).allow_methods([
        Method::GET,
        Method::POST,
        Method::DELETE,
    ]);
    let layer = layer
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(seen);
    (!origins.is_empty()).then(|| layer.max_age(PREFLIGHT_MAX_AGE))
}

/// All routes.
pub fn router(state: ServerState) -> Router {
    let panics = tower_http::catch_panic::CatchPanicLayer::custom(|_| {
        tracing::error!("a request handler panicked");
        axum::response::IntoResponse::into_response(ApiError::internal())
    });
    let cors = cors(&state.shared.options.allowed_origins);
    let mut router = Router::new();
    for Route {
        paths,
        handlers,
        operation,
    } in routes()
    {
        let handlers = match (handlers, state.models.one()) {
            (Handlers::Server(handlers), _) => handlers,
            (Handlers::Model(handlers), Some(model)) => handlers.with_state(model.clone()),
            (Handlers::Model(handlers), None) => {
                forward::forwarded(handlers, operation.answer.may_stream())
            }
        };
        for path in paths {
            // Base addresses that end with a slash are common.
            if !path.ends_with(['/', '}']) {
                router = router.route(&format!("{path}/"), handlers.clone());
            }
            router = router.route(path, handlers.clone());
        }
    }
    let router = router
        .fallback(async |request: Request| ApiError::unknown_route(request.uri().path()))
        .method_not_allowed_fallback(async |request: Request| {
            ApiError::wrong_method(request.method().as_str())
        })
        .layer(axum::middleware::from_fn_with_state(
            state.clone(),
            access::guard,
        ));
    // Outside the guard: a browser's preflight request carries no key.
    let router = if let Some(cors) = cors {
        router.layer(cors)
    } else {
        router
    };
    let root = state.shared.options.root_path.clone();
    let router = router
        .layer(panics)
        // The size of a body is checked where it is read, so that the error has the API's own form.
        .layer(DefaultBodyLimit::disable())
        .with_state(state);
    match root.filter(|root| !root.is_empty()) {
        Some(root) => Router::new()
            .nest_service(&root, router.clone())
            .fallback_service(router),
        None => router,
    }
}
