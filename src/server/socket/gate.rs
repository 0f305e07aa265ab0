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
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::routing::get;
    use futures_util::FutureExt as _;

    fn ask(routes: &Router, path: &str) -> impl Future<Output = StatusCode> + use<> {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        routes
            .clone()
            .oneshot(request)
            .map(|response| response.expect("routes do not fail").status())
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_for_the_model_and_health_does_not() {
        let (open, ready) = watch::channel(None);
        let limit = Duration::from_secs(5);
        let routes = gated(ready, Some(limit));
        for path in ["/health", "/ping/"] {
            assert_eq!(
                ask(&routes, path).now_or_never(),
                Some(StatusCode::SERVICE_UNAVAILABLE),
                "{path}"
            );
        }
        let waiting = tokio::spawn(ask(&routes, "/v1/models"));
        assert_eq!(
            timeout(limit * 2, ask(&routes, "/v1/models")).await,
            Ok(StatusCode::SERVICE_UNAVAILABLE)
        );
        assert_eq!(
            waiting.await.expect("it does not panic"),
            StatusCode::SERVICE_UNAVAILABLE
        );
        let waiting = tokio::spawn(ask(&routes, "/v1/models"));
        tokio::task::yield_now().await;
        open.send_replace(Some(Router::new().fallback(get(|| async { "here" }))));
        assert_eq!(waiting.await.expect("it does not panic"), StatusCode::OK);
        assert_eq!(ask(&routes, "/health").await, StatusCode::OK);
    }

    #[tokio::test]
    async fn requests_end_if_the_model_cannot_be_loaded() {
        let (open, ready) = watch::channel(None);
        let routes = gated(ready, None);
        let waiting = tokio::spawn(ask(&routes, "/v1/models"));
        tokio::task::yield_now().await;
        drop(open);
        assert_eq!(
            waiting.await.expect("it does not panic"),
            StatusCode::SERVICE_UNAVAILABLE
        );
    }
}
