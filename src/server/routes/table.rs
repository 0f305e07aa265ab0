//! The table of routes: every path with its handler and its documentation.
//!
//! Routes of OpenAI's API also exist without `/v1`, because clients of llama.cpp leave it out. With several models, a
//! request of a path that a model answers asks for it by the field `model` of its body.

use crate::server::parameters::anthropic::{CountTokensRequest, MessagesRequest};
use crate::server::parameters::kind::Bounds;
use crate::server::parameters::ollama::{
    OllamaChatRequest, OllamaEmbedRequest, OllamaEmbeddingsRequest, OllamaGenerateRequest,
    OllamaPullRequest, OllamaShowRequest,
};
use crate::server::parameters::rerank::{
    ClassifyRequest, RerankDocumentsRequest, RerankTextsRequest, ScoreDataRequest,
    ScoreDocumentsRequest, ScoreItemsRequest, ScoreTextsRequest,
};
use crate::server::parameters::responses::{InputTokensRequest, ResponsesRequest};
use crate::server::parameters::table::{
    ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingChatRequest, EmbeddingRequest,
    InfillRequest, LlamaEmbeddingRequest, LlamaRequest, LoadAdapterRequest, LoadRequest,
    RenderChatRequest, RenderCompletionRequest, TokenizeChatRequest, TokenizeContentRequest,
    TokenizeTextRequest, UnloadAdapterRequest,
};
use crate::server::parameters::vectors::{
    CohereEmbedRequest, PoolingRequest, TeiEmbedAllRequest, TeiEmbedRequest, TeiPredictRequest,
    TeiSimilarityRequest,
};
use crate::server::routes::openapi::{self, Answer, Body, Operation, Route, one_of};
#[cfg(feature = "server")]
use crate::server::routes::ui;
use crate::server::routes::{
    batch, chat, classes, cohere, completions, embeddings, health, llama, load, messages, metrics,
    models, ollama, rerank, responses, tei, tokens, vllm,
};
use crate::server::state::ServerState;
use axum::Json;
use axum::extract::State;
use axum::routing::{delete, get, post};
use serde_json::{Value, json};

/// `GET /openapi.json`.
async fn document(State(state): State<ServerState>) -> Json<Value> {
    let info = state.models.one().and_then(|model| model.engine.info());
    let bounds = Bounds::new(&state.shared.options.limits, info);
    Json(openapi::document(&routes(), &bounds))
}

/// All paths.
pub(crate) fn routes() -> Vec<Route> {
    [
        page_routes(),
        state_routes(),
        model_routes(),
        chat_routes(),
        responses_routes(),
        messages_routes(),
        completion_routes(),
        embedding_routes(),
        llama_embedding_routes(),
        rerank_routes(),
        vector_routes(),
        tei_routes(),
        token_routes(),
        llama_state_routes(),
        llama_routes(),
        sglang_routes(),
        ollama_state_routes(),
        ollama_routes(),
        ollama_pull_routes(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// In a tab the API is called by a page.
#[cfg(not(feature = "server"))]
fn page_routes() -> Vec<Route> {
    Vec::new()
}

/// The chat page.
#[cfg(feature = "server")]
fn page_routes() -> Vec<Route> {
    let text = |summary, kind| Operation::get(summary, Answer::Text(kind)).open();
    vec![
        Route::server(&["/"], get(ui::page), text("The chat page.", "text/html")),
        Route::server(
            &["/ui/app.js"],
            get(ui::script),
            text("The chat page's script.", "text/javascript"),
        ),
        Route::server(
            &["/ui/style.css"],
            get(ui::style),
            text("The chat page's style.", "text/css"),
        ),
        Route::server(
            &["/ui/licences.txt"],
            get(ui::licences),
            text("Licences of the chat page's libraries.", "text/plain"),
        ),
    ]
}

/// What the server is and how it is doing.
fn state_routes() -> Vec<Route> {
    let health = Operation::get(
        "Whether requests are taken: 503 while loading, shutting down, or without a device.",
        Answer::Object,
    );
    vec![
        Route::server(
            &["/openapi.json"],
            get(document),
            Operation::get("This document.", Answer::Object),
        ),
        Route::server(&["/health"], get(health::health), health.open()),
        Route::server(&["/v1/health"], get(health::health), health),
        Route::server(
            &["/ping"],
            get(health::health).post(health::health),
            health.open().under(&["get", "post"]),
        ),
        Route::server(
            &["/version"],
            get(health::version),
            Operation::get("The version of this build.", Answer::Object),
        ),
        Route::server(
            &["/metrics"],
            get(metrics::metrics),
            Operation::get(
                "Metrics as Prometheus text, under vLLM's names.",
                Answer::Text("text/plain"),
            ),
        ),
        Route::server(
            &["/v1/load_lora_adapter"],
            post(vllm::load_adapter),
            Operation::post(
                "Reads an adapter from the folder of --lora-folder, which requests then name as their model.",
                Body::of::<LoadAdapterRequest>(
                    || json!({"lora_name": "sql", "lora_path": "sql-adapter"}),
                ),
                Answer::Text("text/plain"),
            ),
        ),
        Route::server(
            &["/v1/unload_lora_adapter"],
            post(vllm::unload_adapter),
            Operation::post(
                "Forgets an adapter; answers that use it go on.",
                Body::of::<UnloadAdapterRequest>(|| json!({"lora_name": "sql"})),
                Answer::Text("text/plain"),
            ),
        ),
        Route::server(
            &["/reset_prefix_cache"],
            post(vllm::reset_prefix_cache),
            Operation::get(
                "Lets no later prompt share what is cached now.",
                Answer::Object,
            )
            .under(&["post"]),
        ),
        Route::server(
            &["/load"],
            get(load::load),
            Operation::get(
                "The number of answers that are being generated.",
                Answer::Object,
            ),
        ),
        Route::server(
            &["/v1/loads"],
            get(load::loads),
            Operation::get(
                "How busy the engine is, for load balancers.",
                Answer::Object,
            ),
        ),
    ]
}

/// The served models.
fn model_routes() -> Vec<Route> {
    let named = Body::of::<LoadRequest>(|| json!({"model": "demo"}));
    vec![
        Route::server(
            &["/v1/models", "/models"],
            get(models::list),
            Operation::get(
                "All served names, and whether their models are loaded.",
                Answer::One("Models"),
            ),
        ),
        Route::server(
            &["/v1/models/{*name}", "/models/{*name}"],
            get(models::retrieve),
            Operation::get("One served name.", Answer::One("ModelAnswer")),
        ),
        Route::server(
            &["/models/load"],
            post(models::load),
            Operation::post(
                "Has one of several models loaded, as llama.cpp's router does.",
                named,
                Answer::Object,
            ),
        ),
        Route::server(
            &["/models/unload"],
            post(models::unload),
            Operation::post(
                "Has one of several models unloaded when its answers are complete, as llama.cpp's router does.",
                named,
                Answer::Object,
            ),
        ),
    ]
}

/// OpenAI's conversations.
fn chat_routes() -> Vec<Route> {
    vec![
        Route::model(
            &["/v1/chat/completions", "/chat/completions"],
            post(chat::chat),
            Operation::post(
                "Answers a conversation.",
                Body::of::<ChatRequest>(
                    || json!({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}),
                ),
                Answer::OneOrStream("ChatAnswer"),
            ),
        ),
        Route::model(
            &[
                "/v1/chat/completions/input_tokens",
                "/chat/completions/input_tokens",
            ],
            post(tokens::count_chat),
            Operation::post(
                "The number of tokens of a chat request.",
                rendered_chat(),
                Answer::One("TokenCount"),
            ),
        ),
        Route::model(
            &["/v1/chat/completions/render"],
            post(tokens::render_chat),
            Operation::post(
                "The prompt of a chat request as token ids.",
                rendered_chat(),
                Answer::One("TokenIds"),
            ),
        ),
        Route::model(
            &["/v1/chat/completions/batch"],
            post(batch::chats),
            Operation::post(
                "Answers several conversations at once, as vLLM does.",
                Body {
                    name: "BatchChatRequest",
                    schema: batch_schema,
                    example: || json!({"messages": [[{"role": "user", "content": "Hello!"}]], "max_tokens": 16}),
                },
                Answer::One("ChatAnswer"),
            ),
        ),
        Route::model(
            &["/invocations"],
            post(vllm::invocations),
            Operation::post(
                "Answers a request of any kind, by the fields that it has, as SageMaker calls models.",
                Body {
                    name: "Invocation",
                    schema: invocation_schema,
                    example: || json!({"prompt": "Once upon a time", "max_tokens": 16}),
                },
                Answer::OneOrStream("CompletionAnswer"),
            ),
        ),
    ]
}

/// A chat request with a list of conversations.
fn batch_schema(body: &Body, bounds: &Bounds) -> Value {
    let chat = Body::of::<ChatRequest>(body.example);
    let mut schema = (chat.schema)(&chat, bounds);
    let messages = schema["properties"]["messages"].take();
    schema["properties"]["messages"] = json!({"type": "array", "minItems": 1, "items": messages,
        "description": "The conversations."});
    schema["title"] = body.name.into();
    // The answers come together.
    if let Some(fields) = schema["properties"].as_object_mut() {
        fields.retain(|name, _| !["stream", "stream_options"].contains(&name.as_str()));
    }
    schema
}

/// The forms of a request to `/invocations`.
fn invocation_schema(body: &Body, bounds: &Bounds) -> Value {
    let chat = Body::of::<ChatRequest>(
        || json!({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}),
    );
    let completion = Body::of::<CompletionRequest>(body.example);
    let embedding = Body::of::<EmbeddingRequest>(|| json!({"input": ["Hello", "A fox"]}));
    one_of(body.name, &[chat, completion, embedding], bounds)
}

/// A conversation whose prompt is shown.
fn rendered_chat() -> Body {
    Body::of::<RenderChatRequest>(|| json!({"messages": [{"role": "user", "content": "Hello!"}]}))
}

/// OpenAI's newer API.
fn responses_routes() -> Vec<Route> {
    vec![
        Route::model(
            &["/v1/responses", "/responses"],
            post(responses::create),
            Operation::post(
                "Answers an input, as OpenAI's newer API does.",
                Body::of::<ResponsesRequest>(
                    || json!({"input": "Hello!", "max_output_tokens": 16}),
                ),
                Answer::OneOrStream("ResponsesAnswer"),
            ),
        ),
        Route::model(
            &["/v1/responses/input_tokens", "/responses/input_tokens"],
            post(responses::input_tokens),
            Operation::post(
                "The number of tokens of an input.",
                Body::of::<InputTokensRequest>(|| json!({"input": "Hello!"})),
                Answer::One("TokenCount"),
            ),
        ),
        Route::server(
            &["/v1/responses/{id}", "/responses/{id}"],
            get(responses::retrieve).delete(responses::delete),
            Operation::get("A stored response.", Answer::Object).under(&["get", "delete"]),
        ),
        Route::server(
            &[
                "/v1/responses/{id}/input_items",
                "/responses/{id}/input_items",
            ],
            get(responses::input_items),
            Operation::get("The items of a response's input.", Answer::Object),
        ),
        Route::server(
            &["/v1/responses/{id}/cancel", "/responses/{id}/cancel"],
            post(responses::cancel),
            Operation::get(
                "Refused: a response is complete when it is stored.",
                Answer::Object,
            )
            .under(&["post"]),
        ),
    ]
}

/// Anthropic's API.
fn messages_routes() -> Vec<Route> {
    vec![
        Route::model(
            &["/v1/messages"],
            post(messages::messages),
            Operation::post(
                "Answers a conversation, in Anthropic's form.",
                Body::of::<MessagesRequest>(
                    || json!({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}),
                ),
                Answer::OneOrStream("MessagesAnswer"),
            ),
        ),
        Route::model(
            &["/v1/messages/count_tokens"],
            post(messages::count_tokens),
            Operation::post(
                "The number of tokens of a prompt, in Anthropic's form.",
                Body::of::<CountTokensRequest>(
                    || json!({"messages": [{"role": "user", "content": "Hello!"}]}),
                ),
                Answer::One("TokenCount"),
            ),
        ),
    ]
}

/// OpenAI's older API, without conversations.
fn completion_routes() -> Vec<Route> {
    vec![
        Route::model(
            &["/v1/completions", "/completions"],
            post(completions::completions),
            Operation::post(
                "Continues prompts.",
                Body::of::<CompletionRequest>(
                    || json!({"prompt": "Once upon a time", "max_tokens": 16}),
                ),
                Answer::OneOrStream("CompletionAnswer"),
            ),
        ),
        Route::model(
            &["/v1/completions/render"],
            post(tokens::render_completions),
            Operation::post(
                "The prompts of a completions request as token ids.",
                Body::of::<RenderCompletionRequest>(|| json!({"prompt": "Once upon a time"})),
                Answer::List("TokenIds"),
            ),
        ),
    ]
}

/// Texts as vectors.
fn embedding_routes() -> Vec<Route> {
    vec![Route::model(
        &["/v1/embeddings", "/embeddings"],
        post(embeddings::embeddings),
        Operation::post(
            "Texts, token ids or a conversation as vectors.",
            Body {
                name: "EmbeddingsRequest",
                schema: embedding_schema,
                example: || json!({"input": ["Hello", "A fox"]}),
            },
            Answer::One("EmbeddingAnswer"),
        ),
    )]
}

/// Texts as vectors, in llama.cpp's form.
fn llama_embedding_routes() -> Vec<Route> {
    vec![Route::model(
        &["/embedding"],
        post(embeddings::llama_embedding),
        Operation::post(
            "Texts or token ids as vectors, in llama.cpp's form.",
            Body::of::<LlamaEmbeddingRequest>(|| json!({"content": ["Hello", "A fox"]})),
            Answer::Objects,
        ),
    )]
}

/// The forms of a request to `/v1/embeddings`.
fn embedding_schema(body: &Body, bounds: &Bounds) -> Value {
    let inputs = Body::of::<EmbeddingRequest>(body.example);
    let chat = Body::of::<EmbeddingChatRequest>(
        || json!({"messages": [{"role": "user", "content": "Hello!"}]}),
    );
    let llama = Body::of::<LlamaEmbeddingRequest>(|| json!({"content": "Hello"}));
    one_of(body.name, &[inputs, chat, llama], bounds)
}

/// Documents by how well they answer a query.
fn rerank_routes() -> Vec<Route> {
    vec![
        Route::model(
            &[
                "/v1/rerank",
                "/v2/rerank",
                "/rerank",
                "/v1/reranking",
                "/reranking",
            ],
            post(rerank::rerank),
            Operation::post(
                "Ranks documents by how well they answer a query.",
                Body {
                    name: "RerankRequest",
                    schema: rerank_schema,
                    example: || json!({"query": "Who sleeps?", "documents": ["A cat sleeps.", "It rains."]}),
                },
                Answer::One("RerankAnswer"),
            ),
        ),
        Route::model(
            &["/v1/score", "/score"],
            post(rerank::score),
            Operation::post(
                "Scores pairs of a query and a document.",
                Body {
                    name: "ScoreRequest",
                    schema: score_schema,
                    example: || json!({"text_1": "Who sleeps?", "text_2": ["A cat sleeps.", "It rains."]}),
                },
                Answer::One("ScoreAnswer"),
            ),
        ),
        Route::model(
            &["/classify"],
            post(classes::classify),
            Operation::post(
                "The classes of texts, of models with a head for classes.",
                Body::of::<ClassifyRequest>(|| json!({"input": ["It rains.", "It is great!"]})),
                Answer::One("ClassifyAnswer"),
            ),
        ),
    ]
}

/// Vectors in Cohere's form and in vLLM's.
fn vector_routes() -> Vec<Route> {
    vec![
        Route::model(
            &["/v2/embed"],
            post(cohere::embed),
            Operation::post(
                "Texts as vectors, in Cohere's form.",
                Body::of::<CohereEmbedRequest>(|| json!({"texts": ["Hello", "A fox"]})),
                Answer::One("CohereAnswer"),
            ),
        ),
        Route::model(
            &["/pooling"],
            post(vllm::pooling),
            Operation::post(
                "A vector of each text or of each of its tokens, or classes, in vLLM's form.",
                Body::of::<PoolingRequest>(|| json!({"input": ["Hello", "A fox"]})),
                Answer::One("PoolingAnswer"),
            ),
        ),
    ]
}

/// Routes of Text Embeddings Inference.
fn tei_routes() -> Vec<Route> {
    vec![
        Route::model(
            &["/embed"],
            post(tei::embed),
            Operation::post(
                "Texts as vectors, in the form of Text Embeddings Inference.",
                Body::of::<TeiEmbedRequest>(|| json!({"inputs": ["Hello", "A fox"]})),
                Answer::List("Numbers"),
            ),
        ),
        Route::model(
            &["/embed_all"],
            post(tei::embed_all),
            Operation::post(
                "A vector of each token of texts, in the form of Text Embeddings Inference.",
                Body::of::<TeiEmbedAllRequest>(|| json!({"inputs": ["Hello", "A fox"]})),
                Answer::List("Rows"),
            ),
        ),
        Route::model(
            &["/similarity"],
            post(tei::similarity),
            Operation::post(
                "Cosines of a text and others, in the form of Text Embeddings Inference.",
                Body::of::<TeiSimilarityRequest>(
                    || json!({"inputs": {"source_sentence": "Hello", "sentences": ["Hi", "A fox"]}}),
                ),
                Answer::One("Numbers"),
            ),
        ),
        Route::model(
            &["/predict"],
            post(tei::predict),
            Operation::post(
                "The classes of texts and of pairs, in the form of Text Embeddings Inference.",
                Body::of::<TeiPredictRequest>(|| json!({"inputs": "It is great!"})),
                Answer::One("Predictions"),
            ),
        ),
        Route::server(
            &["/info"],
            get(tei::info),
            Operation::get(
                "The model, in the form of Text Embeddings Inference.",
                Answer::Object,
            ),
        ),
    ]
}

/// The forms of a request to `/score`.
fn score_schema(body: &Body, bounds: &Bounds) -> Value {
    let texts = Body::of::<ScoreTextsRequest>(body.example);
    let documents = Body::of::<ScoreDocumentsRequest>(
        || json!({"queries": "Who sleeps?", "documents": ["A cat sleeps.", "It rains."]}),
    );
    let items = Body::of::<ScoreItemsRequest>(
        || json!({"queries": "Who sleeps?", "items": ["A cat sleeps.", "It rains."]}),
    );
    let data = Body::of::<ScoreDataRequest>(
        || json!({"data_1": "Who sleeps?", "data_2": ["A cat sleeps.", "It rains."]}),
    );
    one_of(body.name, &[texts, documents, items, data], bounds)
}

/// The two forms of a request to `/rerank`.
fn rerank_schema(body: &Body, bounds: &Bounds) -> Value {
    let documents = Body::of::<RerankDocumentsRequest>(body.example);
    let texts = Body::of::<RerankTextsRequest>(
        || json!({"query": "Who sleeps?", "texts": ["A cat sleeps.", "It rains."]}),
    );
    one_of(body.name, &[documents, texts], bounds)
}

/// Texts as token ids, and back.
fn token_routes() -> Vec<Route> {
    vec![
        Route::model(
            &["/tokenize"],
            post(tokens::tokenize),
            Operation::post(
                "A text or a conversation as token ids.",
                Body {
                    name: "TokenizeRequest",
                    schema: tokenize_schema,
                    example: || json!({"prompt": "Hello!"}),
                },
                Answer::One("TokenizeAnswer"),
            ),
        ),
        Route::model(
            &["/detokenize"],
            post(tokens::detokenize),
            Operation::post(
                "Token ids as text.",
                Body::of::<DetokenizeRequest>(|| json!({"tokens": [1, 2, 3]})),
                Answer::One("DetokenizeAnswer"),
            ),
        ),
        Route::server(
            &["/tokenizer_info"],
            get(tokens::tokenizer_info),
            Operation::get("The settings of the model's tokenizer.", Answer::Object),
        ),
    ]
}

/// The three forms of a request to `/tokenize`.
fn tokenize_schema(body: &Body, bounds: &Bounds) -> Value {
    let text = Body::of::<TokenizeTextRequest>(body.example);
    let chat = Body::of::<TokenizeChatRequest>(
        || json!({"messages": [{"role": "user", "content": "Hello!"}]}),
    );
    let content = Body::of::<TokenizeContentRequest>(|| json!({"content": "Hello!"}));
    one_of(body.name, &[text, chat, content], bounds)
}

/// Routes of llama.cpp's server about the server itself.
fn llama_state_routes() -> Vec<Route> {
    vec![
        Route::server(
            &["/props"],
            get(llama::props).post(llama::set_props),
            Operation::get(
                "The server's settings, as llama.cpp's server reports them; POST is answered with 501.",
                Answer::Object,
            )
            .under(&["get", "post"]),
        ),
        Route::server(
            &["/slots"],
            get(llama::slots),
            Operation::get(
                "The sequences that can run at once, as llama.cpp's server lists them, and how many of them run.",
                Answer::Objects,
            ),
        ),
        Route::server(
            &["/slots/{id}"],
            post(llama::slot),
            Operation::get(
                "Answered with 501: the prefix cache belongs to no slot.",
                Answer::Object,
            )
            .under(&["post"]),
        ),
        Route::server(
            &["/lora-adapters"],
            get(llama::adapters).post(llama::set_adapters),
            Operation::get(
                "The adapters, as llama.cpp's server lists them; POST sets their factors in answers of the base.",
                Answer::Objects,
            )
            .under(&["get", "post"]),
        ),
    ]
}

/// Routes of llama.cpp's server that a model answers.
fn llama_routes() -> Vec<Route> {
    vec![
        Route::model(
            &["/apply-template"],
            post(llama::apply_template),
            Operation::post(
                "The prompt of a chat request as text.",
                rendered_chat(),
                Answer::Object,
            ),
        ),
        Route::model(
            &["/completion"],
            post(llama::completion),
            Operation::post(
                "Continues prompts, in llama.cpp's form.",
                Body::of::<LlamaRequest>(|| json!({"prompt": "Once upon a time", "n_predict": 16})),
                Answer::OneOrStream("LlamaAnswer"),
            ),
        ),
        Route::model(
            &["/infill"],
            post(llama::infill),
            Operation::post(
                "Fills a gap in a text, in llama.cpp's form, if the model has tokens for it.",
                Body::of::<InfillRequest>(
                    || json!({"input_prefix": "def sum(a, b):\n    ", "input_suffix": "\n", "n_predict": 16}),
                ),
                Answer::OneOrStream("LlamaAnswer"),
            ),
        ),
    ]
}

/// Routes of SGLang's server.
fn sglang_routes() -> Vec<Route> {
    vec![
        Route::server(
            &["/get_model_info", "/model_info"],
            get(models::sglang_model),
            Operation::get("The model, in SGLang's form.", Answer::Object),
        ),
        Route::server(
            &["/get_server_info", "/server_info"],
            get(models::sglang_server),
            Operation::get("The server, in SGLang's form.", Answer::Object),
        ),
        Route::server(
            &["/get_load"],
            get(load::sglang_load),
            Operation::get("How busy the engine is, in SGLang's form.", Answer::Objects),
        ),
    ]
}

/// Ollama's version and its models.
fn ollama_state_routes() -> Vec<Route> {
    vec![
        Route::server(
            &["/api/version"],
            get(ollama::version),
            Operation::get("The version of Ollama whose API this is.", Answer::Object),
        ),
        Route::server(
            &["/api/tags"],
            get(ollama::tags),
            Operation::get("All served names, in Ollama's form.", Answer::Object),
        ),
        Route::server(
            &["/api/ps"],
            get(ollama::ps),
            Operation::get("The loaded models, in Ollama's form.", Answer::Object),
        ),
        Route::server(
            &["/api/show"],
            post(ollama::show),
            Operation::post(
                "What is known of a model, in Ollama's form.",
                Body::of::<OllamaShowRequest>(|| json!({})),
                Answer::Object,
            ),
        ),
    ]
}

/// Routes of Ollama's server that a model answers.
fn ollama_routes() -> Vec<Route> {
    vec![
        Route::model(
            &["/api/chat"],
            post(ollama::chat),
            Operation::post(
                "Answers a conversation, in Ollama's form.",
                Body::of::<OllamaChatRequest>(
                    || json!({"messages": [{"role": "user", "content": "Hello!"}], "options": {"num_predict": 16}}),
                ),
                Answer::Lines,
            ),
        ),
        Route::model(
            &["/api/generate"],
            post(ollama::generate),
            Operation::post(
                "Answers a prompt, in Ollama's form.",
                Body::of::<OllamaGenerateRequest>(
                    || json!({"prompt": "Hello!", "options": {"num_predict": 16}}),
                ),
                Answer::Lines,
            ),
        ),
        Route::model(
            &["/api/embed"],
            post(ollama::embed),
            Operation::post(
                "Texts as vectors, in Ollama's form.",
                Body::of::<OllamaEmbedRequest>(|| json!({"input": "Hello"})),
                Answer::Object,
            ),
        ),
        Route::model(
            &["/api/embeddings"],
            post(ollama::embed_one),
            Operation::post(
                "A text as a vector, in Ollama's older form.",
                Body::of::<OllamaEmbeddingsRequest>(|| json!({"prompt": "Hello"})),
                Answer::Object,
            ),
        ),
    ]
}

/// Ollama's changes of its models; most are refused.
fn ollama_pull_routes() -> Vec<Route> {
    let refused = Operation::get(
        "Refused: models are chosen when the server starts.",
        Answer::Object,
    );
    vec![
        Route::server(
            &["/api/pull"],
            post(ollama::pull),
            Operation::post(
                "Downloads a model into the cache, if `--allow-pull` was given.",
                Body::of::<OllamaPullRequest>(|| json!({"model": "demo"})),
                Answer::Lines,
            ),
        ),
        Route::server(
            &["/api/create", "/api/copy", "/api/push"],
            post(ollama::refused),
            refused.under(&["post"]),
        ),
        Route::server(
            &["/api/delete"],
            delete(ollama::refused),
            refused.under(&["delete"]),
        ),
    ]
}
