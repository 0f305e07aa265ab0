//! `POST /v1/rerank` and `POST /score`: how well documents answer a query.
//!
//! A reranker is asked, in the words of Qwen3-Reranker, whether a document meets the requirements. Both answers are
//! found by a beam search of one token, so the score is that of the model's own probabilities. Other models compare
//! embeddings, unless they have a head for classes.

use crate::engine::handle::{ClassHead, EngineInfo, Squash};
use crate::engine::request::{
    BeamParams, Event, Request as EngineRequest, RequestError, SamplingParams,
};
use crate::server::guards::{Client, read_object};
use crate::server::parameters::adapters;
use crate::server::parameters::conversation::Conversation;
use crate::server::parameters::prompts::Prompts;
use crate::server::parameters::rerank::{
    Judging, RerankDocumentsRequest, RerankTextsRequest, ScoreDataRequest, ScoreDocumentsRequest,
    ScoreItemsRequest, ScoreTextsRequest,
};
use crate::server::parameters::turns::Turns;
use crate::server::parameters::{read, tools, vocabulary};
use crate::server::routes::chat;
use crate::server::routes::classes::{self, Cut, Pairs};
use crate::server::routes::embeddings::{self, Inputs};
use crate::server::state::{ModelState, Reranker, prompt_bytes_max};
use crate::server::wire::error::{ApiError, Names, name_of};
use crate::text::answer::Parsing;
use crate::text::{TextModel, TextStream};
use axum::Json;
use axum::extract::{Request, State};
use futures_util::{StreamExt as _, TryStreamExt as _};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The engine's field names and those of these requests, where they differ.
const NAMES: Names = &[("prompt", "documents")];
/// Documents of one request that are judged at once, so that it does not fill the queue.
const DOCUMENTS_AT_ONCE: usize = 16;
/// Tokens of the context that a document that is cut leaves free: that of the answer, those that the tokenizer adds,
/// and those that the document's ends form with its neighbours.
const TOKENS_AT_ENDS: usize = 8;
/// The answer that counts.
const YES: &str = "yes";
/// From Qwen3-Reranker's documentation.
const JUDGE: &str = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
                     Note that the answer can only be \"yes\" or \"no\".";
/// Its default instruction.
const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// A query and a document. The query is shared by the pairs that it is in.
type Pair = (Arc<str>, Arc<str>);

/// Each document with the query.
fn pairs(query: String, documents: &[Arc<str>]) -> Vec<Pair> {
    let query: Arc<str> = query.into();
    let pairs = documents.iter().map(|one| (query.clone(), one.clone()));
    pairs.collect()
}

/// Texts that are shared from now on.
fn shared(texts: Vec<String>) -> Vec<Arc<str>> {
    texts.into_iter().map(Arc::from).collect()
}

/// The forms of a request to `/rerank`.
enum RerankRequest {
    Documents(RerankDocumentsRequest),
    Texts(RerankTextsRequest),
}

impl RerankRequest {
    fn read(body: Map<String, Value>, state: &ModelState) -> Result<Self, ApiError> {
        match (read::has(&body, "documents"), read::has(&body, "texts")) {
            (true, true) => {
                let message = "`documents` and `texts` are the same in two forms of a request; send one of them";
                Err(ApiError::invalid("texts", message))
            }
            (false, true) => read::whole(body, state).map(Self::Texts),
            _ => read::whole(body, state).map(Self::Documents),
        }
    }
}

/// Ranks documents.
pub(crate) async fn rerank(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (client, owned) = (Client::of(&request), state.clone());
    match read_object(request, &state.shared, move |body| {
        RerankRequest::read(body, &owned)
    })
    .await?
    {
        RerankRequest::Documents(request) => rerank_documents(&state, client, request).await,
        RerankRequest::Texts(request) => rerank_texts(&state, client, request).await,
    }
}

/// `/rerank` in Jina's, Cohere's and vLLM's form.
async fn rerank_documents(
    state: &ModelState,
    client: Client,
    request: RerankDocumentsRequest,
) -> Result<Json<Value>, ApiError> {
    let model = adapters::base(state, &request.judging.target)?;
    let documents = shared(request.documents);
    let pairs = pairs(request.query, &documents);
    let is_raw = !request.judging.use_activation;
    let (scores, tokens) = scores(state, client, pairs, request.judging, NAMES).await?;
    let scores = scores.iter().map(|found| found.usual_or_raw(is_raw));
    let results: Vec<_> = best(scores.collect(), request.top_n)
        .into_iter()
        .map(|(index, score)| {
            let mut result = json!({"index": index, "relevance_score": score});
            if request.return_documents {
                result["document"] = json!({"text": &*documents[index]});
            }
            result
        })
        .collect();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    Ok(Json(
        json!({"id": state.shared.new_id("rerank"), "model": model, "usage": usage, "results": results}),
    ))
}

/// `/rerank` in the form of Text Embeddings Inference: the answer is a bare list.
async fn rerank_texts(
    state: &ModelState,
    client: Client,
    mut request: RerankTextsRequest,
) -> Result<Json<Value>, ApiError> {
    const NAMES: Names = &[("prompt", "texts")];
    adapters::base(state, &request.judging.target)?;
    if request.truncate && request.judging.truncate_prompt_tokens.is_none() {
        request.judging.truncate_prompt_tokens = Some(-1);
    }
    let texts = shared(request.texts);
    let pairs = pairs(request.query, &texts);
    let is_raw = request.raw_scores || !request.judging.use_activation;
    let (scores, _) = scores(state, client, pairs, request.judging, NAMES).await?;
    let scores = scores.iter();
    let scores = scores.map(|found| if is_raw { found.raw } else { found.share });
    Ok(Json(
        best(scores.collect(), request.top_n)
            .into_iter()
            .map(|(index, score)| {
                let mut result = json!({"index": index, "score": score});
                if request.return_text {
                    result["text"] = Value::from(&*texts[index]);
                }
                result
            })
            .collect(),
    ))
}

/// Indices and scores, the best first, of as many as were asked for. Of equal ones, the first comes first.
fn best(scores: Vec<f64>, most: Option<i64>) -> Vec<(usize, f64)> {
    let mut ranked: Vec<_> = scores.into_iter().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(most.map_or(usize::MAX, |most| most as usize));
    ranked
}

/// The logarithm of the odds of a probability; finite, because JSON has no infinite numbers.
fn log_odds(probability: f64) -> f64 {
    let probability = probability.clamp(f64::EPSILON, 1.0 - f64::EPSILON);
    (probability / (1.0 - probability)).ln()
}

/// How well a document answers a query.
struct Relevance {
    /// As the model's files say.
    usual: f64,
    /// The logit, or the logarithm of the odds; of embeddings, the cosine.
    raw: f64,
    /// The probability of which `raw` is the logarithm of the odds; of embeddings, the cosine.
    share: f64,
}

impl Relevance {
    fn usual_or_raw(&self, is_raw: bool) -> f64 {
        if is_raw { self.raw } else { self.usual }
    }
}

/// Tokens of a document that fit into the context beside the query; at least 1.
async fn room(
    state: &ModelState,
    query: &str,
    judging: &Judging,
    names: Names,
) -> Result<usize, ApiError> {
    let info = state.ready()?;
    let beside = match state.reranker() {
        Reranker::YesNo => {
            let question = question(&judged_text(query, "", judging))?;
            let prompt = chat::prompt(state, question, names, prompt_bytes_max(info));
            prompt.await?.len()
        }
        Reranker::Embedding => 0,
    };
    let taken = beside + TOKENS_AT_ENDS;
    Ok((info.max_model_len as usize).saturating_sub(taken).max(1))
}

/// What is scored, under whatever names.
struct Scored {
    /// Those of the `query` and of the documents, which are the engine's `prompt`.
    names: Names,
    queries: Vec<String>,
    documents: Vec<String>,
    judging: Judging,
}

impl Scored {
    fn read(body: Map<String, Value>, state: &ModelState) -> Result<Self, ApiError> {
        let has_one = |names: [&str; 2]| names.iter().any(|name| read::has(&body, name));
        let is_plain = has_one(["text_1", "text_2"]);
        if !is_plain && has_one(["data_1", "data_2"]) {
            let request: ScoreDataRequest = read::whole(body, state)?;
            let ScoreDataRequest {
                data_1,
                data_2,
                judging,
            } = request;
            return Ok(Self {
                names: &[("query", "data_1"), ("prompt", "data_2")],
                queries: data_1,
                documents: data_2,
                judging,
            });
        }
        if !is_plain && read::has(&body, "items") {
            let request: ScoreItemsRequest = read::whole(body, state)?;
            let ScoreItemsRequest {
                queries,
                items,
                judging,
            } = request;
            return Ok(Self {
                names: &[("query", "queries"), ("prompt", "items")],
                queries,
                documents: items,
                judging,
            });
        }
        if !is_plain && has_one(["queries", "documents"]) {
            let request: ScoreDocumentsRequest = read::whole(body, state)?;
            let ScoreDocumentsRequest {
                queries,
                documents,
                judging,
            } = request;
            return Ok(Self {
                names: &[("query", "queries"), ("prompt", "documents")],
                queries,
                documents,
                judging,
            });
        }
        let request: ScoreTextsRequest = read::whole(body, state)?;
        let ScoreTextsRequest {
            text_1,
            text_2,
            judging,
        } = request;
        Ok(Self {
            names: &[("query", "text_1"), ("prompt", "text_2")],
            queries: text_1,
            documents: text_2,
            judging,
        })
    }
}

/// Scores pairs of texts.
pub(crate) async fn score(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let client = Client::of(&request);
    let owned = state.clone();
    let request = read_object(request, &state.shared, move |body| {
        Scored::read(body, &owned)
    });
    let Scored {
        names,
        queries,
        documents,
        judging,
    } = request.await?;
    let model = adapters::base(&state, &judging.target)?;
    if queries.len() > 1 && queries.len() != documents.len() {
        let [query, document] = ["query", "prompt"].map(|field| name_of(field, names));
        let message = format!(
            "`{query}` must be one text, or as many as `{document}` ({}), not {}",
            documents.len(),
            queries.len()
        );
        return Err(ApiError::invalid(query, message));
    }
    let (queries, documents) = (shared(queries), shared(documents));
    let pairs = queries.iter().cycle().cloned().zip(documents).collect();
    let is_raw = !judging.use_activation;
    let (scores, tokens) = scores(&state, client, pairs, judging, names).await?;
    let data: Vec<_> = scores
        .into_iter()
        .map(|found| found.usual_or_raw(is_raw))
        .enumerate()
        .map(|(index, score)| json!({"index": index, "object": "score", "score": score}))
        .collect();
    Ok(Json(json!({
        "id": state.shared.new_id("score"),
        "object": "list",
        "created": crate::platform::unix_time(),
        "model": model,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

/// Refuses a query that no prompt has room for, before anything is made of it for each document.
fn check_queries(pairs: &[Pair], names: Names, info: &EngineInfo) -> Result<(), ApiError> {
    let most = prompt_bytes_max(info);
    let longest = pairs.iter().map(|(query, _)| query.len()).max();
    let Some(bytes) = longest.filter(|bytes| *bytes > most) else {
        return Ok(());
    };
    let has = format!("your query has {bytes} bytes, of at most {most}");
    let field = name_of("query", names);
    Err(ApiError::context_length(field, info.max_model_len, &has))
}

/// A score for each pair of a query and a document, and the number of tokens that were read.
async fn scores(
    state: &ModelState,
    client: Client,
    mut pairs: Vec<Pair>,
    judging: Judging,
    names: Names,
) -> Result<(Vec<Relevance>, usize), ApiError> {
    let info = state.ready()?;
    check_queries(&pairs, names, info)?;
    if let Some(head) = info.classes.clone() {
        return classified(state, client, &head, pairs, (judging, names)).await;
    }
    let longest = judging.instruction.as_ref().map_or(0, String::len);
    if longest > prompt_bytes_max(info) {
        let message = "`instruction` is longer than the context";
        return Err(ApiError::invalid("instruction", message));
    }
    let mut most = judging.document_tokens_max();
    if judging.is_cut_to_fit() {
        let mut queries: Vec<_> = pairs.iter().map(|(query, _)| query.clone()).collect();
        queries.dedup();
        for query in queries {
            let room = room(state, &query, &judging, names).await?;
            most = most.into_iter().chain([room]).min();
        }
    }
    if let Some(most) = most {
        pairs = cut(state, pairs, (most, judging.keeps_end()), names).await?;
    }
    match state.reranker() {
        Reranker::YesNo => {
            let (shares, tokens) = judged(state, client, pairs, (&judging, names)).await?;
            let scores = shares.into_iter().map(|share| Relevance {
                usual: share,
                raw: log_odds(share),
                share,
            });
            Ok((scores.collect(), tokens))
        }
        Reranker::Embedding => {
            let (cosines, tokens) = compared(state, client, pairs, (judging, names)).await?;
            let scores = cosines.into_iter().map(|cosine| Relevance {
                usual: cosine,
                raw: cosine,
                share: cosine,
            });
            Ok((scores.collect(), tokens))
        }
    }
}

/// What a head for classes with one label makes of the pairs.
async fn classified(
    state: &ModelState,
    client: Client,
    head: &ClassHead,
    pairs: Vec<Pair>,
    (judging, names): (Judging, Names),
) -> Result<(Vec<Relevance>, usize), ApiError> {
    if head.spec.labels.len() > 1 {
        let count = head.spec.labels.len();
        let message = format!("this model tells {count} classes apart: use /classify");
        return Err(ApiError::unsupported("model", message));
    }
    if judging.instruction.is_some() {
        let message = "`instruction` is for models that read one, not for a head for classes";
        return Err(ApiError::unsupported("instruction", message));
    }
    let cut = Cut {
        whole: judging.truncate_prompt_tokens,
        second: judging.max_tokens_per_doc.filter(|most| *most > 0),
        keeps_end: judging.keeps_end(),
    };
    let inputs = pairs.into_iter().map(|(query, document)| [query, document]);
    let inputs = Pairs {
        pairs: inputs.collect(),
        cut,
        queueing: judging.queueing,
        names,
    };
    let (logits, tokens) = classes::logits_of_pairs(state, client, head, inputs).await?;
    let scores = logits.iter().map(|logits| Relevance {
        usual: classes::scores(head.spec.score, logits)[0],
        raw: logits[0],
        share: classes::scores(Squash::Sigmoid, logits)[0],
    });
    Ok((scores.collect(), tokens))
}

/// The pairs with at most `most` tokens of each document: its first ones, or its last ones.
async fn cut(
    state: &ModelState,
    pairs: Vec<Pair>,
    (most, keeps_end): (usize, bool),
    names: Names,
) -> Result<Vec<Pair>, ApiError> {
    let bytes = pairs.iter().map(|(_, document)| document.len()).sum();
    state
        .with_text(bytes, move |text: &TextModel| {
            let tokenizer = text.tokenizer.clone();
            pairs
                .into_iter()
                .map(|(query, document)| {
                    let Some(tokenizer) = &tokenizer else {
                        return Ok((query, document));
                    };
                    let ids = tokenizer.encode(&document, false)?;
                    if ids.len() <= most {
                        return Ok((query, document));
                    }
                    let kept = if keeps_end {
                        &ids[ids.len() - most..]
                    } else {
                        &ids[..most]
                    };
                    // A character that is cut in two is left out.
                    let mut decoder = TextStream::new(Some(tokenizer.clone()), &[], false);
                    let document: String = kept.iter().map(|id| decoder.push(*id).text).collect();
                    Ok((query, document.into()))
                })
                .collect::<Result<_, crate::text::TokenizerError>>()
        })
        .await?
        .map_err(|error| ApiError::invalid(name_of("prompt", names), error.to_string()))
}

/// Cosines of embeddings.
async fn compared(
    state: &ModelState,
    client: Client,
    pairs: Vec<Pair>,
    (judging, names): (Judging, Names),
) -> Result<(Vec<f64>, usize), ApiError> {
    let (mut queries, documents): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    // One query is embedded once.
    if queries.iter().all(|query| *query == queries[0]) {
        queries.truncate(1);
    }
    let count = queries.len();
    // Each query has its own copy of the instruction.
    let charge = state.shared.memory.request();
    let copied = judging.instruction.as_ref().map_or(0, String::len);
    charge.add((copied as u64).saturating_mul(count as u64))?;
    let queries = queries.iter().map(|query| match &judging.instruction {
        // How embedding models are given an instruction: with the query only.
        Some(instruction) => format!("Instruct: {instruction}\nQuery:{query}"),
        None => query.to_string(),
    });
    let texts = queries.chain(documents.iter().map(ToString::to_string));
    let texts = texts.collect();
    let mut inputs = Inputs::new(Prompts::texts(texts), judging.queueing);
    inputs.names = names;
    let (vectors, tokens) = embeddings::vectors(state, client, inputs).await?;
    let (queries, documents) = vectors.split_at(count);
    Ok((
        documents
            .iter()
            .enumerate()
            .map(|(index, document)| {
                let query = if count == documents.len() {
                    &queries[index]
                } else {
                    &queries[0]
                };
                query
                    .iter()
                    .zip(document)
                    .map(|(a, b)| f64::from(*a) * f64::from(*b))
                    .sum()
            })
            .collect(),
        tokens,
    ))
}

/// Probabilities that the answer is yes rather than no.
async fn judged(
    state: &ModelState,
    client: Client,
    pairs: Vec<Pair>,
    (judging, names): (&Judging, Names),
) -> Result<(Vec<f64>, usize), ApiError> {
    let info = state.ready()?;
    let base = base(state, info, client, judging)?;
    let checked = base.check_without_prompt(info.vocab, info.max_model_len);
    checked.map_err(|error| ApiError::refused(&error, names))?;
    let _active = state.count_answer();
    let all = pairs.into_iter().map(|(query, document)| {
        let text = judged_text(&query, &document, judging);
        let base = base.clone();
        async move {
            let prompt =
                chat::prompt(state, question(&text)?, names, prompt_bytes_max(info)).await?;
            let tokens = prompt.len();
            let request = EngineRequest {
                prompt: prompt.into(),
                ..base
            };
            Ok::<_, ApiError>((yes_share(state, request, names).await?, tokens))
        }
    });
    let judged: Vec<_> = futures_util::stream::iter(all)
        .buffered(DOCUMENTS_AT_ONCE)
        .try_collect()
        .await?;
    Ok((
        judged.iter().map(|(score, _)| *score).collect(),
        judged.iter().map(|(_, tokens)| tokens).sum(),
    ))
}

/// The request without its prompt: a search for the two answers.
fn base(
    state: &ModelState,
    info: &EngineInfo,
    client: Client,
    judging: &Judging,
) -> Result<EngineRequest, ApiError> {
    let refusal = || {
        ApiError::unsupported(
            "model",
            "this model's tokenizer has no tokens `yes` and `no`",
        )
    };
    let tokenizer = state.text.tokenizer.as_ref().ok_or_else(refusal)?;
    let id = |word: &str| match tokenizer.encode(word, false).as_deref() {
        Ok([id]) => Ok(*id),
        _ => Err(refusal()),
    };
    let answers = [id(YES)?, id("no")?];
    let params = SamplingParams {
        n: 2,
        max_tokens: Some(1),
        logprobs: Some(0),
        constraint: vocabulary::limited(None, (&answers, &[]), None, info.vocab)?,
        beams: Some(BeamParams {
            width: 2,
            length_penalty: 1.0,
            early_stopping: false,
        }),
        ..SamplingParams::default()
    };
    Ok(EngineRequest {
        params,
        cache_salt: judging.queueing.cache_salt.clone(),
        priority: judging.queueing.priority.unwrap_or(0) as i32,
        client: client.0,
        ..EngineRequest::default()
    })
}

/// What the model reads of a pair.
fn judged_text(query: &str, document: &str, judging: &Judging) -> String {
    let instruction = judging.instruction.as_deref().unwrap_or(INSTRUCTION);
    format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}")
}

/// The conversation in which a document is judged. The model does not think first.
fn question(text: &str) -> Result<Conversation, ApiError> {
    let mut turns = Turns::default();
    turns.system(JUDGE);
    turns.user(text);
    Ok(Conversation {
        messages: turns.messages(),
        tools: tools::resolve(None, None, false)?,
        kwargs: Some(Map::from_iter([(
            "enable_thinking".to_owned(),
            Value::Bool(false),
        )])),
        add_generation_prompt: true,
        continue_final: false,
        parsing: Parsing::default(),
    })
}

/// The probability of yes among the two answers.
async fn yes_share(
    state: &ModelState,
    request: EngineRequest,
    names: Names,
) -> Result<f64, ApiError> {
    let yes = state
        .text
        .tokenizer
        .as_ref()
        .and_then(|tokenizer| tokenizer.encode(YES, false).ok());
    let receivers = state
        .submit(request)
        .map_err(|error| ApiError::refused(&error, names))?;
    let (mut share_of_yes, mut whole) = (0.0, 0.0);
    for mut receiver in receivers {
        loop {
            match receiver.next().await {
                Some(Event::Token(token)) => {
                    let share = f64::from(token.logprob.unwrap_or(f32::NEG_INFINITY)).exp();
                    whole += share;
                    share_of_yes += if yes.as_deref() == Some(&[token.id]) {
                        share
                    } else {
                        0.0
                    };
                }
                Some(Event::Finished { .. }) => break,
                Some(Event::Failed(error)) => return Err(ApiError::failed(error)),
                Some(Event::Prompt(_)) => {}
                // The engine ends every request with an event; without one, it is gone.
                None => return Err(ApiError::failed(RequestError::Internal)),
            }
        }
    }
    // Both may be too unlikely for a number.
    Ok(if whole > 0.0 {
        share_of_yes / whole
    } else {
        0.5
    })
}
