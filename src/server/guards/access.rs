//! Access control: the checks of path, host, origin and key that every request passes first.
//!
//! Every page that a developer's browser opens can reach a server on the same machine. The host check stops DNS
//! rebinding (a foreign name that resolves to this address); the origin check stops pages of other sites from posting.
//! `docs/proxies.md` says what a proxy needs.

use super::header_text;
use crate::platform::Instant;
use crate::server::guards::log;
use crate::server::state::ServerState;
use crate::server::traces::TraceParent;
use crate::server::wire::body::kept_until_the_end;
use crate::server::wire::error::{ApiError, Dialect, shorten};
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const REQUEST_ID_CHARACTERS: usize = 64;
/// Paths that need no key. The chat page holds no secret, and users enter the key there.
const OPEN: [&str; 7] = [
    "/",
    "/ui/app.js",
    "/ui/style.css",
    "/ui/licences.txt",
    "/health",
    "/v1/health",
    "/ping",
];

/// Refuses a request, or passes it on and adds a request id to the response. The client's own id is only echoed, never
/// used as a key, because two requests may carry the same one.
pub(crate) async fn guard(
    State(state): State<ServerState>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let given = request_id(request.headers());
    let id = given.clone().unwrap_or_else(|| state.shared.new_id("req"));
    request.extensions_mut().insert(GivenId(given));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let dialect = Dialect::of_request(&path, request.headers());
    let mut response = match check(&state, &request) {
        Ok((client, has_key)) => {
            #[cfg(feature = "server")]
            if let Some(Passed(tell)) = request.extensions_mut().remove()
                && has_key
                && !is_open(&path)
            {
                tell();
            }
            request.extensions_mut().insert(client);
            let charge = state.shared.memory.request();
            request.extensions_mut().insert(charge.clone());
            let mut response = kept_until_the_end(next.run(request).await, charge);
            if has_key {
                response.extensions_mut().insert(KeyOutcome::Right);
            }
            response
        }
        Err(error) => refusal(error),
    };
    if let Some(error) = response.extensions_mut().remove::<ApiError>()
        && dialect != Dialect::OpenAi
    {
        *response.body_mut() = Body::from(error.json(dialect));
    }
    let route = route.as_ref().map(MatchedPath::as_str);
    let counts = &state.shared.http_responses;
    counts.count(route, &method, response.status());
    let mut response = log::logged(response, &id, &method, &path, started);
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(id) = HeaderValue::from_str(&id) {
        // Anthropic's clients read the id without the `x-`.
        if dialect == Dialect::Anthropic {
            headers.insert(HeaderName::from_static("request-id"), id.clone());
        }
        headers.insert(REQUEST_ID, id);
    }
    response
}

fn refusal(error: ApiError) -> Response {
    let mut response = error.into_response();
    if response.status() == StatusCode::UNAUTHORIZED {
        response.extensions_mut().insert(KeyOutcome::Wrong);
    }
    response
}

/// What a route that needs a key says of it, in an extension of the response, for the socket layer, which knows the
/// peer and the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyOutcome {
    Right,
    Wrong,
}

/// A digest of what a request presents as its key; `None` if it presents none, or needs none.
#[cfg(feature = "server")]
pub(crate) fn key_digest(request: &Request) -> Option<[u8; 32]> {
    let headers = request.headers();
    let given = [AUTHORIZATION, API_KEY].map(|name| headers.get(name).map(HeaderValue::as_bytes));
    if given == [None, None] || is_open(request.uri().path()) {
        return None;
    }
    let mut hasher = blake3::Hasher::new();
    for header in given.map(Option::unwrap_or_default) {
        hasher
            .update(&(header.len() as u64).to_le_bytes())
            .update(header);
    }
    Some(hasher.finalize().into())
}

/// Whether a path needs no key.
fn is_open(path: &str) -> bool {
    let path = if path == "/" {
        "/"
    } else {
        path.trim_end_matches('/')
    };
    OPEN.contains(&path)
}

/// Called when a request that needs a key, where keys are needed, has passed the guard. The socket layer, which knows
/// connections, adds it to each request.
#[cfg(feature = "server")]
#[derive(Clone)]
pub(crate) struct Passed(pub(crate) std::sync::Arc<dyn Fn() + Send + Sync>);

/// The client of a request: the index of the API key that it carries, or 0 where no keys are needed, and the span that
/// it sent the request in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Client(pub(crate) u32, pub(crate) Option<TraceParent>);

impl Client {
    /// The client of a request that has passed the guard.
    pub(crate) fn of(request: &Request) -> Self {
        request.extensions().get().copied().unwrap_or_default()
    }
}

/// The id that a client gave to its request by `x-request-id`, if it is one that it may give.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenId(pub(crate) Option<String>);

impl GivenId {
    /// That of a request that has passed the guard.
    pub(crate) fn of(request: &Request) -> Self {
        request.extensions().get().cloned().unwrap_or_default()
    }
}

/// The client of a request, and whether it has a right key or none is needed on this server.
fn check(state: &ServerState, request: &Request) -> Result<(Client, bool), ApiError> {
    let (uri, headers) = (request.uri(), request.headers());
    let keys = &state.shared.options.api_keys;
    // A page that reaches this server by a foreign name has no key, so it gets nothing.
    if keys.is_empty() {
        check_host(uri, headers, &state.shared.options.allowed_hosts)?;
    }
    if !request.method().is_safe() {
        check_origin(headers, &state.shared.options.allowed_origins)?;
    }
    let key = if keys.is_empty() {
        Some(0)
    } else {
        key_of(headers, keys)
    };
    let is_metrics =
        state.shared.options.metrics_open && uri.path().trim_end_matches('/') == "/metrics";
    let Some(client) = key.or((is_open(uri.path()) || is_metrics).then_some(0)) else {
        return Err(ApiError::unauthorized());
    };
    if climbs(uri.path()) {
        return Err(ApiError::unknown_route(uri.path()));
    }
    let parent = headers
        .get(TRACE_PARENT)
        .and_then(|value| TraceParent::parse(value.to_str().ok()?));
    Ok((Client(client, parent), key.is_some()))
}

/// Whether a path has a `..` segment, also percent-encoded.
fn climbs(path: &str) -> bool {
    let plain = path
        .to_ascii_lowercase()
        .replace("%2e", ".")
        .replace("%2f", "/")
        .replace("%5c", "/");
    plain.split(['/', '\\']).any(|segment| segment == "..")
}

fn check_host(uri: &Uri, headers: &HeaderMap, allowed: &[String]) -> Result<(), ApiError> {
    let header = headers
        .get_all(HOST)
        .iter()
        .map(|value| value.to_str().unwrap_or("?"));
    // Browsers always send a host, so a request without one is not from a browser.
    for authority in header.chain(uri.authority().map(axum::http::uri::Authority::as_str)) {
        let host = host_of(authority);
        // DNS rebinding needs a name; an IP address cannot be rebound.
        let is_address = host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok();
        if !is_address
            && !host.eq_ignore_ascii_case("localhost")
            && !allowed.iter().any(|pattern| matches(pattern, host))
        {
            let message = format!(
                "host {} is not allowed; allow it with --allowed-host, or set an API key",
                shorten(host)
            );
            return Err(ApiError::forbidden(message));
        }
    }
    Ok(())
}

/// A host without its port.
fn host_of(authority: &str) -> &str {
    match authority.rfind(':') {
        Some(colon) if !authority[colon..].contains(']') => &authority[..colon],
        _ => authority,
    }
}

/// Whether a text, in any case, is what a pattern stands for: `*` in it stands for any characters.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.to_ascii_lowercase(), text.to_ascii_lowercase());
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts: Vec<_> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else {
            return false;
        };
        rest = after;
    }
    rest.ends_with(last)
}

/// Browsers say which site a request comes from; other clients do not.
fn check_origin(headers: &HeaderMap, allowed: &[String]) -> Result<(), ApiError> {
    let same_origin = match (header_text(headers, ORIGIN), header_text(headers, HOST)) {
        (None, _) => true,
        (Some(origin), Some(host)) => {
            let origin = origin
                .strip_prefix("http://")
                .or_else(|| origin.strip_prefix("https://"));
            origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
        }
        (Some(_), None) => false,
    };
    if header_text(headers, ORIGIN)
        .is_some_and(|origin| allowed.iter().any(|pattern| matches(pattern, origin)))
    {
        return Ok(());
    }
    let site = header_text(headers, HeaderName::from_static("sec-fetch-site")).unwrap_or("none");
    if same_origin && ["none", "same-origin"].contains(&site) {
        return Ok(());
    }
    Err(ApiError::forbidden(
        "cross-origin requests are refused; allow an origin with --allowed-origins",
    ))
}

/// Index of the key in `Authorization: Bearer KEY` or `X-Api-Key: KEY`. Digests are compared, and always all of them,
/// so the time does not depend on a key's content or length or on which key matches.
fn key_of(headers: &HeaderMap, keys: &[String]) -> Option<u32> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let value = value.as_bytes();
        let space = value.iter().position(|byte| *byte == b' ')?;
        let (scheme, rest) = value.split_at(space);
        scheme
            .eq_ignore_ascii_case(b"bearer")
            .then(|| rest.trim_ascii())
    });
    let own = headers.get(API_KEY).map(HeaderValue::as_bytes);
    let given: Vec<_> = [bearer, own]
        .into_iter()
        .flatten()
        .map(blake3::hash)
        .collect();
    let mut found = None;
    for (index, key) in (0..).zip(keys) {
        let expected = blake3::hash(key.as_bytes());
        if given
            .iter()
            .fold(subtle::Choice::from(0), |any, given| {
                any | given.as_bytes().ct_eq(expected.as_bytes())
            })
            .into()
        {
            found = Some(index);
        }
    }
    found
}

/// The client's request id, if it is short and has only plain characters.
fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    ((1..=REQUEST_ID_CHARACTERS).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)))
    .then(|| id.to_owned())
}
