//! Requests of Ollama's API, and their translation to a [`Turn`].
//!
//! Sampling parameters are in `options`. Those about loading a model are ignored: the server was started with its own.
//! `keep_alive` is read before a request reaches its model (`routes::forward`), where a server has several.
//! A request without a prompt only loads the model.

use crate::engine::request::{MIN_P, PENALTY, REPETITION_PENALTY};
use crate::server::images::GivenImage;
use crate::server::parameters::conversation::{Conversation, Turn};
use crate::server::parameters::fields::fields;
use crate::server::parameters::kind::{Bounds, Kind, Most, wrong};
use crate::server::parameters::kinds::images::{self, Images};
use crate::server::parameters::kinds::messages::{MessageList, Messages, check_count, message};
use crate::server::parameters::kinds::sampling::{
    OPENAI_TEMPERATURE, StopStrings, TOP_P_OR_GREEDY, Within,
};
use crate::server::parameters::kinds::structured::JsonSchema;
use crate::server::parameters::kinds::{
    Count, Flag, Integer, Number, Open, Optional, Required, Text,
};
use crate::server::parameters::prompts::{AlwaysTrue, GapFields, Prompts, PromptsKind};
use crate::server::parameters::samplers::OtherSamplers;
use crate::server::parameters::sampling::SamplingRequest;
use crate::server::parameters::structured::Structure;
use crate::server::parameters::table::{
    INPUTS_MAX, Queueing, SamplingFields, Target, TemplateFields,
};
use crate::server::parameters::thinking::Thinking;
use crate::server::parameters::tools::{self, Tools};
use crate::server::parameters::turns::Turns;
use crate::server::wire::error::{ApiError, Names};
use crate::text::GrammarSpec;
use crate::text::answer::Parsing;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The engine's field names and Ollama's, where they differ.
const CHAT_NAMES: Names = &[
    ("prompt", "messages"),
    ("logprobs", "top_logprobs"),
    ("max_tokens", "options.num_predict"),
    ("temperature", "options.temperature"),
    ("top_p", "options.top_p"),
    ("min_p", "options.min_p"),
    ("repetition_penalty", "options.repeat_penalty"),
    ("presence_penalty", "options.presence_penalty"),
    ("frequency_penalty", "options.frequency_penalty"),
    ("repeat_last_n", "options.repeat_last_n"),
];

fields! {
    /// In requests that generate.
    OllamaSettings with template: TemplateFields {
        /// Answer with lines of JSON, one for each part of the answer.
        stream: bool = Flag(true),
        /// The form of the answer: `json`, or a JSON schema. An empty string sets none.
        format: Option<Option<GrammarSpec>> = Optional(OllamaFormat),
        /// Sampling parameters.
        options: Option<(OllamaOptions, Map<String, Value>)> = Optional(Open::<OllamaOptions>::new()),
        /// Whether the model thinks before it answers, or how long.
        think: Option<Thinking> = Optional(Think),
        /// Report the log-probabilities of the answer's tokens.
        logprobs: bool = Flag(false),
        /// Alternatives to report for each token; needs `logprobs`.
        top_logprobs: Option<u32> = Optional(Count { min: 0, max: Most::Fixed(20) }),
    }
    refuses {
        reasoning_effort: "use `think`",
    }
    ignores {
        keep_alive: "a server's only model stays loaded; one of several is kept so long",
        shift: "an answer ends with the context",
        truncate: "a prompt that is too long is refused",
    }
}

fields! {
    /// `options`.
    OllamaOptions with samplers: OtherSamplers {
        /// Tokens to generate at most; negative: as many as fit into the context.
        num_predict: Option<i64> = Optional(Integer { min: -2, max: Most::Fixed(u32::MAX as i64) }),
        /// Sampling temperature; 0 always takes the likeliest token.
        temperature: Option<f32> = Optional(Within(OPENAI_TEMPERATURE)),
        /// Sample from the likeliest tokens whose probabilities add up to this.
        top_p: Option<f32> = Optional(Number(TOP_P_OR_GREEDY)),
        /// Sample from this many of the likeliest tokens; 0 and -1 keep all.
        top_k: Option<i64> = Optional(Integer { min: -1, max: Most::Fixed(i32::MAX as i64) }),
        /// Leave out tokens less likely than this share of the likeliest one.
        min_p: Option<f32> = Optional(Number(MIN_P)),
        /// Divides the logits of tokens that were there before; 1 is off.
        repeat_penalty: Option<f32> = Optional(Number(REPETITION_PENALTY)),
        /// Subtracted from the logits of tokens that were generated before.
        presence_penalty: Option<f32> = Optional(Number(PENALTY)),
        /// Subtracted from the logits of tokens for each time that they were generated before.
        frequency_penalty: Option<f32> = Optional(Number(PENALTY)),
        /// Requests with the same seed sample the same tokens.
        seed: Option<i64> = Optional(Integer { min: i64::MIN, max: Most::Fixed(i64::MAX) }),
        /// Strings that end the answer.
        stop: Option<Vec<String>> = Optional(StopStrings),
        /// Penalties count line breaks, too.
        #[expect(dead_code)]
        penalize_newline: Option<()> = Optional(AlwaysTrue),
    }
    refuses {
        rope_frequency_base: "the model's own is used",
        rope_frequency_scale: "the model's own is used",
    }
    ignores {
        embedding_only: "the server was started with its own settings",
        f16_kv: "the server was started with its own settings",
        logits_all: "the server was started with its own settings",
        low_vram: "the server was started with its own settings",
        main_gpu: "the server was started with its own settings",
        num_batch: "the server was started with its own settings",
        num_ctx: "the server was started with its own settings",
        num_gpu: "the server was started with its own settings",
        num_gqa: "the server was started with its own settings",
        num_keep: "contexts do not shift",
        num_thread: "the server was started with its own settings",
        numa: "the server was started with its own settings",
        use_mlock: "the server was started with its own settings",
        use_mmap: "the server was started with its own settings",
        vocab_only: "the server was started with its own settings",
    }
}

fields! {
    /// `POST /api/chat`.
    OllamaChatRequest with target: Target, settings: OllamaSettings, queueing: Queueing {
        /// The conversation so far; without one, nothing is generated.
        messages: Option<MessageList> = Optional(OllamaMessages),
        /// Functions that the model may call.
        tools: Option<Vec<Value>> = Optional(Tools),
    }
}

fields! {
    /// `POST /api/generate`.
    OllamaGenerateRequest with target: Target, settings: OllamaSettings, queueing: Queueing {
        /// What to answer; without it, nothing is generated.
        prompt: Option<String> = Optional(Text::ANY),
        /// Instructions.
        system: Option<String> = Optional(Text::ANY),
        /// The text after a gap that follows the prompt, for models that can fill one.
        suffix: Option<String> = Optional(Text::ANY),
        /// Images in base64, which come before the prompt.
        images: Option<Vec<GivenImage>> = Optional(Base64Images),
        /// Continue the prompt as it is, without the chat template.
        raw: bool = Flag(false),
    }
    refuses {
        template: "set it when the server starts, with `--chat-template`",
    }
    ignores {
        context: "the prefix cache finds what prompts share",
    }
}

fields! {
    /// `POST /api/embed`.
    OllamaEmbedRequest with target: Target, queueing: Queueing {
        /// What to embed: a text, or several.
        input: Prompts = Required(PromptsKind { most: Most::Fixed(INPUTS_MAX) }),
        /// Cut an input that is too long; it is refused otherwise.
        truncate: bool = Flag(true),
        /// Elements to keep of each vector.
        dimensions: Option<i64> = Optional(Integer { min: 1, max: Most::Embedding }),
    }
    ignores {
        keep_alive: "a server's only model stays loaded; one of several is kept so long",
        options: "nothing is sampled",
    }
}

fields! {
    /// `POST /api/embeddings`, the older form of `/api/embed`.
    OllamaEmbeddingsRequest with target: Target, queueing: Queueing {
        /// What to embed.
        prompt: Prompts = Required(PromptsKind { most: Most::Fixed(1) }),
    }
    ignores {
        keep_alive: "a server's only model stays loaded; one of several is kept so long",
        options: "nothing is sampled",
    }
}

fields! {
    /// `POST /api/show`.
    OllamaShowRequest with target: Target {
        /// An older name of `model`.
        name: Option<String> = Optional(Text::ANY),
    }
    ignores {
        verbose: "everything that is known is reported",
    }
}

fields! {
    /// `POST /api/pull`.
    OllamaPullRequest with target: Target {
        /// An older name of `model`.
        name: Option<String> = Optional(Text::ANY),
        /// Report the progress line by line.
        stream: bool = Flag(true),
    }
    refuses {
        insecure: "models are downloaded over TLS only",
    }
}

/// What to generate.
pub(crate) enum Task {
    Chat(Turn),
    /// A prompt without a template, and what else a turn has.
    Raw(String, SamplingRequest),
    /// A gap to fill.
    Gap(GapFields, SamplingRequest),
    /// Nothing: it is enough that the model is loaded.
    Load(Option<String>),
}

/// The longest `keep_alive`, ten years; longer ones count as this.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// How long a model stays loaded after a request: a number of seconds, or a text such as `5m` or `1h30m`, at most
/// [`KEEP_ALIVE_MAX`]. Negative: until its memory is needed, which is `Some(None)`. `None` if the request does not say
/// it.
pub(crate) fn keep_alive(value: &Value) -> Result<Option<Option<Duration>>, ApiError> {
    let seconds = match value {
        Value::Null => return Ok(None),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => seconds_of(text),
        _ => None,
    };
    let message = "`keep_alive` must be a number of seconds or a duration such as \"5m\"";
    let seconds = seconds.ok_or_else(|| ApiError::invalid("keep_alive", message))?;
    let longest = KEEP_ALIVE_MAX.as_secs_f64();
    Ok(Some(
        (seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(longest))),
    ))
}

/// The seconds of a duration as Go writes it, or of a bare number.
fn seconds_of(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Some(seconds).filter(|seconds| seconds.is_finite());
    }
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest.is_empty() {
        return None;
    }
    let mut sum = 0.0;
    while !rest.is_empty() {
        let unit = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let number: f64 = rest[..unit].parse().ok()?;
        let end = rest[unit..]
            .find(|character: char| character.is_ascii_digit() || character == '.')
            .map_or(rest.len(), |end| unit + end);
        sum += number
            * match &rest[unit..end] {
                "ns" => 1e-9,
                // Micro sign and Greek letter.
                "us" | "µs" | "μs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[end..];
    }
    Some(sign * sum)
}

/// Whether a request has nothing to answer, and is only about loading the model.
pub(crate) fn loads_only(object: &Map<String, Value>, path: &str) -> bool {
    let is_empty = |name: &str| match object.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    };
    match path.trim_end_matches('/') {
        "/api/chat" => is_empty("messages"),
        "/api/generate" => is_empty("prompt"),
        _ => false,
    }
}

impl OllamaChatRequest {
    /// What to generate, and whether in a stream.
    pub(crate) fn task(self, defaults: SamplingFields) -> Result<(Task, bool), ApiError> {
        let stream = self.settings.stream;
        let messages = self
            .messages
            .filter(|messages| messages.as_array().is_some_and(|list| !list.is_empty()));
        let Some(messages) = messages else {
            return Ok((Task::Load(self.target.model), stream));
        };
        let tools = tools::resolve(self.tools, None, false)?;
        let turn = self
            .settings
            .turn(defaults, (self.target, self.queueing), messages, tools)?;
        Ok((Task::Chat(turn), stream))
    }
}

impl OllamaGenerateRequest {
    /// What to generate, and whether in a stream.
    pub(crate) fn task(self, defaults: SamplingFields) -> Result<(Task, bool), ApiError> {
        let stream = self.settings.stream;
        let Some(prompt) = self.prompt.filter(|prompt| !prompt.is_empty()) else {
            return Ok((Task::Load(self.target.model), stream));
        };
        let images = self.images.unwrap_or_default();
        let suffix = self.suffix.filter(|suffix| !suffix.is_empty());
        if !images.is_empty() && (self.raw || suffix.is_some()) {
            let message = "images need the chat template, which `raw` and `suffix` leave out";
            return Err(ApiError::unsupported("images", message));
        }
        let mut turns = Turns::default();
        self.system.iter().for_each(|system| turns.system(system));
        images.into_iter().for_each(|image| turns.image(image));
        if !self.raw {
            turns.user(&prompt);
        }
        let none = tools::resolve(None, None, false)?;
        let turn = self.settings.turn(
            defaults,
            (self.target, self.queueing),
            turns.messages(),
            none,
        )?;
        let Turn {
            conversation,
            sampling,
        } = turn;
        let sampling = SamplingRequest {
            names: &CHAT_NAMES[1..],
            ..sampling
        };
        let raw = |sampling| SamplingRequest {
            operation: "text_completion",
            ..sampling
        };
        let task = match suffix {
            Some(after) => {
                let gap = GapFields {
                    before: vec![prompt],
                    after,
                    field: "suffix",
                    ..GapFields::default()
                };
                Task::Gap(gap, raw(sampling))
            }
            None if self.raw => Task::Raw(prompt, raw(sampling)),
            None => Task::Chat(Turn {
                conversation,
                sampling,
            }),
        };
        Ok((task, stream))
    }
}

impl OllamaSettings {
    /// Names and values in `options` that no row has.
    pub(crate) fn unknown_options(&self) -> Option<&Map<String, Value>> {
        self.options.as_ref().map(|(_, unknown)| unknown)
    }

    fn turn(
        self,
        defaults: SamplingFields,
        (target, queueing): (Target, Queueing),
        messages: MessageList,
        tools: crate::text::answer::ToolChoice,
    ) -> Result<Turn, ApiError> {
        if self.top_logprobs.is_some() && !self.logprobs {
            return Err(ApiError::invalid(
                "top_logprobs",
                "`top_logprobs` needs `logprobs`: true",
            ));
        }
        let mut fields = SamplingFields {
            stream: self.stream,
            ..defaults
        };
        let mut max_tokens = None;
        if let Some((options, _)) = self.options {
            max_tokens = options
                .num_predict
                .and_then(|count| u32::try_from(count).ok())
                .filter(|count| *count > 0);
            fields = SamplingFields {
                temperature: options.temperature,
                top_p: options.top_p,
                top_k: options.top_k,
                min_p: options.min_p,
                repetition_penalty: options.repeat_penalty,
                presence_penalty: options.presence_penalty,
                frequency_penalty: options.frequency_penalty,
                seed: options.seed,
                stop: options.stop,
                samplers: options.samplers,
                ..fields
            };
        }
        fields.samplers = fields.samplers.with_window();
        let thinking = self.think.unwrap_or_default();
        let conversation = Conversation {
            messages,
            tools,
            kwargs: thinking.variables(self.template.chat_template_kwargs),
            add_generation_prompt: true,
            continue_final: false,
            parsing: Parsing::default(),
        };
        let sampling = SamplingRequest {
            target,
            fields,
            queueing,
            form: self.format.flatten().map(|spec| Structure {
                spec,
                field: "format",
            }),
            alternatives: self.logprobs.then(|| self.top_logprobs.unwrap_or(0)),
            max_tokens,
            echo: false,
            operation: "chat",
            names: CHAT_NAMES,
        };
        Ok(Turn {
            conversation,
            sampling,
        })
    }
}

/// A list of messages in Ollama's form; an empty one counts as none.
struct OllamaMessages;

impl Kind for OllamaMessages {
    type Value = MessageList;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<MessageList, ApiError> {
        let Value::Array(messages) = value else {
            return Err(wrong(at, "a list of messages", &value));
        };
        check_count(at, messages.len(), bounds)?;
        let mut images = Vec::new();
        let read = messages.into_iter().enumerate().map(|(index, value)| {
            chat_message(&format!("{at}[{index}]"), value, bounds, &mut images)
        });
        let messages = read.collect::<Result<_, _>>()?;
        Ok(MessageList::new(messages, images))
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let mut schema = Messages.schema(bounds);
        if let Some(map) = schema.as_object_mut() {
            map.remove("minItems");
        }
        schema
    }
}

/// A message in the form of chats, whose images go to those of the request. Those of its list come before its text.
fn chat_message(
    name: &str,
    mut value: Value,
    bounds: &Bounds,
    images: &mut Vec<GivenImage>,
) -> Result<Value, ApiError> {
    let (mut parts, mut notes) = (Vec::new(), Vec::new());
    if let Value::Object(map) = &mut value {
        for field in ["thinking", "tool_name"] {
            if let Some(value) = map
                .get(field)
                .filter(|value| !value.is_null() && !value.is_string())
            {
                return Err(wrong(&format!("{name}.{field}"), "a string", value));
            }
        }
        if let Some(tool) = map.remove("tool_name").filter(Value::is_string) {
            map.insert("name".to_owned(), tool);
        }
        let at = format!("{name}.images");
        let given = map.remove("images").filter(|given| !given.is_null());
        let given = given.map_or(Ok(Vec::new()), |given| {
            Base64Images.read(&at, given, bounds)
        })?;
        let role = map.get("role").and_then(Value::as_str).unwrap_or_default();
        let taken = Images::of_role(role, bounds.reads_images);
        for image in given {
            match taken {
                Images::Read => {
                    images.push(image);
                    parts.push(images::part());
                }
                Images::Named => notes.push(images::UNSEEN),
                Images::Refused => return Err(images::not_of_user(&at)),
            }
        }
    }
    let mut message = message(name, value, bounds, images)?;
    let content = &mut message["content"];
    match content.take() {
        Value::String(text) if !notes.is_empty() => {
            *content = format!("{}\n{text}", notes.join("\n")).into();
        }
        text if parts.is_empty() => *content = text,
        Value::Array(more) => *content = parts.into_iter().chain(more).collect(),
        text => {
            parts.push(json!({"type": "text", "text": text}));
            *content = parts.into();
        }
    }
    Ok(message)
}

/// A list of images in base64.
struct Base64Images;

impl Kind for Base64Images {
    type Value = Vec<GivenImage>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Vec<GivenImage>, ApiError> {
        let Value::Array(files) = value else {
            return Err(wrong(at, "a list of images in base64", &value));
        };
        let images = files.iter().enumerate().map(|(index, file)| {
            let at = format!("{at}[{index}]");
            let text = file.as_str();
            images::from_base64(
                &at,
                text.ok_or_else(|| wrong(&at, "an image in base64", file))?,
            )
        });
        images.collect()
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "array", "items": {"type": "string", "contentEncoding": "base64"}})
    }
}

/// `json`, a JSON schema, or an empty string for no form.
struct OllamaFormat;

impl Kind for OllamaFormat {
    type Value = Option<GrammarSpec>;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Self::Value, ApiError> {
        match value {
            Value::String(name) if name.is_empty() => Ok(None),
            Value::String(name) if name == "json" => Ok(Some(GrammarSpec::json_object())),
            Value::Object(_) => JsonSchema.read(at, value, bounds).map(|schema| {
                Some(GrammarSpec::Schema {
                    schema,
                    strict: false,
                })
            }),
            other => Err(wrong(at, "\"json\" or a JSON schema", &other)),
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"anyOf": [{"enum": ["json", ""]}, {"type": "object"}]})
    }
}

/// How long to think, in Ollama's words.
const THINK_EFFORTS: [&str; 3] = ["low", "medium", "high"];

/// True, false, or how long to think.
struct Think;

impl Kind for Think {
    type Value = Thinking;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Thinking, ApiError> {
        if let Value::Bool(on) = value {
            return Ok(Thinking {
                on: Some(on),
                effort: None,
            });
        }
        let effort = THINK_EFFORTS.iter().find(|effort| value == **effort);
        effort
            .map(|effort| Thinking::of_effort(Some(effort)))
            .ok_or_else(|| wrong(at, "true, false, low, medium or high", &value))
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"enum": [true, false, THINK_EFFORTS[0], THINK_EFFORTS[1], THINK_EFFORTS[2]]})
    }
}

#[cfg(test)]
mod tests;
