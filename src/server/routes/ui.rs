//! The chat page: embedded files, and a content security policy that allows no third-party content and no inline code.
//!
//! `docs/page.md` describes it to users. `assets/page` is built from `web/page` by `npm run page` in `web`; a test
//! there keeps both equal.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use std::sync::LazyLock;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types dompurify";

/// A file of the page.
struct File {
    kind: &'static str,
    text: &'static str,
    /// Changes with the text.
    tag: String,
}

impl File {
    fn new(kind: &'static str, text: &'static str) -> Self {
        Self { kind, text, tag: format!("\"{}\"", &blake3::hash(text.as_bytes()).to_hex()[..16]) }
    }

    /// The file, or only that the client has it already.
    fn respond(&self, request: &HeaderMap) -> Response {
        let headers = [
            (CONTENT_TYPE, self.kind),
            (CONTENT_SECURITY_POLICY, POLICY),
            (REFERRER_POLICY, "no-referrer"),
            (X_FRAME_OPTIONS, "DENY"),
            // The files change with the binary.
            (CACHE_CONTROL, "no-cache"),
            (ETAG, &self.tag),
        ];
        let held = request.get_all(IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
        // A proxy that compresses the file marks the tag as weak.
        if held.flat_map(|tags| tags.split(',')).any(|tag| tag.trim().trim_start_matches("W/") == self.tag) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        (headers, self.text).into_response()
    }
}

/// Declares the handler of a file.
macro_rules! file {
    ($(#[doc = $about:literal])+ $name:ident, $kind:literal, $path:literal) => {
        $(#[doc = $about])+
        pub(crate) async fn $name(request: HeaderMap) -> Response {
            static FILE: LazyLock<File> = LazyLock::new(|| File::new($kind, include_str!($path)));
            FILE.respond(&request)
        }
    };
}

file! {
    /// `GET /`.
    page, "text/html; charset=utf-8", "../../../assets/page/index.html"
}
file! {
    /// `GET /ui/app.js`.
    script, "text/javascript; charset=utf-8", "../../../assets/page/app.js"
}
file! {
    /// `GET /ui/style.css`.
    style, "text/css; charset=utf-8", "../../../assets/page/style.css"
}
file! {
    /// `GET /ui/licences.txt`.
    licences, "text/plain; charset=utf-8", "../../../assets/page/licences.txt"
}
