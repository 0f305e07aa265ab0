//! The table of routes: every path with its handler and its documentation.
//!
//! Routes of OpenAI's API also exist without `/v1`, because clients of llama.cpp leave it out.

use crate::server::parameters::anthropic::{CountTokensRequest, MessagesRequest};
use crate::server::parameters::kind::Bounds;
use crate::server::parameters::ollama::{
    OllamaChatRequest, OllamaEmbedRequest, OllamaEmbeddingsRequest, OllamaGenerateRequest,
    OllamaPullRequest, OllamaShowRequest,
};
use crate::server::parameters::rerank::{RerankDocumentsRequest, RerankTextsRequest, ScoreRequest};
use crate::server::parameters::responses::{InputTokensRequest, ResponsesRequest};
use crate::server::parameters::table::{
    ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest, InfillRequest,
    LlamaRequest, LoadRequest, RenderChatRequest, RenderCompletionRequest, TokenizeChatRequest,
    TokenizeContentRequest, TokenizeTextRequest,
};
use crate::server::routes::openapi::{self, Answer, Body, Handlers, Operation, Route, group};
#[cfg(feature = "server")]
use crate::server::routes::ui;
use crate::server::routes::{
    chat, completions, embeddings, health, llama, load, messages, metrics, models, ollama, rerank,
    responses, tokens,
};
use crate::server::state::{ModelState, ServerState};
use axum::Json;
use axum::extract::State;
use axum::routing::{MethodRouter, delete, get, post};
use serde_json::{Value, json};

/// `GET /openapi.json`.
async fn document(State(state): State<ServerState>) -> Json<Value> {
    let info = state.models.one().and_then(|model| model.engine.info());
    let bounds = Bounds::new(&state.shared.options.limits, info);
    Json(openapi::document(&routes(), &bounds))
}

/// All paths.
///
/// With several models, a request of a path that a model answers asks for it by the field `model` of its body.
pub(crate) fn routes() -> Vec<Route> {
    let mut routes = page_routes();
    routes.extend(own_routes());
    routes.extend(routes_of_others());
    routes
}

/// A path that the model answers for which a request asks.
fn route(path: &'static str, handlers: MethodRouter<ModelState>, operation: Operation) -> Route {
    Route {
        path,
        handlers: Handlers::Model(handlers),
        operation,
    }
}

/// A path that the server answers, whatever its models. What it tells of one of several does not need it loaded.
fn of_server(
    path: &'static str,
    handlers: MethodRouter<ServerState>,
    operation: Operation,
) -> Route {
    Route {
        path,
        handlers: Handlers::Server(handlers),
        operation,
    }
}

fn object(summary: &'static str) -> Operation {
    Operation::get(summary, Answer::Object)
}

/// In a tab the API is called by a page.
#[cfg(not(feature = "server"))]
fn page_routes() -> Vec<Route> {
    Vec::new()
}

#[cfg(feature = "server")]
fn page_routes() -> Vec<Route> {
    let file = |path, handlers: MethodRouter<ServerState>, (summary, kind)| Route {
        path,
        handlers: Handlers::Server(handlers),
        operation: Operation::get(summary, Answer::Text(kind)).open(),
    };
    vec![
        file("/", get(ui::page), ("The chat page.", "text/html")),
        file(
            "/ui/app.js",
            get(ui::script),
            ("The chat page's script.", "text/javascript"),
        ),
        file(
            "/ui/style.css",
            get(ui::style),
            ("The chat page's style.", "text/css"),
        ),
        file(
            "/ui/licences.txt",
            get(ui::licences),
            ("Licences of the chat page's libraries.", "text/plain"),
        ),
    ]
}

/// Routes of OpenAI's, Anthropic's, vLLM's and llama.cpp's servers.
fn own_routes() -> Vec<Route> {
    let ping = Operation {
        methods: &["get", "post"],
        ..health_operation().open()
    };
    vec![
        of_server("/openapi.json", get(document), object("This document.")),
        of_server("/health", get(health::health), health_operation().open()),
        of_server("/v1/health", get(health::health), health_operation()),
        of_server("/ping", get(health::health).post(health::health), ping),
        of_server(
            "/version",
            get(health::version),
            object("The version of this build."),
        ),
        of_server("/metrics", get(metrics::metrics), metrics_operation()),
        of_server(
            "/load",
            get(load::load),
            object("The number of answers that are being generated."),
        ),
        of_server(
            "/v1/loads",
            get(load::loads),
            object("How busy the engine is, for load balancers."),
        ),
        of_server("/v1/models", get(models::list), list_operation()),
        of_server("/models", get(models::list), list_operation()),
        of_server(
            "/v1/models/{*name}",
            get(models::retrieve),
            model_operation(),
        ),
        of_server("/models/{*name}", get(models::retrieve), model_operation()),
        of_server("/models/load", post(models::load), load_operation()),
        of_server("/models/unload", post(models::unload), unload_operation()),
        route("/v1/chat/completions", post(chat::chat), chat_operation()),
        route("/chat/completions", post(chat::chat), chat_operation()),
        route(
            "/v1/chat/completions/render",
            post(tokens::render_chat),
            render_chat_operation(Answer::One("TokenIds")),
        ),
        route(
            "/v1/responses",
            post(responses::create),
            responses_operation(),
        ),
        route("/responses", post(responses::create), responses_operation()),
        route(
            "/v1/responses/input_tokens",
            post(responses::input_tokens),
            input_tokens_operation(),
        ),
        route(
            "/responses/input_tokens",
            post(responses::input_tokens),
            input_tokens_operation(),
        ),
        of_server(
            "/v1/responses/{id}",
            get(responses::retrieve).delete(responses::delete),
            stored_operation(),
        ),
        of_server(
            "/responses/{id}",
            get(responses::retrieve).delete(responses::delete),
            stored_operation(),
        ),
        of_server(
            "/v1/responses/{id}/input_items",
            get(responses::input_items),
            input_items_operation(),
        ),
        of_server(
            "/responses/{id}/input_items",
            get(responses::input_items),
            input_items_operation(),
        ),
        route(
            "/v1/messages",
            post(messages::messages),
            messages_operation(),
        ),
        route(
            "/v1/messages/count_tokens",
            post(messages::count_tokens),
            count_tokens_operation(),
        ),
        route(
            "/v1/completions",
            post(completions::completions),
            completion_operation(),
        ),
        route(
            "/completions",
            post(completions::completions),
            completion_operation(),
        ),
        route(
            "/v1/completions/render",
            post(tokens::render_completions),
            render_completion_operation(),
        ),
        route(
            "/v1/embeddings",
            post(embeddings::embeddings),
            embedding_operation(),
        ),
        route(
            "/embeddings",
            post(embeddings::embeddings),
            embedding_operation(),
        ),
        route("/v1/rerank", post(rerank::rerank), rerank_operation()),
        route("/v2/rerank", post(rerank::rerank), rerank_operation()),
        route("/rerank", post(rerank::rerank), rerank_operation()),
        route("/v1/score", post(rerank::score), score_operation()),
        route("/score", post(rerank::score), score_operation()),
        route("/tokenize", post(tokens::tokenize), tokenize_operation()),
        route(
            "/detokenize",
            post(tokens::detokenize),
            detokenize_operation(),
        ),
        of_server(
            "/tokenizer_info",
            get(tokens::tokenizer_info),
            object("The settings of the model's tokenizer."),
        ),
        of_server(
            "/props",
            get(llama::props),
            object("The server's settings, as llama.cpp's server reports them."),
        ),
        route(
            "/apply-template",
            post(llama::apply_template),
            render_chat_operation(Answer::Object),
        ),
        route("/completion", post(llama::completion), llama_operation()),
        route("/infill", post(llama::infill), infill_operation()),
    ]
}

/// Routes of SGLang's and Ollama's servers.
fn routes_of_others() -> Vec<Route> {
    vec![
        of_server(
            "/get_model_info",
            get(models::sglang_model),
            object("The model, in SGLang's form."),
        ),
        of_server(
            "/model_info",
            get(models::sglang_model),
            object("The model, in SGLang's form."),
        ),
        of_server(
            "/get_server_info",
            get(models::sglang_server),
            object("The server, in SGLang's form."),
        ),
        of_server(
            "/server_info",
            get(models::sglang_server),
            object("The server, in SGLang's form."),
        ),
        of_server(
            "/get_load",
            get(load::sglang_load),
            Operation::get("How busy the engine is, in SGLang's form.", Answer::Objects),
        ),
        of_server(
            "/api/version",
            get(ollama::version),
            object("The version of Ollama whose API this is."),
        ),
        of_server(
            "/api/tags",
            get(ollama::tags),
            object("All served names, in Ollama's form."),
        ),
        of_server(
            "/api/ps",
            get(ollama::ps),
            object("The loaded models, in Ollama's form."),
        ),
        of_server("/api/show", post(ollama::show), show_operation()),
        route("/api/chat", post(ollama::chat), ollama_chat_operation()),
        route(
            "/api/generate",
            post(ollama::generate),
            generate_operation(),
        ),
        route("/api/embed", post(ollama::embed), embed_operation()),
        route(
            "/api/embeddings",
            post(ollama::embed_one),
            embed_one_operation(),
        ),
        of_server("/api/pull", post(ollama::pull), pull_operation()),
        of_server("/api/create", post(ollama::refused), refused_operation()),
        of_server("/api/copy", post(ollama::refused), refused_operation()),
        of_server("/api/push", post(ollama::refused), refused_operation()),
        of_server(
            "/api/delete",
            delete(ollama::refused),
            Operation {
                methods: &["delete"],
                ..refused_operation()
            },
        ),
    ]
}

fn health_operation() -> Operation {
    Operation::get(
        "Whether requests are taken: 503 while loading, shutting down, or without a device.",
        Answer::Object,
    )
}

fn metrics_operation() -> Operation {
    Operation::get(
        "Metrics as Prometheus text, under vLLM's names.",
        Answer::Text("text/plain"),
    )
}

fn list_operation() -> Operation {
    Operation::get(
        "All served names, and whether their models are loaded.",
        Answer::One("Models"),
    )
}

fn load_operation() -> Operation {
    let body = Body {
        name: "LoadRequest",
        schema: group::<LoadRequest>,
        example: || json!({"model": "demo"}),
    };
    Operation::post(
        "Has one of several models loaded, as llama.cpp's router does.",
        body,
        Answer::Object,
    )
}

fn unload_operation() -> Operation {
    let body = Body {
        name: "LoadRequest",
        schema: group::<LoadRequest>,
        example: || json!({"model": "demo"}),
    };
    let summary = "Has one of several models unloaded when its answers are complete, as llama.cpp's router does.";
    Operation::post(summary, body, Answer::Object)
}

fn model_operation() -> Operation {
    Operation::get("One served name.", Answer::One("ModelAnswer"))
}

fn chat_operation() -> Operation {
    let body = Body {
        name: "ChatRequest",
        schema: group::<ChatRequest>,
        example: || json!({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}),
    };
    Operation::post(
        "Answers a conversation.",
        body,
        Answer::OneOrStream("ChatAnswer"),
    )
}

fn responses_operation() -> Operation {
    let body = Body {
        name: "ResponsesRequest",
        schema: group::<ResponsesRequest>,
        example: || json!({"input": "Hello!", "max_output_tokens": 16}),
    };
    Operation::post(
        "Answers an input, as OpenAI's newer API does.",
        body,
        Answer::OneOrStream("ResponsesAnswer"),
    )
}

fn input_tokens_operation() -> Operation {
    let body = Body {
        name: "InputTokensRequest",
        schema: group::<InputTokensRequest>,
        example: || json!({"input": "Hello!"}),
    };
    Operation::post(
        "The number of tokens of an input.",
        body,
        Answer::One("TokenCount"),
    )
}

fn stored_operation() -> Operation {
    Operation {
        methods: &["get", "delete"],
        ..Operation::get("A stored response.", Answer::Object)
    }
}

fn input_items_operation() -> Operation {
    object("The items of a response's input.")
}

fn refused_operation() -> Operation {
    let summary = "Refused: models are chosen when the server starts.";
    Operation {
        methods: &["post"],
        ..Operation::get(summary, Answer::Object)
    }
}

fn pull_operation() -> Operation {
    let body = Body {
        name: "OllamaPullRequest",
        schema: group::<OllamaPullRequest>,
        example: || json!({"model": "demo"}),
    };
    Operation::post(
        "Downloads a model into the cache, if `--allow-pull` was given.",
        body,
        Answer::Lines,
    )
}

fn show_operation() -> Operation {
    let body = Body {
        name: "OllamaShowRequest",
        schema: group::<OllamaShowRequest>,
        example: || json!({}),
    };
    Operation::post(
        "What is known of a model, in Ollama's form.",
        body,
        Answer::Object,
    )
}

fn ollama_chat_operation() -> Operation {
    let body = Body {
        name: "OllamaChatRequest",
        schema: group::<OllamaChatRequest>,
        example: || json!({"messages": [{"role": "user", "content": "Hello!"}], "options": {"num_predict": 16}}),
    };
    Operation::post(
        "Answers a conversation, in Ollama's form.",
        body,
        Answer::Lines,
    )
}

fn generate_operation() -> Operation {
    let body = Body {
        name: "OllamaGenerateRequest",
        schema: group::<OllamaGenerateRequest>,
        example: || json!({"prompt": "Hello!", "options": {"num_predict": 16}}),
    };
    Operation::post("Answers a prompt, in Ollama's form.", body, Answer::Lines)
}

fn embed_operation() -> Operation {
    let body = Body {
        name: "OllamaEmbedRequest",
        schema: group::<OllamaEmbedRequest>,
        example: || json!({"input": "Hello"}),
    };
    Operation::post("Texts as vectors, in Ollama's form.", body, Answer::Object)
}

fn embed_one_operation() -> Operation {
    let body = Body {
        name: "OllamaEmbeddingsRequest",
        schema: group::<OllamaEmbeddingsRequest>,
        example: || json!({"prompt": "Hello"}),
    };
    Operation::post(
        "A text as a vector, in Ollama's older form.",
        body,
        Answer::Object,
    )
}

fn messages_operation() -> Operation {
    let body = Body {
        name: "MessagesRequest",
        schema: group::<MessagesRequest>,
        example: || json!({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}),
    };
    Operation::post(
        "Answers a conversation, in Anthropic's form.",
        body,
        Answer::OneOrStream("MessagesAnswer"),
    )
}

fn count_tokens_operation() -> Operation {
    let body = Body {
        name: "CountTokensRequest",
        schema: group::<CountTokensRequest>,
        example: || json!({"messages": [{"role": "user", "content": "Hello!"}]}),
    };
    Operation::post(
        "The number of tokens of a prompt, in Anthropic's form.",
        body,
        Answer::One("TokenCount"),
    )
}

fn completion_operation() -> Operation {
    let body = Body {
        name: "CompletionRequest",
        schema: group::<CompletionRequest>,
        example: || json!({"prompt": "Once upon a time", "max_tokens": 16}),
    };
    Operation::post(
        "Continues prompts.",
        body,
        Answer::OneOrStream("CompletionAnswer"),
    )
}

fn embedding_operation() -> Operation {
    let body = Body {
        name: "EmbeddingRequest",
        schema: group::<EmbeddingRequest>,
        example: || json!({"input": ["Hello", "A fox"]}),
    };
    Operation::post(
        "Texts or token ids as vectors.",
        body,
        Answer::One("EmbeddingAnswer"),
    )
}

fn rerank_operation() -> Operation {
    let body = Body {
        name: "RerankRequest",
        schema: rerank_schema,
        example: || json!({"query": "Who sleeps?", "documents": ["A cat sleeps.", "It rains."]}),
    };
    Operation::post(
        "Ranks documents by how well they answer a query.",
        body,
        Answer::One("RerankAnswer"),
    )
}

/// The two forms of a request to `/rerank`.
fn rerank_schema(body: &Body, bounds: &Bounds) -> Value {
    let schema = group::<RerankDocumentsRequest>;
    let documents = Body {
        name: "RerankDocumentsRequest",
        schema,
        example: body.example,
    };
    let texts = Body {
        name: "RerankTextsRequest",
        schema: group::<RerankTextsRequest>,
        example: || json!({"query": "Who sleeps?", "texts": ["A cat sleeps.", "It rains."]}),
    };
    forms(body, &[documents, texts], bounds)
}

/// The schema of a request that has one of several forms.
fn forms(body: &Body, forms: &[Body], bounds: &Bounds) -> Value {
    let forms: Vec<_> = forms
        .iter()
        .map(|form| (form.schema)(form, bounds))
        .collect();
    json!({"title": body.name, "anyOf": forms})
}

fn score_operation() -> Operation {
    let body = Body {
        name: "ScoreRequest",
        schema: group::<ScoreRequest>,
        example: || json!({"text_1": "Who sleeps?", "text_2": ["A cat sleeps.", "It rains."]}),
    };
    Operation::post(
        "Scores pairs of a query and a document.",
        body,
        Answer::One("ScoreAnswer"),
    )
}

fn render_chat_operation(answer: Answer) -> Operation {
    let body = Body {
        name: "RenderChatRequest",
        schema: group::<RenderChatRequest>,
        example: || json!({"messages": [{"role": "user", "content": "Hello!"}]}),
    };
    let as_ids = matches!(answer, Answer::One(_));
    let summary = if as_ids {
        "The prompt of a chat request as token ids."
    } else {
        "The prompt of a chat request as text."
    };
    Operation::post(summary, body, answer)
}

fn render_completion_operation() -> Operation {
    let body = Body {
        name: "RenderCompletionRequest",
        schema: group::<RenderCompletionRequest>,
        example: || json!({"prompt": "Once upon a time"}),
    };
    Operation::post(
        "The prompts of a completions request as token ids.",
        body,
        Answer::List("TokenIds"),
    )
}

fn tokenize_operation() -> Operation {
    let body = Body {
        name: "TokenizeRequest",
        schema: tokenize_schema,
        example: || json!({"prompt": "Hello!"}),
    };
    Operation::post(
        "A text or a conversation as token ids.",
        body,
        Answer::One("TokenizeAnswer"),
    )
}

/// The three forms of a request to `/tokenize`.
fn tokenize_schema(body: &Body, bounds: &Bounds) -> Value {
    let text = Body {
        name: "TokenizeTextRequest",
        schema: group::<TokenizeTextRequest>,
        example: body.example,
    };
    let chat = Body {
        name: "TokenizeChatRequest",
        schema: group::<TokenizeChatRequest>,
        example: || json!({"messages": [{"role": "user", "content": "Hello!"}]}),
    };
    let content = Body {
        name: "TokenizeContentRequest",
        schema: group::<TokenizeContentRequest>,
        example: || json!({"content": "Hello!"}),
    };
    forms(body, &[text, chat, content], bounds)
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
    let body = Body {
        name: "LlamaRequest",
        schema: group::<LlamaRequest>,
        example: || json!({"prompt": "Once upon a time", "n_predict": 16}),
    };
    Operation::post(
        "Continues one prompt, in llama.cpp's form.",
        body,
        Answer::OneOrStream("LlamaAnswer"),
    )
}

fn infill_operation() -> Operation {
    let body = Body {
        name: "InfillRequest",
        schema: group::<InfillRequest>,
        example: || json!({"input_prefix": "def sum(a, b):\n    ", "input_suffix": "\n", "n_predict": 16}),
    };
    let summary = "Fills a gap in a text, in llama.cpp's form, if the model has tokens for it.";
    Operation::post(summary, body, Answer::OneOrStream("LlamaAnswer"))
}
