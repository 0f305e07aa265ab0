//! Reads a request's body: [`read`] removes the fields of a [`Group`] of the table. Those that remain are unknown.
//! Reading a list of messages or of token ids takes as long as parsing it, so both are done on the same thread.

use crate::server::guards::read_object;
use crate::server::parameters::kind::{Bounds, Foreign, Group};
use crate::server::state::ServerState;
use crate::server::wire::error::{ApiError, shorten};
use axum::extract::Request;
use serde_json::{Map, Value};

/// Maximum number of unknown field names of one request that are logged.
const UNKNOWN_PER_REQUEST: usize = 8;

/// Reads a whole request. Unknown fields are logged, each name once, or refused with `strict_fields`.
pub(crate) async fn read<G: Group + Send + 'static>(request: Request, state: &ServerState) -> Result<G, ApiError> {
    let owned = state.clone();
    read_object(request, state, move |body| whole(body, &owned)).await
}

/// Reads some fields of a request and ignores the others.
pub(crate) async fn read_part<G: Group + Send + 'static>(request: Request, state: &ServerState) -> Result<G, ApiError> {
    let owned = state.clone();
    read_object(request, state, move |mut body| part(&mut body, &owned)).await
}

/// [`read`] for a body that was parsed before.
pub(crate) fn whole<G: Group>(mut body: Map<String, Value>, state: &ServerState) -> Result<G, ApiError> {
    let group = part(&mut body, state)?;
    report_unknown(&body, state)?;
    Ok(group)
}

/// Removes the fields of a group. Fields of other servers that would change the answer are refused.
fn part<G: Group>(body: &mut Map<String, Value>, state: &ServerState) -> Result<G, ApiError> {
    let info = state.ready()?;
    let group = G::take(body, "", &Bounds::new(&state.options.limits, Some(info)))?;
    for Foreign { name, reason, is_refused } in G::foreign() {
        if body.remove(name).is_some_and(|value| is_refused && !is_off(&value)) {
            return Err(ApiError::unsupported(name, format!("`{name}` is not supported: {reason}")));
        }
    }
    Ok(group)
}

fn report_unknown(rest: &Map<String, Value>, state: &ServerState) -> Result<(), ApiError> {
    for name in rest.keys().take(UNKNOWN_PER_REQUEST) {
        if state.options.strict_fields {
            return Err(ApiError::invalid(name, format!("unknown field {}", shorten(name))));
        }
        let name = shorten(name);
        if state.is_new_name(&name) {
            tracing::warn!(field = name, "an unknown request field is ignored");
        }
    }
    Ok(())
}

/// Whether an unsupported field has a value that means "not used".
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.values().all(is_off),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::fake::{FakeBackend, Script};
    use crate::config::Config;
    use crate::engine;
    use crate::engine::handle::{Status, channel};
    use crate::model::Model;
    use crate::platform::block_on;
    use crate::server::ServerOptions;
    use axum::body::Body;
    use serde_json::json;
    use std::sync::Arc;
    use std::thread::{ThreadId, current};

    /// A group whose value is the thread that reads it.
    struct Reader(ThreadId);

    impl Group for Reader {
        fn take(_: &mut Map<String, Value>, _: &str, _: &Bounds) -> Result<Self, ApiError> {
            Ok(Self(current().id()))
        }

        fn rows(_: &Bounds) -> Vec<crate::server::parameters::kind::Row> {
            Vec::new()
        }

        fn foreign() -> Vec<Foreign> {
            Vec::new()
        }
    }

    #[test]
    fn a_large_body_is_read_beside_the_async_threads() {
        let (handle, inbox) = channel(1);
        let open = || Ok(FakeBackend::new(Script::default()));
        let thread = engine::spawn(open, Model::demo(), Config::default(), inbox, |_| {});
        while handle.status() != Status::Ready {
            std::thread::yield_now();
        }
        let state = ServerState::new(handle.clone(), Arc::default(), vec!["demo".into()], ServerOptions::default());
        let request = |messages: usize| {
            let body = json!({"messages": vec![json!({"role": "user", "content": "a"}); messages]});
            let request = Request::post("/").header("content-type", "application/json");
            request.body(Body::from(body.to_string())).expect("a request")
        };
        for (messages, is_here) in [(1, true), (100_000, false)] {
            let whole = block_on(read::<Reader>(request(messages), &state)).expect("it is read");
            let part = block_on(read_part::<Reader>(request(messages), &state)).expect("it is read");
            assert_eq!((whole.0 == current().id(), part.0 == current().id()), (is_here, is_here), "{messages}");
        }
        handle.drain();
        drop(thread.join());
    }
}
