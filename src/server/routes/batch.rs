//! `POST /v1/chat/completions/batch`: several conversations in one request, as vLLM's clients send them. Each is
//! answered as a request of its own; the answers are the choices of one reply.

use crate::server::guards::{Client, GivenId, read_object};
use crate::server::parameters::kind::wrong;
use crate::server::parameters::read;
use crate::server::parameters::table::ChatRequest;
use crate::server::reply::weight::Weight;
use crate::server::routes::chat::{self, AskedChat};
use crate::server::state::ModelState;
use crate::server::wire::error::ApiError;
use crate::server::wire::json::write;
use axum::Json;
use axum::extract::{Request, State};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http_body_util::BodyExt as _;
use serde_json::{Map, Value};

/// Maximum conversations that are answered at once, so that one request does not fill the queue.
const CONVERSATIONS_AT_ONCE: usize = 16;

/// Answers every conversation.
pub(crate) async fn chats(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (client, id) = (Client::of(&request), GivenId::of(&request));
    let most = state.shared.options.limits.prompts_max;
    let (conversations, rest) = read_object(request, &state.shared, move |body| {
        conversations(body, most)
    })
    .await?;
    // Each conversation has its own copy of the other fields.
    let charge = state.shared.memory.request();
    let copied = write(&rest).len() * (conversations.len() - 1);
    charge.add(copied as u64)?;
    let asked = conversations
        .into_iter()
        .map(|messages| asked(&state, client, &rest, messages));
    let asked: Vec<_> = stream::iter(asked)
        .buffered(CONVERSATIONS_AT_ONCE)
        .try_collect()
        .await?;
    // Their answers come in one reply, so they are weighed together before anything is computed.
    let info = state.ready()?;
    let weights = asked.iter().map(|asked| asked.weight(info));
    let weight = weights.fold(Weight::default(), Weight::and);
    weight
        .check(state.shared.options.limits.reply_bytes_max)
        .map_err(|error| ApiError::refused(&error, chat::NAMES))?;
    let answers = asked
        .into_iter()
        .map(|asked| answer(&state, asked, id.clone()));
    let answers: Vec<Value> = stream::iter(answers)
        .buffered(CONVERSATIONS_AT_ONCE)
        .try_collect()
        .await?;
    Ok(Json(joined(answers)))
}

/// One conversation with the fields of all, as a request of its own.
async fn asked(
    state: &ModelState,
    client: Client,
    rest: &Map<String, Value>,
    messages: Value,
) -> Result<AskedChat, ApiError> {
    let mut body = rest.clone();
    body.insert("messages".to_owned(), messages);
    let request: ChatRequest = read::whole(body, state)?;
    AskedChat::new(state, client, request).await
}

/// The answer to one conversation, as JSON.
async fn answer(state: &ModelState, asked: AskedChat, id: GivenId) -> Result<Value, ApiError> {
    let response = asked.answer(state, id).await?;
    let bytes = response.into_body().collect().await;
    let bytes = bytes.map_err(|_| ApiError::internal())?.to_bytes();
    serde_json::from_slice(&bytes).map_err(|_| ApiError::internal())
}

/// The conversations of a request, and its other fields.
fn conversations(
    mut body: Map<String, Value>,
    most: usize,
) -> Result<(Vec<Value>, Map<String, Value>), ApiError> {
    if body.get("stream").is_some_and(|stream| *stream == true) {
        let message = "`stream` must be false: the answers to several conversations come together";
        return Err(ApiError::invalid("stream", message));
    }
    let rule = format!("a list of 1 to {most} conversations, each a list of messages");
    match body.remove("messages") {
        None => Err(ApiError::missing("messages")),
        Some(Value::Array(all)) if (1..=most).contains(&all.len()) => {
            match all.iter().find(|one| !one.is_array()) {
                Some(other) => Err(wrong("messages", &rule, other)),
                None => Ok((all, body)),
            }
        }
        Some(other) => Err(wrong("messages", &rule, &other)),
    }
}

/// One reply with the choices of all answers, in their order, and the sums of their tokens.
fn joined(answers: Vec<Value>) -> Value {
    let mut answers = answers.into_iter();
    let mut whole = answers.next().unwrap_or_default();
    for mut answer in answers {
        add(&mut whole["usage"], &answer["usage"]);
        if let (Value::Array(all), Value::Array(more)) =
            (&mut whole["choices"], &mut answer["choices"])
        {
            all.append(more);
        }
    }
    let choices = whole["choices"].as_array_mut().into_iter().flatten();
    for (index, choice) in choices.enumerate() {
        choice["index"] = index.into();
    }
    whole
}

/// Adds the numbers of `more`, also those in objects.
fn add(sum: &mut Value, more: &Value) {
    match (sum, more) {
        (Value::Object(sum), Value::Object(more)) => {
            for (name, more) in more {
                add(sum.entry(name).or_insert(Value::Null), more);
            }
        }
        (sum, Value::Number(more)) => {
            let both = sum.as_u64().unwrap_or(0) + more.as_u64().unwrap_or(0);
            *sum = both.into();
        }
        (sum @ Value::Null, more) => *sum = more.clone(),
        _ => {}
    }
}
