//! The chat page: three embedded files, and a content security policy that allows no third-party content.

use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_FRAME_OPTIONS};
use axum::response::IntoResponse;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn headers(kind: &'static str) -> [(HeaderName, &'static str); 5] {
    [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_FRAME_OPTIONS, "DENY"),
        // The files are small and change with the binary.
        (CACHE_CONTROL, "no-cache"),
    ]
}

/// `GET /`.
pub(crate) async fn page() -> impl IntoResponse {
    (headers("text/html; charset=utf-8"), include_str!("ui/index.html"))
}

/// `GET /ui/app.js`.
pub(crate) async fn script() -> impl IntoResponse {
    (headers("text/javascript; charset=utf-8"), include_str!("ui/app.js"))
}

/// `GET /ui/style.css`.
pub(crate) async fn style() -> impl IntoResponse {
    (headers("text/css; charset=utf-8"), include_str!("ui/style.css"))
}
