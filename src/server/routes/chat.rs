//! `POST /v1/chat/completions`, and [`begin`], with which every API begins an answer to a conversation.

use crate::engine::handle::EngineInfo;
use crate::platform;
use crate::server::guards::{Client, GivenId};
use crate::server::images::{GivenImage, PlacedImages, ReadImages};
use crate::server::parameters::conversation::{Conversation, Turn};
use crate::server::parameters::prepared::TemplateForm;
use crate::server::parameters::sampling::{Sampling, SamplingRequest, Shape};
use crate::server::parameters::structured::{self, Structure};
use crate::server::parameters::table::ChatRequest;
use crate::server::parameters::{read, tools};
use crate::server::reply::generation::Generation;
use crate::server::reply::openai::{Kind, OpenAiReply, PromptPart};
use crate::server::reply::respond;
use crate::server::reply::weight::Weight;
use crate::server::state::{ALWAYS, ModelState, prompt_bytes_max};
use crate::server::wire::error::{ApiError, Names, name_of, shorten};
use crate::text::answer::{AnswerFormat, AnswerParser, ToolChoice, calls_or_json, forced_calls};
use crate::text::{
    ChatInput, ChatTemplate, Grammar, PromptError, TemplateError, TextModel, Tokenizer,
};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use std::sync::Arc;

/// The engine's field names and those of a chat request, where they differ.
pub(crate) const NAMES: Names = &[("prompt", "messages"), ("logprobs", "top_logprobs")];

/// Answers a conversation.
pub(crate) async fn chat(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let (client, id) = (Client::of(&request), GivenId::of(&request));
    let request: ChatRequest = read::read(request, &state).await?;
    let asked = AskedChat::new(&state, client, request).await?;
    asked.answer(&state, id).await
}

/// A chat request of whose answer nothing is computed yet.
pub(crate) struct AskedChat {
    prepared: Prepared,
    /// The text that the answer begins with.
    echo: Option<String>,
}

impl AskedChat {
    /// Reads a request, and renders and encodes its conversation.
    pub(crate) async fn new(
        state: &ModelState,
        client: Client,
        request: ChatRequest,
    ) -> Result<Self, ApiError> {
        let echoes = request.echo;
        let turn = turn(request)?;
        let echo = if echoes {
            turn.conversation.last_answer()
        } else {
            None
        };
        let prepared = prepare(state, client, turn).await?;
        Ok(Self { prepared, echo })
    }

    /// The most bytes that its answer may have.
    pub(crate) fn weight(&self, info: &EngineInfo) -> Weight {
        let Prepared {
            sampling, prompts, ..
        } = &self.prepared;
        Weight::new(prompts, &sampling.params, info.max_model_len)
    }

    /// The answer, which may be named.
    pub(crate) async fn answer(
        self,
        state: &ModelState,
        id: GivenId,
    ) -> Result<Response, ApiError> {
        let Self { prepared, echo } = self;
        let Begun {
            generation,
            sampling,
            prompts,
            info,
        } = prepared.begin(state)?;
        // A conversation that is echoed has one prompt.
        let prompts = prompts
            .into_iter()
            .map(|ids| PromptPart {
                ids,
                echo: echo.clone(),
            })
            .collect();
        let form =
            OpenAiReply::new(Kind::Chat, (state, info), &sampling, prompts).named(id.0.as_deref());
        respond(generation, form, sampling.stream).await
    }
}

fn turn(request: ChatRequest) -> Result<Turn, ApiError> {
    let alternatives = match (request.n_probs, request.logprobs, request.top_logprobs) {
        (Some(count), _, Some(top)) if count != top => {
            let message = "`n_probs` and `top_logprobs` have different values";
            return Err(ApiError::invalid("n_probs", message));
        }
        (Some(count), ..) => Some(count),
        (None, false, Some(_)) => {
            return Err(ApiError::invalid(
                "top_logprobs",
                "`top_logprobs` needs `logprobs`: true",
            ));
        }
        (None, logprobs, top) => logprobs.then(|| top.unwrap_or(0)),
    };
    Ok(Turn {
        conversation: Conversation::new(request.conversation)?,
        sampling: SamplingRequest {
            target: request.target,
            fields: request.sampling,
            queueing: request.queueing,
            form: None,
            alternatives,
            max_tokens: request.max_completion_tokens.flatten(),
            echo: false,
            operation: "chat",
            names: NAMES,
        },
    })
}

/// An answer that is being generated.
pub(crate) struct Begun<'a> {
    pub(crate) generation: Generation,
    pub(crate) sampling: Sampling,
    /// The prompts; a conversation is one.
    pub(crate) prompts: Vec<Arc<[u32]>>,
    /// The engine when it took the prompt; it may be gone by now.
    pub(crate) info: &'a EngineInfo,
}

/// Begins the answer to a turn, from whatever API it came.
pub(crate) async fn begin(
    state: &ModelState,
    client: Client,
    turn: Turn,
) -> Result<Begun<'_>, ApiError> {
    prepare(state, client, turn).await?.begin(state)
}

/// A turn with its prompt, of whose answer nothing is computed yet.
struct Prepared {
    sampling: Sampling,
    prompts: Vec<Arc<[u32]>>,
    shape: Shape,
}

impl Prepared {
    fn begin(self, state: &ModelState) -> Result<Begun<'_>, ApiError> {
        let info = state.ready()?;
        let Self {
            sampling,
            prompts,
            shape,
        } = self;
        let generation = Generation::submit(state, &prompts, &sampling, &shape)?;
        Ok(Begun {
            generation,
            sampling,
            prompts,
            info,
        })
    }
}

/// Reads a turn, compiles its grammar, and renders and encodes its conversation.
async fn prepare(state: &ModelState, client: Client, turn: Turn) -> Result<Prepared, ApiError> {
    let info = state.ready()?;
    let Turn {
        conversation,
        sampling,
    } = turn;
    let (sampling, structure) = sampling.resolve(state, client)?;
    let tools = Arc::new(conversation.tools.clone());
    let (continued, parsing) = (conversation.continued(), conversation.parsing);
    let form = ChatForm::new(state, client, structure, tools).await?;
    let bytes_max = if sampling.truncates() {
        state.text_bytes_max()?
    } else {
        prompt_bytes_max(info)
    };
    let (prompt, images) =
        prompt_with_images(state, conversation, sampling.names, bytes_max).await?;
    let length = prompt.len();
    let ids = sampling.truncated(prompt);
    if ids.len() < length && !images.tiles.is_empty() {
        let has = format!("the prompt has {length} tokens, and one with images is not cut");
        let field = name_of("prompt", sampling.names);
        return Err(ApiError::context_length(field, info.max_model_len, &has));
    }
    let mut shape = form.shape(state, &ids, continued.as_deref());
    shape.images = images;
    shape.answer = shape.answer.telling_apart(parsing);
    Ok(Prepared {
        sampling,
        prompts: vec![ids],
        shape,
    })
}

/// Begins the continuation of prompts as they are, without the chat template. They come with more tokens that end an
/// answer.
pub(crate) async fn begin_raw(
    state: &ModelState,
    client: Client,
    prompts: impl Future<Output = Result<(Vec<Vec<u32>>, Vec<u32>), ApiError>>,
    sampling: SamplingRequest,
) -> Result<Begun<'_>, ApiError> {
    let info = state.ready()?;
    let (sampling, structure) = sampling.resolve(state, client)?;
    let plain = Shape::plain(state, client, structure).await?;
    let (prompts, end_ids) = prompts.await?;
    let prompts: Vec<_> = prompts
        .into_iter()
        .map(|ids| sampling.truncated(ids))
        .collect();
    let shape = Shape { end_ids, ..plain };
    let generation = Generation::submit(state, &prompts, &sampling, &shape)?;
    Ok(Begun {
        generation,
        sampling,
        prompts,
        info,
    })
}

/// Names in a header, and once in the log, the tools that were left out of a prompt.
pub(crate) fn naming_ignored(
    state: &ModelState,
    mut response: Response,
    left_out: &[String],
) -> Response {
    for name in left_out {
        if state.shared.is_new_name(&format!("tool {}", shorten(name))) {
            tracing::warn!(
                tool = shorten(name),
                "a tool that has no form here is left out of prompts"
            );
        }
    }
    let names = left_out
        .iter()
        .map(|name| {
            name.chars()
                .filter(|c| c.is_ascii_graphic() && *c != ',')
                .take(64)
                .collect::<String>()
        })
        .collect::<Vec<_>>()
        .join(", ");
    if let Ok(names) = HeaderValue::from_str(&names)
        && !names.is_empty()
    {
        response
            .headers_mut()
            .insert(HeaderName::from_static("x-ignored-tools"), names);
    }
    response
}

/// The form of answers in a conversation, as far as it does not depend on the prompt.
struct ChatForm {
    format: AnswerFormat,
    tools: Arc<ToolChoice>,
    grammar: Option<Grammar>,
}

impl ChatForm {
    /// Compiles the grammar: before the prompt is rendered and encoded, because a wrong one is refused.
    async fn new(
        state: &ModelState,
        client: Client,
        structure: Option<Structure>,
        tools: Arc<ToolChoice>,
    ) -> Result<Self, ApiError> {
        let format = state.answer_format;
        // If a call is forced, the form of other answers does not matter.
        let structure = if tools.forced.is_some() {
            None
        } else {
            structure
        };
        // There is no prompt without a tokenizer.
        if state.text.tokenizer.is_none() || (tools.forced.is_none() && structure.is_none()) {
            return Ok(Self {
                format,
                tools,
                grammar: None,
            });
        }
        let field = structure
            .as_ref()
            .map_or("tools", |structure| structure.field);
        let (parser, choice) = (format.tools, tools.clone());
        // Schemas may be large.
        let make = move |tokenizer: &Tokenizer| match structure {
            None => forced_calls(parser, &choice, tokenizer),
            Some(Structure { spec, .. }) => {
                let either = calls_or_json(parser, &choice, tokenizer, &spec)?;
                Ok((either.unwrap_or(spec), parser))
            }
        };
        let (grammar, parser) = state.grammar_of(client.0, field, make).await?;
        Ok(Self {
            format: AnswerFormat {
                tools: parser,
                ..format
            },
            tools,
            grammar: Some(grammar),
        })
    }

    /// The shape of the answers to this prompt. Without a tokenizer, they are ids.
    fn shape(self, state: &ModelState, prompt: &[u32], continued: Option<&str>) -> Shape {
        let Self {
            format,
            tools,
            grammar,
        } = self;
        let Some(tokenizer) = &state.text.tokenizer else {
            return Shape::default();
        };
        let start = format.reasoning.start(tokenizer, prompt, continued);
        Shape {
            constraint: grammar.map(|grammar| {
                let is_forced = tools.forced.is_some();
                structured::constraint(grammar, format, tokenizer, start, is_forced)
            }),
            answer: AnswerParser::new(format, start, &tools),
            kept_ids: format.kept_ids(tokenizer, tools.shown.is_some()),
            end_ids: Vec::new(),
            images: PlacedImages::default(),
            format: Some(format),
        }
    }
}

/// Renders and encodes the conversation, whose prompt may have this many bytes without its images.
pub(crate) async fn prompt(
    state: &ModelState,
    conversation: Conversation,
    names: Names,
    bytes_max: usize,
) -> Result<Vec<u32>, ApiError> {
    let prompt = prompt_with_images(state, conversation, names, bytes_max);
    Ok(prompt.await?.0)
}

/// [`prompt`], with the images that tokens of it stand for.
async fn prompt_with_images(
    state: &ModelState,
    mut conversation: Conversation,
    names: Names,
    bytes_max: usize,
) -> Result<(Vec<u32>, PlacedImages), ApiError> {
    let images = read_images(state, conversation.messages.take_images()).await?;
    let shown = images
        .as_ref()
        .map(|images| (images.marker, images.texts.clone()));
    let render = move |text: &TextModel, input: &ChatInput<'_>| match &shown {
        None => text.chat_prompt(input),
        Some((marker, texts)) => text.chat_prompt_with_images(input, marker, texts),
    };
    let ids = rendered(state, (conversation, names, bytes_max), render).await?;
    let refused = |message: &str| {
        Err(ApiError::invalid(
            name_of("prompt", names),
            message.to_owned(),
        ))
    };
    if ids.is_empty() {
        return refused("the conversation renders to an empty prompt");
    }
    let Some(images) = images else {
        return Ok((ids, PlacedImages::default()));
    };
    match images.placed(&ids) {
        Some(images) => Ok((ids, images)),
        None => refused("the tokens of the prompt do not stand for the rows of its images"),
    }
}

/// Decodes and cuts images, off the async threads; `None` if there are none.
async fn read_images(
    state: &ModelState,
    images: Vec<GivenImage>,
) -> Result<Option<ReadImages>, ApiError> {
    let Some(first) = images.first() else {
        return Ok(None);
    };
    let room = state.ready()?.images;
    let (Some(reader), Some(room)) = (state.options.images.clone(), room) else {
        let message = "images are not supported: this model reads text only";
        return Err(ApiError::unsupported(first.name.clone(), message));
    };
    let most = state.shared.options.limits.images_max;
    if let Some(image) = images.get(most as usize) {
        let message = format!(
            "a request has at most {most} images, and this one has {} (--limit-mm-per-prompt)",
            images.len()
        );
        return Err(ApiError::invalid(image.name.clone(), message));
    }
    let charge = state.shared.memory.request();
    let read = move || reader.read(&images, room, charge);
    state.shared.offload(ALWAYS, read).await?.map(Some)
}

/// Result of `render` on the conversation, off the async threads.
pub(crate) async fn rendered<T: Send + 'static>(
    state: &ModelState,
    (conversation, names, bytes_max): (Conversation, Names, usize),
    render: impl Fn(&TextModel, &ChatInput<'_>) -> Result<T, PromptError> + Send + 'static,
) -> Result<T, ApiError> {
    let conversation = conversation.with_defaults(&state.options.template_defaults);
    let info = state.ready()?;
    let shows_tools = state
        .text
        .template
        .as_ref()
        .is_none_or(|template| template.source().contains("tool"));
    let has_tools_as_text = !shows_tools && conversation.uses_tools();
    if has_tools_as_text && state.shared.is_new_name("the chat template") {
        tracing::warn!(
            "the chat template shows no tools, so they are described in the instructions"
        );
    }
    // The error names the field that most likely caused it.
    let is_chat = name_of("prompt", names) == "messages";
    let unreadable = if is_chat {
        conversation.unreadable_arguments()
    } else {
        None
    };
    let result_image = conversation.messages.first_of_results();
    let result_image = result_image.map(|image| image.name.clone());
    state.with_text(ALWAYS, move |text: &TextModel| {
        if conversation.content_bytes() > bytes_max {
            return Err(TemplateError::TooLong { bytes_max }.into());
        }
        let render = |conversation: &Conversation| render(text, &input(conversation, bytes_max));
        if has_tools_as_text {
            with_tools_as_text(text, conversation, render)
        } else {
            with_template(text, conversation, render)
        }
    }).await?.map_err(|error| match (error, unreadable, result_image) {
        (PromptError::Template(TemplateError::TooLong { .. }), ..) => too_many_bytes(info, bytes_max, names),
        (PromptError::Template(error), Some((message, call)), _) => {
            let field = format!("messages[{message}].tool_calls[{call}].function.arguments");
            let message =
                format!("`{field}` is no JSON object, and the chat template refuses the conversation: {error}");
            ApiError::invalid(field, message)
        }
        (PromptError::Template(TemplateError::Refused(reason)), None, Some(image)) => {
            let message = format!("the chat template refuses images in results of tools, and behind them: {reason}");
            ApiError::unsupported(image, message)
        }
        (error, ..) => ApiError::invalid(name_of("prompt", names), error.to_string()),
    })
}

fn input(conversation: &Conversation, bytes_max: usize) -> ChatInput<'_> {
    ChatInput {
        messages: &conversation.messages,
        tools: conversation.tools.shown.as_ref(),
        kwargs: conversation.kwargs.as_ref(),
        add_generation_prompt: conversation.add_generation_prompt,
        continue_final: conversation.continue_final,
        unix_time: platform::unix_time(),
        bytes_max,
    }
}

/// Renders a conversation with the template's own form of tools. Many templates take for granted what a tool may leave
/// out: if the first try fails, it is filled in.
fn with_template<T>(
    text: &TextModel,
    mut conversation: Conversation,
    render: impl Fn(&Conversation) -> Result<T, PromptError>,
) -> Result<T, PromptError> {
    let form = form_of(text, &conversation);
    if conversation.messages.first_of_results().is_some() {
        let template = text.template.as_ref();
        let is_shown = template.is_some_and(ChatTemplate::shows_images_of_results);
        // Images have to stay in the order in which they were sent.
        if !is_shown || !form.keeps_order() {
            conversation.move_images_of_results();
        }
    }
    conversation.prepare(form);
    let first = render(&conversation);
    match (&first, &conversation.tools.shown) {
        (Err(PromptError::Template(TemplateError::Failed(_))), Some(tools)) => {
            conversation.tools.shown = Some(tools::completed(tools));
            render(&conversation).or(first)
        }
        _ => first,
    }
}

/// Renders a conversation for a template that shows no tools. Some of these refuse instructions, too.
fn with_tools_as_text<T>(
    text: &TextModel,
    mut conversation: Conversation,
    render: impl Fn(&Conversation) -> Result<T, PromptError>,
) -> Result<T, PromptError> {
    conversation.prepare(TemplateForm::default());
    let render = |has_system: bool| {
        let mut conversation = conversation.with_tools_as_text(has_system);
        conversation.prepare(form_of(text, &conversation));
        render(&conversation)
    };
    let first = render(true);
    match first {
        Err(PromptError::Template(TemplateError::Refused(_))) => render(false).or(first),
        _ => first,
    }
}

/// The form of messages that the model's template reads.
fn form_of(text: &TextModel, conversation: &Conversation) -> TemplateForm {
    let template = text.template.as_ref();
    let shows_parts = conversation.has_parts() && template.is_some_and(ChatTemplate::shows_parts);
    TemplateForm::of(template.map_or("", ChatTemplate::source)).showing_parts(shows_parts)
}

fn too_many_bytes(info: &EngineInfo, bytes_max: usize, names: Names) -> ApiError {
    let has = format!("the rendered conversation has more than {bytes_max} bytes of text");
    ApiError::context_length(name_of("prompt", names), info.max_model_len, &has)
}
