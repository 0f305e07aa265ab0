//! What a server answers before its model is there: while a repository is asked, files are downloaded and weights load.

use crate::server::wire::error::ApiError;
use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use tower::ServiceExt as _;

/// Routes that say at once that the model is not there.
const HEALTH: [&str; 3] = ["/health", "/v1/health", "/ping"];

/// Routes that pass requests on to those of the server, once they are there. Until then, `/health` answers 503, and
/// other requests wait for `limit` at most; `None`: as long as it takes.
pub(super) fn gated(ready: watch::Receiver<Option<Router>>, limit: Option<Duration>) -> Router {
    Router::new().fallback(async move |request: Request| pass(ready, limit, request).await)
}

async fn pass(
    mut ready: watch::Receiver<Option<Router>>,
    limit: Option<Duration>,
    request: Request,
) -> Response {
    let is_health = HEALTH.contains(&request.uri().path().trim_end_matches('/'));
    if is_health && ready.borrow().is_none() {
        return ApiError::loading().into_response();
    }
    // It ends without routes if the model cannot be loaded.
    let opened = async {
        ready
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|routes| routes.clone())
    };
    let routes = match limit {
        Some(limit) => timeout(limit, opened).await.ok().flatten(),
        None => opened.await,
    };
    let Some(routes) = routes else {
        return ApiError::loading().into_response();
    };
    let Ok(response) = routes.oneshot(request).await;
    response
}

#[cfg(test)]
mod tests;
