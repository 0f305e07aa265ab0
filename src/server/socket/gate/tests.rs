//! Tests of `server/socket/gate.rs`.

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
