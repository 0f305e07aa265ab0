//! `POST /tokenize`, `POST /detokenize`, `GET /tokenizer_info`, and the `render` routes: conversions between text and
//! token ids, without generation.
//!
//! `/tokenize` accepts two forms of request, distinguished by their fields: vLLM's `prompt` or `messages`, and
//! llama.cpp's `content`. The response of `/detokenize` has the text under the names of both.

use crate::server::guards::read_object;
use crate::server::parameters::conversation::Conversation;
use crate::server::parameters::read;
use crate::server::parameters::table::{
    DetokenizeRequest, RenderChatRequest, RenderCompletionRequest, TokenizeChatRequest,
    TokenizeContentRequest, TokenizeTextRequest,
};
use crate::server::routes::{chat, forward};
use crate::server::state::{ModelState, ServerState};
use crate::server::wire::error::ApiError;
use crate::text::{TextModel, TextStream, Tokenizer};
use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Cost of decoding a token, as the number of bytes of text that cost as much to encode.
const BYTES_PER_ID: usize = 4;

/// The text of token ids.
pub(crate) fn decode(text: &TextModel, ids: &[u32], skip_special: bool) -> String {
    let mut stream = TextStream::new(text.tokenizer.clone(), &[], skip_special);
    let decoded: String = ids.iter().map(|id| stream.push(*id).text).collect();
    decoded + &stream.finish().text
}

/// The texts of several lists of token ids. Long lists are decoded off the async threads.
pub(crate) async fn decode_all(
    state: &ModelState,
    lists: Vec<Arc<[u32]>>,
    skip_special: bool,
) -> Result<Vec<String>, ApiError> {
    let count: usize = lists.iter().map(|ids| ids.len()).sum();
    state
        .with_text(count * BYTES_PER_ID, move |text: &TextModel| {
            lists
                .iter()
                .map(|ids| decode(text, ids, skip_special))
                .collect()
        })
        .await
}

fn tokenizer(state: &ModelState) -> Result<&Arc<Tokenizer>, ApiError> {
    state.text.tokenizer.as_ref().ok_or_else(no_tokenizer)
}

fn no_tokenizer() -> ApiError {
    ApiError::unsupported("model", "this model has no tokenizer")
}

/// The forms of a request to `/tokenize`.
enum TokenizeRequest {
    Chat(Box<TokenizeChatRequest>),
    Content(TokenizeContentRequest),
    Text(TokenizeTextRequest),
}

impl TokenizeRequest {
    fn read(body: Map<String, Value>, state: &ModelState) -> Result<Self, ApiError> {
        if read::has(&body, "messages") {
            read::whole(body, state).map(|request| Self::Chat(Box::new(request)))
        } else if read::has(&body, "content") {
            read::whole(body, state).map(Self::Content)
        } else {
            read::whole(body, state).map(Self::Text)
        }
    }
}

/// Token ids of a text or a conversation.
pub(crate) async fn tokenize(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let owned = state.clone();
    let request = read_object(request, &state.shared, move |body| {
        TokenizeRequest::read(body, &owned)
    })
    .await?;
    let info = state.ready()?;
    let (ids, names) = match request {
        TokenizeRequest::Chat(request) => {
            let request = *request;
            state.model(request.target.model)?;
            let conversation = Conversation::new(request.conversation)?;
            let bytes_max = state.text_bytes_max()?;
            let ids = chat::prompt(&state, conversation, chat::NAMES, bytes_max).await?;
            (ids, request.return_token_strs)
        }
        TokenizeRequest::Content(request) => return tokenize_content(&state, request).await,
        TokenizeRequest::Text(request) => {
            state.model(request.target.model)?;
            let mut prompts = request
                .prompt
                .encode(&state, request.add_special_tokens)
                .await?;
            (prompts.pop().unwrap_or_default(), request.return_token_strs)
        }
    };
    let tokenizer = tokenizer(&state)?;
    let names = names.then(|| {
        ids.iter()
            .map(|id| name(tokenizer, *id))
            .collect::<Vec<_>>()
    });
    let (count, max_model_len) = (ids.len(), info.max_model_len);
    Ok(Json(
        json!({"count": count, "max_model_len": max_model_len, "tokens": ids, "token_strs": names}),
    ))
}

fn name(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(&tokenizer.token_bytes(id, None)).into_owned()
}

/// `/tokenize` in llama.cpp's form.
async fn tokenize_content(
    state: &ModelState,
    request: TokenizeContentRequest,
) -> Result<Json<Value>, ApiError> {
    let TokenizeContentRequest {
        content,
        add_special,
        parse_special,
        with_pieces,
        target,
    } = request;
    state.model(target.model)?;
    let tokenizer = tokenizer(state)?.clone();
    let (bytes, encoder) = (content.len(), tokenizer.clone());
    let ids = state
        .shared
        .offload(bytes, move || {
            if parse_special {
                encoder.encode(&content, add_special)
            } else {
                encoder.encode_literal(&content, add_special)
            }
        })
        .await?;
    let ids = ids.map_err(|error| ApiError::invalid("content", error.to_string()))?;
    if !with_pieces {
        return Ok(Json(json!({"tokens": ids})));
    }
    Ok(Json(json!({"tokens": ids.iter().map(|id| {
        let bytes = tokenizer.token_bytes(*id, None);
        // A token that is only part of a character is given as its bytes.
        let piece =
            String::from_utf8(bytes).map_or_else(|wrong| json!(wrong.into_bytes()), Value::from);
        json!({"id": id, "piece": piece})
    }).collect::<Vec<_>>()})))
}

/// `POST /v1/chat/completions/input_tokens`: the number of tokens of a conversation.
pub(crate) async fn count_chat(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let request: RenderChatRequest = read::read_part(request, &state).await?;
    let ids = prompt_of_chat(&state, request).await?;
    Ok(Json(
        json!({"object": "response.input_tokens", "input_tokens": ids.len()}),
    ))
}

/// The prompt of a chat request.
async fn prompt_of_chat(
    state: &ModelState,
    request: RenderChatRequest,
) -> Result<Vec<u32>, ApiError> {
    state.model(request.target.model)?;
    let conversation = Conversation::new(request.conversation)?;
    chat::prompt(state, conversation, chat::NAMES, state.text_bytes_max()?).await
}

/// The text of token ids, special ones included.
pub(crate) async fn detokenize(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let request: DetokenizeRequest = read::read(request, &state).await?;
    state.model(request.target.model)?;
    let tokenizer = tokenizer(&state)?.clone();
    let (count, ids) = (request.tokens.len(), request.tokens);
    let text = state
        .with_text(count * BYTES_PER_ID, move |text: &TextModel| {
            tokenizer.whole_text(&decode(text, &ids, false)).to_owned()
        })
        .await?;
    Ok(Json(json!({"prompt": text, "content": text})))
}

/// Tokenizer settings from the model's files. The size of the vocabulary is known of a loaded model.
pub(crate) async fn tokenizer_info(
    State(server): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (_, known) = forward::known_of_query(&server, &request)?;
    let text = &known.outline.text;
    let vocabulary = text
        .tokenizer
        .as_ref()
        .map(|tokenizer| tokenizer.vocabulary());
    if known.device.is_some() && vocabulary.is_none() {
        return Err(no_tokenizer());
    }
    let mut info: Map<String, Value> = text.config.clone();
    info.entry("tokenizer_class")
        .or_insert_with(|| "PreTrainedTokenizerFast".into());
    info.insert("vocab_size".into(), vocabulary.into());
    Ok(Json(Value::Object(info)))
}

/// `POST /v1/chat/completions/render`: the prompt of a chat request.
pub(crate) async fn render_chat(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let request: RenderChatRequest = read::read_part(request, &state).await?;
    let has_offsets = request.return_token_offsets;
    let ids = prompt_of_chat(&state, request).await?;
    rendered(&state, &ids, has_offsets).map(Json)
}

/// A prompt, and where its tokens are if that is asked for.
fn rendered(state: &ModelState, ids: &[u32], has_offsets: bool) -> Result<Value, ApiError> {
    let mut prompt = json!({"token_ids": ids});
    if has_offsets {
        prompt["token_offsets"] = offsets(tokenizer(state)?, ids).into();
    }
    Ok(prompt)
}

/// Where each token is in the text of all, in characters. Tokens that share a character are all where it is.
fn offsets(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<[usize; 2]> {
    let mut characters: usize = 0;
    let of_token = |id: &u32| {
        let bytes = tokenizer.token_bytes(*id, None);
        let begins = |byte: &u8| byte & 0xC0 != 0x80;
        let is_rest = bytes.first().is_some_and(|first| !begins(first));
        let start = characters.saturating_sub(usize::from(is_rest));
        characters += bytes.iter().filter(|byte| begins(byte)).count();
        [start, characters]
    };
    ids.iter().map(of_token).collect()
}

/// `POST /v1/completions/render`: the prompts of a completions request.
pub(crate) async fn render_completions(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let request: RenderCompletionRequest = read::read_part(request, &state).await?;
    state.model(request.target.model)?;
    let prompts = request
        .prompt
        .encode(&state, request.add_special_tokens)
        .await?;
    let prompts = prompts.iter();
    let rendered = prompts.map(|ids| rendered(&state, ids, request.return_token_offsets));
    rendered.collect::<Result<Value, _>>().map(Json)
}
