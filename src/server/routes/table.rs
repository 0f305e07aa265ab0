//! The table of routes: every path with its handler and its documentation.
//!
//! Routes of OpenAI's API also exist without `/v1`, because clients of llama.cpp leave it out.

use crate::server::parameters::anthropic::{CountTokensRequest, MessagesRequest};
use crate::server::parameters::kind::Bounds;
use crate::server::parameters::ollama::{
    OllamaChatRequest, OllamaEmbedRequest, OllamaEmbeddingsRequest, OllamaGenerateRequest, OllamaShowRequest,
};
use crate::server::parameters::responses::{InputTokensRequest, ResponsesRequest};
use crate::server::parameters::table::{
    ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest, LlamaRequest, RenderChatRequest,
    RenderCompletionRequest, TokenizeChatRequest, TokenizeContentRequest, TokenizeTextRequest,
};
use crate::server::routes::openapi::{self, Answer, Body, Operation, Route, group};
#[cfg(feature = "server")]
use crate::server::routes::ui;
use crate::server::routes::{
    chat, completions, embeddings, health, llama, load, messages, metrics, models, ollama, responses, tokens,
};
use crate::server::state::ServerState;
use axum::Json;
use axum::extract::State;
use axum::routing::{delete, get, post};
use serde_json::{Value, json};

/// `GET /openapi.json`.
async fn document(State(state): State<ServerState>) -> Json<Value> {
    let bounds = Bounds::new(&state.options.limits, state.engine.info());
    Json(openapi::document(&routes(), &bounds))
}

/// All paths.
pub(crate) fn routes() -> Vec<Route> {
    page_routes().into_iter().chain(api_routes()).collect()
}

/// In a tab the API is called by a page.
#[cfg(not(feature = "server"))]
fn page_routes() -> Vec<Route> {
    Vec::new()
}

#[cfg(feature = "server")]
fn page_routes() -> Vec<Route> {
    let file = |path, handlers, (summary, kind)| Route {
        path,
        handlers,
        operation: Operation::get(summary, Answer::Text(kind)).open(),
    };
    vec![
        file("/", get(ui::page), ("The chat page.", "text/html")),
        file("/ui/app.js", get(ui::script), ("The chat page's script.", "text/javascript")),
        file("/ui/style.css", get(ui::style), ("The chat page's style.", "text/css")),
        file("/ui/licences.txt", get(ui::licences), ("Licences of the chat page's libraries.", "text/plain")),
    ]
}

fn api_routes() -> Vec<Route> {
    let route = |path, handlers, operation| Route { path, handlers, operation };
    let object = |summary| Operation::get(summary, Answer::Object);
    let ping = Operation { methods: &["get", "post"], ..health_operation().open() };
    vec![
        route("/openapi.json", get(document), object("This document.")),
        route("/health", get(health::health), health_operation().open()),
        route("/v1/health", get(health::health), health_operation()),
        route("/ping", get(health::health).post(health::health), ping),
        route("/version", get(health::version), object("The version of this build.")),
        route("/metrics", get(metrics::metrics), metrics_operation()),
        route("/load", get(load::load), object("The number of answers that are being generated.")),
        route("/v1/loads", get(load::loads), object("How busy the engine is, for load balancers.")),
        route("/v1/models", get(models::list), list_operation()),
        route("/models", get(models::list), list_operation()),
        route("/v1/models/{*name}", get(models::retrieve), model_operation()),
        route("/models/{*name}", get(models::retrieve), model_operation()),
        route("/v1/chat/completions", post(chat::chat), chat_operation()),
        route("/chat/completions", post(chat::chat), chat_operation()),
        route("/v1/chat/completions/render", post(tokens::render_chat), render_chat_operation(Answer::One("TokenIds"))),
        route("/v1/responses", post(responses::create), responses_operation()),
        route("/responses", post(responses::create), responses_operation()),
        route("/v1/responses/input_tokens", post(responses::input_tokens), input_tokens_operation()),
        route("/v1/responses/{id}", get(responses::retrieve).delete(responses::delete), stored_operation()),
        route(
            "/v1/responses/{id}/input_items",
            get(responses::input_items),
            object("The items of a response's input."),
        ),
        route("/v1/messages", post(messages::messages), messages_operation()),
        route("/v1/messages/count_tokens", post(messages::count_tokens), count_tokens_operation()),
        route("/v1/completions", post(completions::completions), completion_operation()),
        route("/completions", post(completions::completions), completion_operation()),
        route("/v1/completions/render", post(tokens::render_completions), render_completion_operation()),
        route("/v1/embeddings", post(embeddings::embeddings), embedding_operation()),
        route("/embeddings", post(embeddings::embeddings), embedding_operation()),
        route("/tokenize", post(tokens::tokenize), tokenize_operation()),
        route("/detokenize", post(tokens::detokenize), detokenize_operation()),
        route("/tokenizer_info", get(tokens::tokenizer_info), object("The settings of the model's tokenizer.")),
        route("/props", get(llama::props), object("The server's settings, as llama.cpp's server reports them.")),
        route("/apply-template", post(llama::apply_template), render_chat_operation(Answer::Object)),
        route("/completion", post(llama::completion), llama_operation()),
        route("/get_model_info", get(models::sglang_model), object("The model, in SGLang's form.")),
        route("/model_info", get(models::sglang_model), object("The model, in SGLang's form.")),
        route("/get_server_info", get(models::sglang_server), object("The server, in SGLang's form.")),
        route("/server_info", get(models::sglang_server), object("The server, in SGLang's form.")),
        route("/get_load", get(load::sglang_load), object("How busy the engine is, in SGLang's form.")),
        route("/api/version", get(ollama::version), object("The version of Ollama whose API this is.")),
        route("/api/tags", get(ollama::tags), object("All served names of the model, in Ollama's form.")),
        route("/api/ps", get(ollama::ps), object("The loaded model, in Ollama's form.")),
        route("/api/show", post(ollama::show), show_operation()),
        route("/api/chat", post(ollama::chat), ollama_chat_operation()),
        route("/api/generate", post(ollama::generate), generate_operation()),
        route("/api/embed", post(ollama::embed), embed_operation()),
        route("/api/embeddings", post(ollama::embed_one), embed_one_operation()),
        route("/api/pull", post(ollama::refused), refused_operation()),
        route("/api/create", post(ollama::refused), refused_operation()),
        route("/api/copy", post(ollama::refused), refused_operation()),
        route("/api/push", post(ollama::refused), refused_operation()),
        route("/api/delete", delete(ollama::refused), Operation { methods: &["delete"], ..refused_operation() }),
    ]
}

fn health_operation() -> Operation {
    Operation::get("Whether requests are taken: 503 while loading, shutting down, or without a device.", Answer::Object)
}

fn metrics_operation() -> Operation {
    Operation::get("Metrics as Prometheus text, under vLLM's names.", Answer::Text("text/plain"))
}

fn list_operation() -> Operation {
    Operation::get("All served names of the model.", Answer::One("Models"))
}

fn model_operation() -> Operation {
    Operation::get("One served name of the model.", Answer::One("Model"))
}

fn chat_operation() -> Operation {
    let example = || json!({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16});
    let body = Body { name: "ChatRequest", schema: group::<ChatRequest>, example };
    Operation::post("Answers a conversation.", body, Answer::OneOrStream("ChatAnswer"))
}

fn responses_operation() -> Operation {
    let example = || json!({"input": "Hello!", "max_output_tokens": 16});
    let body = Body { name: "ResponsesRequest", schema: group::<ResponsesRequest>, example };
    Operation::post("Answers an input, as OpenAI's newer API does.", body, Answer::OneOrStream("ResponsesAnswer"))
}

fn input_tokens_operation() -> Operation {
    let body = Body {
        name: "InputTokensRequest",
        schema: group::<InputTokensRequest>,
        example: || json!({"input": "Hello!"}),
    };
    Operation::post("The number of tokens of an input.", body, Answer::One("TokenCount"))
}

fn stored_operation() -> Operation {
    Operation { methods: &["get", "delete"], ..Operation::get("A stored response.", Answer::Object) }
}

fn refused_operation() -> Operation {
    let summary = "Refused: models are chosen when the server starts.";
    Operation { methods: &["post"], ..Operation::get(summary, Answer::Object) }
}

fn show_operation() -> Operation {
    let body = Body { name: "OllamaShowRequest", schema: group::<OllamaShowRequest>, example: || json!({}) };
    Operation::post("What is known of a model, in Ollama's form.", body, Answer::Object)
}

fn ollama_chat_operation() -> Operation {
    let example = || json!({"messages": [{"role": "user", "content": "Hello!"}], "options": {"num_predict": 16}});
    let body = Body { name: "OllamaChatRequest", schema: group::<OllamaChatRequest>, example };
    Operation::post("Answers a conversation, in Ollama's form.", body, Answer::Lines)
}

fn generate_operation() -> Operation {
    let example = || json!({"prompt": "Hello!", "options": {"num_predict": 16}});
    let body = Body { name: "OllamaGenerateRequest", schema: group::<OllamaGenerateRequest>, example };
    Operation::post("Answers a prompt, in Ollama's form.", body, Answer::Lines)
}

fn embed_operation() -> Operation {
    let body =
        Body { name: "OllamaEmbedRequest", schema: group::<OllamaEmbedRequest>, example: || json!({"input": "Hello"}) };
    Operation::post("Texts as vectors, in Ollama's form.", body, Answer::Object)
}

fn embed_one_operation() -> Operation {
    let example = || json!({"prompt": "Hello"});
    let body = Body { name: "OllamaEmbeddingsRequest", schema: group::<OllamaEmbeddingsRequest>, example };
    Operation::post("A text as a vector, in Ollama's older form.", body, Answer::Object)
}

fn messages_operation() -> Operation {
    let example = || json!({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16});
    let body = Body { name: "MessagesRequest", schema: group::<MessagesRequest>, example };
    Operation::post("Answers a conversation, in Anthropic's form.", body, Answer::OneOrStream("MessagesAnswer"))
}

fn count_tokens_operation() -> Operation {
    let example = || json!({"messages": [{"role": "user", "content": "Hello!"}]});
    let body = Body { name: "CountTokensRequest", schema: group::<CountTokensRequest>, example };
    Operation::post("The number of tokens of a prompt, in Anthropic's form.", body, Answer::One("TokenCount"))
}

fn completion_operation() -> Operation {
    let example = || json!({"prompt": "Once upon a time", "max_tokens": 16});
    let body = Body { name: "CompletionRequest", schema: group::<CompletionRequest>, example };
    Operation::post("Continues prompts.", body, Answer::OneOrStream("CompletionAnswer"))
}

fn embedding_operation() -> Operation {
    let example = || json!({"input": ["Hello", "A fox"]});
    let body = Body { name: "EmbeddingRequest", schema: group::<EmbeddingRequest>, example };
    Operation::post("Texts or token ids as vectors.", body, Answer::One("EmbeddingAnswer"))
}

fn render_chat_operation(answer: Answer) -> Operation {
    let example = || json!({"messages": [{"role": "user", "content": "Hello!"}]});
    let body = Body { name: "RenderChatRequest", schema: group::<RenderChatRequest>, example };
    let as_ids = matches!(answer, Answer::One(_));
    let summary =
        if as_ids { "The prompt of a chat request as token ids." } else { "The prompt of a chat request as text." };
    Operation::post(summary, body, answer)
}

fn render_completion_operation() -> Operation {
    let example = || json!({"prompt": "Once upon a time"});
    let body = Body { name: "RenderCompletionRequest", schema: group::<RenderCompletionRequest>, example };
    Operation::post("The prompts of a completions request as token ids.", body, Answer::List("TokenIds"))
}

fn tokenize_operation() -> Operation {
    let body = Body { name: "TokenizeRequest", schema: tokenize_schema, example: || json!({"prompt": "Hello!"}) };
    Operation::post("A text or a conversation as token ids.", body, Answer::One("TokenizeAnswer"))
}

/// The three forms of a request to `/tokenize`.
fn tokenize_schema(body: &Body, bounds: &Bounds) -> Value {
    let text = Body { name: "TokenizeTextRequest", schema: group::<TokenizeTextRequest>, example: body.example };
    let example = || json!({"messages": [{"role": "user", "content": "Hello!"}]});
    let chat = Body { name: "TokenizeChatRequest", schema: group::<TokenizeChatRequest>, example };
    let example = || json!({"content": "Hello!"});
    let content = Body { name: "TokenizeContentRequest", schema: group::<TokenizeContentRequest>, example };
    let forms: Vec<_> = [text, chat, content].iter().map(|form| (form.schema)(form, bounds)).collect();
    json!({"title": body.name, "anyOf": forms})
}

fn detokenize_operation() -> Operation {
    let body = Body {
        name: "DetokenizeRequest",
        schema: group::<DetokenizeRequest>,
        example: || json!({"tokens": [1, 2, 3]}),
    };
    Operation::post("Token ids as text.", body, Answer::One("DetokenizeAnswer"))
}

fn llama_operation() -> Operation {
    let example = || json!({"prompt": "Once upon a time", "n_predict": 16});
    let body = Body { name: "LlamaRequest", schema: group::<LlamaRequest>, example };
    Operation::post("Continues one prompt, in llama.cpp's form.", body, Answer::OneOrStream("LlamaAnswer"))
}
