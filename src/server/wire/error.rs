//! [`ApiError`]: every error in the form that OpenAI's clients expect, `{"error": {message, type, param, code}}`, with
//! all four keys for every status.

use crate::engine::request::{RequestError, SubmitError};
use crate::text::GrammarError;
use axum::http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;
#[cfg(feature = "server")]
use std::time::Duration;

/// Maximum characters of a client's own text that an error message repeats.
const ECHO_CHARACTERS: usize = 64;
/// Maximum served names in an error message.
const NAMES_LISTED: usize = 16;

/// Pairs of a field's name in the engine and its name in a request, where they differ.
pub(crate) type Names = &'static [(&'static str, &'static str)];

/// The name of one of the engine's fields in a request.
pub(crate) fn name_of(field: &'static str, names: Names) -> &'static str {
    names
        .iter()
        .find(|(ours, _)| *ours == field)
        .map_or(field, |(_, theirs)| *theirs)
}

/// The form of an error's JSON. All have the same message, parameter and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `{"error": {message, type, param, code}}`.
    OpenAi,
    /// `{"type": "error", "error": {message, type, param, code}}`, with Anthropic's types.
    Anthropic,
    /// `{"error": message, param, code}`.
    Ollama,
}

impl Dialect {
    /// The form that clients of a path expect.
    pub(crate) fn of(path: &str) -> Self {
        match path {
            _ if is_under(path, "/v1/messages") => Self::Anthropic,
            _ if is_under(path, "/api") => Self::Ollama,
            _ => Self::OpenAi,
        }
    }

    /// The form that the sender of a request expects: lists of models have OpenAI's path in Anthropic's API too, whose
    /// clients name its version.
    pub(crate) fn of_request(path: &str, headers: &HeaderMap) -> Self {
        let lists_models = ["/v1/models", "/models"]
            .iter()
            .any(|root| is_under(path, root));
        if lists_models && headers.contains_key("anthropic-version") {
            Self::Anthropic
        } else {
            Self::of(path)
        }
    }
}

fn is_under(path: &str, root: &str) -> bool {
    path.strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An error: the request was refused, or the server failed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: &'static str,
    retry_after_seconds: Option<u32>,
    /// The same request would fail again, so clients must not retry it, although the status is 5xx.
    deterministic: bool,
    /// The prompt's tokens and the context, if the prompt is too long.
    overflow: Option<(u32, u32)>,
}

/// The sender of a request body stalled. The socket raises this error, and the body's reader turns it into status 408.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the request body did not arrive in time")]
pub struct BodyTimeout;

impl ApiError {
    fn new(
        status: StatusCode,
        kind: &'static str,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        let message = message.into();
        Self {
            status,
            kind,
            message,
            param: None,
            code,
            retry_after_seconds: None,
            deterministic: false,
            overflow: None,
        }
    }

    fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid_request_error",
            code,
            message,
        )
    }

    fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        let error = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_error",
            code,
            message,
        );
        Self {
            retry_after_seconds: Some(5),
            ..error
        }
    }

    fn about(self, param: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..self
        }
    }

    /// A body that is not a JSON object.
    pub(crate) fn body(message: impl Into<String>) -> Self {
        Self::bad("invalid_value", message)
    }

    /// A field outside its range.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad("invalid_value", message).about(param)
    }

    /// A grammar that cannot be compiled, or is too large.
    pub(crate) fn grammar(param: impl Into<String>, error: &GrammarError) -> Self {
        let param = param.into();
        Self::bad("grammar_error", format!("`{param}`: {error}")).about(param)
    }

    /// A required field is missing.
    pub(crate) fn missing(param: impl Into<String>) -> Self {
        let param = param.into();
        Self::bad(
            "missing_required_parameter",
            format!("`{param}` is required"),
        )
        .about(param)
    }

    /// A known field that is refused rather than silently ignored.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad("unsupported_parameter", message).about(param)
    }

    /// A field that other servers support.
    pub(crate) fn not_supported(param: &str) -> Self {
        Self::unsupported(param, format!("`{param}` is not supported"))
    }

    /// A prompt that is longer than the context. Clients recognise OpenAI's sentence and code, and shorten the prompt.
    pub(crate) fn context_length(param: impl Into<String>, context: u32, has: &str) -> Self {
        let (param, limit) = (
            param.into(),
            format!("This model's maximum context length is {context} tokens."),
        );
        let message = format!("{limit} However, {has}. Please reduce the length of `{param}`.");
        Self::bad("context_length_exceeded", message).about(param)
    }

    /// A name that no model has; `names` are those that there are.
    pub(crate) fn unknown_model<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Self {
        let mut names = names.map(|name| format!("`{name}`"));
        let listed = names
            .by_ref()
            .take(NAMES_LISTED)
            .collect::<Vec<_>>()
            .join(", ");
        let more = names.count();
        let more = if more > 0 {
            format!(" and {more} more (GET /v1/models)")
        } else {
            String::new()
        };
        let message = format!("model {} not found; there is {listed}{more}", shorten(name));
        Self::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            "model_not_found",
            message,
        )
        .about("model")
    }

    /// In vLLM's words.
    pub(crate) fn unknown_adapter(name: &str) -> Self {
        let message = format!("The lora adapter {} cannot be found.", shorten(name));
        Self::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            "adapter_not_found",
            message,
        )
        .about("lora_name")
    }

    pub(crate) fn unknown_response(id: &str) -> Self {
        let message = format!("response {} is not stored", shorten(id));
        Self::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            "response_not_found",
            message,
        )
    }

    pub(crate) fn previous_response(id: &str) -> Self {
        let message = format!(
            "response {}, or one that it follows, is not stored",
            shorten(id)
        );
        Self::bad("previous_response_not_found", message).about("previous_response_id")
    }

    pub(crate) fn unknown_route(path: &str) -> Self {
        let message = format!("unknown path {}", shorten(path));
        Self::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            "not_found",
            message,
        )
    }

    pub(crate) fn wrong_method(method: &str) -> Self {
        let message = format!("method {} is not allowed on this path", shorten(method));
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "invalid_request_error",
            "method_not_allowed",
            message,
        )
    }

    /// What this server does not do, whatever the request says.
    pub(crate) fn not_implemented(message: &str) -> Self {
        let error = Self::new(
            StatusCode::NOT_IMPLEMENTED,
            "not_supported_error",
            "not_supported",
            message,
        );
        Self {
            deterministic: true,
            ..error
        }
    }

    pub(crate) fn body_too_large(bytes_max: usize) -> Self {
        let message = format!("the body is larger than {bytes_max} bytes");
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            "body_too_large",
            message,
        )
    }

    /// All requests together take too much memory.
    pub(crate) fn requests_too_large(bytes_max: u64) -> Self {
        let message = format!(
            "the requests that wait and run would take more than {bytes_max} bytes; try again later"
        );
        let refusal = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "rate_limit_error",
            "requests_too_large",
            message,
        );
        Self {
            retry_after_seconds: Some(1),
            ..refusal
        }
    }

    pub(crate) fn body_timeout() -> Self {
        let message = BodyTimeout.to_string();
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "invalid_request_error",
            "body_timeout",
            message,
        )
    }

    pub(crate) fn media_type(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "invalid_request_error",
            "unsupported_media_type",
            message,
        )
    }

    pub(crate) fn unauthorized() -> Self {
        let message = "missing or invalid API key: send it as `Authorization: Bearer KEY`";
        Self::new(
            StatusCode::UNAUTHORIZED,
            "authentication_error",
            "invalid_api_key",
            message,
        )
    }

    #[cfg(feature = "server")]
    pub(crate) fn too_many_wrong_keys(wait: Duration) -> Self {
        let message = "too many requests with a wrong API key from this address";
        let error = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "rate_limit_error",
            "too_many_wrong_keys",
            message,
        );
        Self {
            retry_after_seconds: Some(wait.as_secs().min(3600) as u32 + 1),
            ..error
        }
    }

    #[cfg(feature = "server")]
    pub(crate) fn too_many_connections() -> Self {
        Self::unavailable(
            "too_many_connections",
            "every connection of this server has a request in progress",
        )
    }

    /// As many sequences run as can.
    pub(crate) fn no_slot() -> Self {
        Self::unavailable("no_slot", "no slot is available")
    }

    /// Something of which there is one, which is used already.
    pub(crate) fn busy(message: &str) -> Self {
        let error = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "rate_limit_error",
            "busy",
            message,
        );
        Self {
            retry_after_seconds: Some(10),
            ..error
        }
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "permission_error",
            "forbidden",
            message,
        )
    }

    pub(crate) fn loading() -> Self {
        Self::unavailable("model_loading", SubmitError::Loading.to_string())
    }

    /// A model that is not loaded in time.
    pub(crate) fn still_loading(name: &str, seconds: u64) -> Self {
        let message = format!("model {} is not loaded after {seconds} s", shorten(name));
        Self::unavailable("model_loading", message)
    }

    /// A model that could not be loaded. A retry tries again, and most likely in vain.
    pub(crate) fn load_failed(name: &str, reason: &str) -> Self {
        let message = format!("model {} could not be loaded: {reason}", shorten(name));
        let error = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_error",
            "model_load_failed",
            message,
        );
        Self {
            deterministic: true,
            ..error
        }
    }

    pub(crate) fn shutting_down() -> Self {
        Self::unavailable(
            "server_shutting_down",
            SubmitError::ShuttingDown.to_string(),
        )
    }

    pub(crate) fn device_lost() -> Self {
        Self::unavailable("device_lost", SubmitError::DeviceLost.to_string())
    }

    pub(crate) fn internal() -> Self {
        let message = "internal error: the server failed on this request";
        let error = Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "server_error",
            "internal_error",
            message,
        );
        Self {
            deterministic: true,
            ..error
        }
    }

    /// A request that the engine refused on submission. `names` maps the engine's field names to the request's.
    pub(crate) fn refused(error: &SubmitError, names: Names) -> Self {
        let name = |field| name_of(field, names);
        match error {
            SubmitError::Overloaded { .. } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                let refusal =
                    Self::new(status, "rate_limit_error", "queue_full", error.to_string());
                Self {
                    retry_after_seconds: Some(1),
                    ..refusal
                }
            }
            SubmitError::Loading => Self::loading(),
            SubmitError::ShuttingDown => Self::shutting_down(),
            SubmitError::DeviceLost => Self::device_lost(),
            SubmitError::PromptTooLong { tokens, limit } => {
                let name = name("prompt");
                let no_room = if tokens > limit {
                    ""
                } else {
                    ", which leaves no room for an answer"
                };
                let has = format!("your `{name}` resulted in {tokens} tokens{no_room}");
                Self {
                    overflow: Some((*tokens, *limit)),
                    ..Self::context_length(name, *limit, &has)
                }
            }
            SubmitError::Invalid { field, message } => {
                let name = name(*field);
                Self::invalid(name, format!("`{name}` {message}"))
            }
        }
    }

    /// A request that failed while it ran.
    pub(crate) fn failed(error: RequestError) -> Self {
        let fault = |code| {
            Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "server_error",
                code,
                error.to_string(),
            )
        };
        match error {
            RequestError::NumericalError => Self {
                deterministic: true,
                ..fault("numerical_error")
            },
            // Its fields contradict each other: a grammar and the tokens that are left to follow it.
            RequestError::Grammar => Self::bad("grammar_error", error.to_string()),
            RequestError::TooFewAnswers => Self::invalid("n", error.to_string()),
            RequestError::Internal => fault("internal_error"),
            RequestError::DeviceLost => Self::device_lost(),
            RequestError::ShuttingDown => Self::shutting_down(),
        }
    }

    /// The body of the response, or an event if the status of the stream was already sent.
    pub(crate) fn json(&self, dialect: Dialect) -> String {
        let Self {
            message,
            kind,
            param,
            code,
            ..
        } = self;
        let error = |kind: &str, message: &str| json!({"message": message, "type": kind, "param": param, "code": code});
        match dialect {
            Dialect::OpenAi => json!({"error": error(kind, message)}),
            Dialect::Anthropic => {
                json!({"type": "error", "error": error(self.anthropic_kind(), &self.anthropic_message())})
            }
            Dialect::Ollama => json!({"error": message, "param": param, "code": code}),
        }
        .to_string()
    }

    /// What is wrong.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    fn anthropic_kind(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::INTERNAL_SERVER_ERROR => "api_error",
            _ => self.kind,
        }
    }

    /// Anthropic's clients recognise these words, and shorten the conversation.
    fn anthropic_message(&self) -> String {
        match self.overflow {
            Some((tokens, limit)) => {
                format!("prompt is too long: {tokens} tokens > {limit} maximum")
            }
            None if self.code == "context_length_exceeded" => {
                format!("prompt is too long: {}", self.message)
            }
            None => self.message.clone(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.json(Dialect::OpenAi)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.deterministic {
            headers.insert(
                HeaderName::from_static("x-should-retry"),
                HeaderValue::from_static("false"),
            );
        }
        // The rest of such a body is not read, so the connection cannot be reused for another request.
        if matches!(
            self.status,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT
        ) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        // The guard, which knows the path, writes it in another form where clients expect one.
        response.extensions_mut().insert(self);
        response
    }
}

/// A client's own text, quoted, escaped and shortened.
pub(crate) fn shorten(text: &str) -> String {
    let mut characters = text.chars();
    let start: String = characters.by_ref().take(ECHO_CHARACTERS).collect();
    let more = if characters.next().is_some() {
        "…"
    } else {
        ""
    };
    format!("`{}{more}`", start.escape_debug())
}
