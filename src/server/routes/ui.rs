//! The chat page: embedded files, and a content security policy that allows no third-party content and no inline code.
//!
//! `docs/page.md` describes it to users. `assets/page` is built from `web/page` by `npm run page` in `web`; a test
//! there keeps both equal.

use axum::body::Bytes;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, VARY, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::read::GzEncoder;
use std::io::Read as _;
use std::sync::LazyLock;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types dompurify";

/// A file of the page.
struct File {
    kind: &'static str,
    plain: Form,
    /// Compressed once, when the file is first asked for.
    gzip: Form,
}

/// What is sent of a file.
struct Form {
    bytes: Bytes,
    /// Changes with the text, and differs between the forms.
    tag: String,
}

impl File {
    fn new(kind: &'static str, text: &'static str) -> Self {
        let hash = &blake3::hash(text.as_bytes()).to_hex()[..16];
        let mut gzip = Vec::new();
        GzEncoder::new(text.as_bytes(), Compression::best())
            .read_to_end(&mut gzip)
            .expect("memory can be read");
        Self {
            kind,
            plain: Form {
                bytes: Bytes::from_static(text.as_bytes()),
                tag: format!("\"{hash}\""),
            },
            gzip: Form {
                bytes: gzip.into(),
                tag: format!("\"{hash}-gzip\""),
            },
        }
    }

    /// The file, or only that the client has it already.
    fn respond(&self, request: &HeaderMap) -> Response {
        let is_compressed = accepts_gzip(request);
        let Form { bytes, tag } = if is_compressed {
            &self.gzip
        } else {
            &self.plain
        };
        let headers = [
            (CONTENT_TYPE, self.kind),
            (CONTENT_SECURITY_POLICY, POLICY),
            (REFERRER_POLICY, "no-referrer"),
            (X_FRAME_OPTIONS, "DENY"),
            // The files change with the binary.
            (CACHE_CONTROL, "no-cache"),
            (VARY, "accept-encoding"),
            (ETAG, tag),
        ];
        // A proxy that compresses the file marks the tag as weak.
        if listed(request, &IF_NONE_MATCH).any(|held| held.trim_start_matches("W/") == tag) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        let mut response = (headers, bytes.clone()).into_response();
        if is_compressed {
            response
                .headers_mut()
                .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}

/// The entries of a header that is a list, in all its lines.
fn listed<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers
        .get_all(name)
        .iter()
        .filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// Whether the sender of a request reads gzip. An entry for gzip itself counts more than one for every encoding.
fn accepts_gzip(request: &HeaderMap) -> bool {
    let weight = |encoding: &str| {
        listed(request, &ACCEPT_ENCODING).find_map(|entry| {
            let (name, parameters) = entry.split_once(';').unwrap_or((entry, ""));
            let weight = parameters
                .trim()
                .strip_prefix("q=")
                .map_or(Some(1.0), |weight| weight.parse::<f32>().ok());
            name.trim()
                .eq_ignore_ascii_case(encoding)
                .then_some(weight.unwrap_or(0.0))
        })
    };
    weight("gzip")
        .or_else(|| weight("*"))
        .is_some_and(|weight| weight > 0.0)
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

#[cfg(test)]
mod tests;
