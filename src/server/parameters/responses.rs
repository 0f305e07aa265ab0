//! Requests of OpenAI's Responses API, and their translation to a [`Turn`].
//!
//! The input is a list of items: messages, calls and their results, thoughts. Items of an earlier response come before
//! it, from the store. Chat templates know functions only, so a custom tool is described as a function with one text,
//! and a member of a namespace as a function whose name begins with the namespace's; [`ToolNames`] leads back.

use crate::server::parameters::conversation::{Conversation, Turn};
use crate::server::parameters::fields::fields;
use crate::server::parameters::kind::{Bounds, Kind, Most, wrong};
use crate::server::parameters::kinds::images::{self, Images, Piece};
use crate::server::parameters::kinds::messages::{EFFORTS, check_count};
use crate::server::parameters::kinds::sampling::{Metadata, OneChoice, PredictedOrAll};
use crate::server::parameters::kinds::structured::JsonSchema;
use crate::server::parameters::kinds::{Choice, Count, Flag, Nested, Optional, Required, Text};
use crate::server::parameters::sampling::SamplingRequest;
use crate::server::parameters::structured::Structure;
use crate::server::parameters::table::{Queueing, SamplingFields, Target, TemplateFields};
use crate::server::parameters::thinking::Thinking;
use crate::server::parameters::tools::{
    self, TOOL_NAME_PATTERN, TOOLS_MAX, ToolList, check_function,
};
use crate::server::parameters::turns::Turns;
use crate::server::state::Seal;
use crate::server::wire::error::{ApiError, Names, shorten};
use crate::text::answer::Parsing;
use crate::text::{GrammarSpec, integers};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The engine's field names and those of the Responses API, where they differ.
pub(crate) const NAMES: Names = &[
    ("prompt", "input"),
    ("max_tokens", "max_output_tokens"),
    ("logprobs", "top_logprobs"),
];
/// Alternatives to report for each token, as in OpenAI's API.
const TOP_LOGPROBS_MAX: i64 = 20;

fields! {
    /// What a prompt is made of.
    ResponsesPrompt with template: TemplateFields {
        /// What to answer: a text, or a list of items.
        input: Option<Vec<(Value, Item)>> = Optional(Items),
        /// Instructions that come before the input.
        instructions: Option<String> = Optional(Text::ANY),
        /// The stored response that the input follows.
        previous_response_id: Option<String> = Optional(Text::ANY),
        /// Tools that the model may call. Those of types without a form here are left out and named in
        /// `x-ignored-tools`.
        tools: Option<ResponseTools> = Optional(ToolItems),
        /// Whether the model may, must or must not call a tool, or which one.
        tool_choice: Option<Value> = Optional(ItemToolChoice),
        /// False: at most one call.
        parallel_tool_calls: bool = Flag(true),
        /// How long the model should think, and whether its thoughts are reported as a summary.
        reasoning: Option<ReasoningFields> = Optional(Nested::<ReasoningFields>::new()),
        /// The form of the answer.
        text: Option<TextFields> = Optional(Nested::<TextFields>::new()),
    }
    refuses {
        conversation: "use `previous_response_id`",
        prompt: "write the prompt into `input`",
        reasoning_effort: "use `reasoning.effort`",
    }
}

fields! {
    /// `reasoning`.
    ReasoningFields {
        /// How long the model should think, and whether: `none` turns thinking off, any other value turns it on.
        effort: Option<&'static str> = Optional(Choice(EFFORTS)),
        /// Report thoughts as the summary of a reasoning item; otherwise they are its content.
        summary: Option<&'static str> = Optional(Choice(&["auto", "concise", "detailed"])),
    }
}

fields! {
    /// `text`.
    TextFields {
        /// What the answer is.
        format: Option<FormatFields> = Optional(Nested::<FormatFields>::new()),
    }
}

fields! {
    /// `text.format`.
    FormatFields {
        /// What the answer is.
        r#type: &'static str = Required(Choice(&["text", "json_object", "json_schema"])),
        /// The name of the schema.
        name: Option<String> = Optional(Text::ANY),
        /// The schema itself.
        schema: Option<Value> = Optional(JsonSchema),
        /// True: refuse a schema with keywords that cannot be enforced.
        strict: bool = Flag(false),
    }
}

fields! {
    /// `POST /v1/responses`.
    ResponsesRequest with target: Target, prompt: ResponsesPrompt, sampling: SamplingFields, queueing: Queueing {
        /// Tokens to generate at most; by default as many as fit into the context.
        max_output_tokens: Option<u32> = Optional(Count { min: 1, max: Most::Any })
            => max_tokens = Optional(Count { min: 1, max: Most::Any })
            => max_completion_tokens = Optional(Count { min: 1, max: Most::Any })
            => n_predict = PredictedOrAll,
        /// Keep the response, for `previous_response_id` and `GET /v1/responses/{id}`.
        store: bool = Flag(true),
        /// What to report beside the answer: `reasoning.encrypted_content`, `message.output_text.logprobs`.
        include: Option<Vec<String>> = Optional(Strings),
        /// Alternatives to report for each token.
        top_logprobs: Option<u32> = Optional(Count { min: 0, max: Most::Fixed(TOP_LOGPROBS_MAX) }),
        /// Returned with the response.
        metadata: Option<Map<String, Value>> = Optional(Metadata),
        /// `auto`: an input that is too long loses its beginning, as with `truncate_prompt_tokens`: -1.
        truncation: Option<&'static str> = Optional(Choice(&["auto", "disabled"])),
        /// One answer is generated here.
        #[expect(dead_code)]
        n: Option<()> = Optional(OneChoice) => n_cmpl = Optional(OneChoice),
        /// One answer is generated here.
        #[expect(dead_code)]
        best_of: Option<()> = Optional(OneChoice),
    }
    refuses {
        background: "wait for the response, or stream it",
        enable_response_messages: "/v1/chat/completions/render shows prompts",
        moderation: "no model judges requests or answers",
        previous_input_messages: "use `previous_response_id`, or send the items in `input`",
    }
    ignores {
        client_metadata: "nothing is recorded about clients",
        max_tool_calls: "no tools run here",
    }
}

fields! {
    /// `POST /v1/responses/input_tokens`.
    InputTokensRequest with target: Target, prompt: ResponsesPrompt {}
}

/// What a response repeats of its request, and what decides the form of its items.
pub(crate) struct Asked {
    /// Fields of the response object.
    pub(crate) echo: Map<String, Value>,
    pub(crate) names: ToolNames,
    /// Report thoughts as a summary.
    pub(crate) summary: bool,
    /// Report thoughts as an opaque text that comes back with the next request.
    pub(crate) sealed: bool,
    /// The items of the input, if the response is to be stored.
    pub(crate) input: Option<Vec<Value>>,
    pub(crate) previous: Option<String>,
    /// Names of tools and items that were left out.
    pub(crate) left_out: Vec<String>,
}

/// Items of earlier responses.
pub(crate) struct Earlier<'a> {
    /// The items before the input, from `previous_response_id`.
    pub(crate) items: Vec<Value>,
    /// The stored items that the input refers to, by their ids.
    pub(crate) referred: HashMap<String, Value>,
    pub(crate) seal: &'a Seal,
    /// The model reads images.
    pub(crate) reads_images: bool,
}

impl ResponsesPrompt {
    /// Places in the input and ids of the stored items that it refers to.
    pub(crate) fn references(&self) -> impl Iterator<Item = (usize, &str)> {
        let items = self.input.iter().flatten().enumerate();
        items.filter_map(|(place, (_, item))| match item {
            Item::Reference(id) => Some((place, id.as_str())),
            _ => None,
        })
    }
}

impl ResponsesRequest {
    /// The turn to answer, and what the response needs to know of the request.
    pub(crate) fn turn(self, earlier: &Earlier<'_>) -> Result<(Turn, Asked), ApiError> {
        let Self {
            target,
            prompt,
            sampling,
            mut queueing,
            max_output_tokens,
            store,
            include,
            truncation,
            ..
        } = self;
        if truncation == Some("auto") {
            queueing.truncate_prompt_tokens.get_or_insert(-1);
        }
        let includes = |name: &str| include.iter().flatten().any(|included| included == name);
        let alternatives = self
            .top_logprobs
            .or_else(|| includes("message.output_text.logprobs").then_some(0));
        let mut echo = prompt.echo();
        for (name, value) in [
            ("max_output_tokens", json!(max_output_tokens)),
            ("temperature", json!(sampling.temperature)),
            ("top_p", json!(sampling.top_p)),
            ("top_logprobs", json!(self.top_logprobs)),
            ("store", json!(store)),
            ("truncation", json!(truncation.unwrap_or("disabled"))),
            ("metadata", json!(self.metadata.unwrap_or_default())),
        ] {
            echo.insert(name.to_owned(), value);
        }
        let previous = prompt.previous_response_id.clone();
        let summary = prompt
            .reasoning
            .as_ref()
            .is_some_and(|reasoning| reasoning.summary.is_some());
        let input = store.then(|| {
            prompt
                .input
                .iter()
                .flatten()
                .map(|(value, _)| value.clone())
                .collect()
        });
        let (conversation, format, names, left_out) = prompt.conversation(earlier)?;
        let spec = format.map(FormatFields::spec).transpose()?.flatten();
        let sealed = includes("reasoning.encrypted_content");
        let asked = Asked {
            echo,
            names,
            summary,
            sealed,
            input,
            previous,
            left_out,
        };
        let sampling = SamplingRequest {
            target,
            fields: sampling,
            queueing,
            form: spec.map(|spec| Structure {
                spec,
                field: "text.format",
            }),
            alternatives,
            max_tokens: max_output_tokens,
            echo: false,
            operation: "chat",
            names: NAMES,
        };
        let turn = Turn {
            conversation,
            sampling,
        };
        Ok((turn, asked))
    }
}

impl ResponsesPrompt {
    /// The conversation, the form of the answer, the tools' names, and what was left out.
    pub(crate) fn conversation(
        self,
        earlier: &Earlier<'_>,
    ) -> Result<(Conversation, Option<FormatFields>, ToolNames, Vec<String>), ApiError> {
        let ResponseTools {
            list: ToolList {
                functions,
                mut left_out,
            },
            names,
            ..
        } = self.tools.unwrap_or_default();
        let mut turns = Turns::default();
        self.instructions.iter().for_each(|text| turns.system(text));
        for value in &earlier.items {
            // They were checked when they were stored.
            if let Ok(item) = read_item("input", value, earlier.reads_images) {
                item.add(&mut turns, &names, earlier.seal);
            }
        }
        for (index, (_, item)) in self.input.into_iter().flatten().enumerate() {
            match item {
                Item::Reference(id) => {
                    let name = format!("input[{index}]");
                    let found = earlier.referred.get(&id).unwrap_or(&Value::Null);
                    let item = read_item(&name, found, earlier.reads_images)?;
                    item.add(&mut turns, &names, earlier.seal);
                }
                Item::Unknown(kind) => left_out.push(kind),
                item => item.add(&mut turns, &names, earlier.seal),
            }
        }
        // Clients probe with an empty input.
        if turns.is_empty() {
            turns.user("");
        }
        let choice = self.tool_choice.map(|choice| chat_choice(choice, &names));
        let tools = tools::resolve(Some(functions), choice, !self.parallel_tool_calls)?;
        let effort = self.reasoning.and_then(|reasoning| reasoning.effort);
        let kwargs = Thinking::of_effort(effort).variables(self.template.chat_template_kwargs);
        let messages = turns.messages();
        let conversation = Conversation {
            messages,
            tools,
            kwargs,
            add_generation_prompt: true,
            continue_final: false,
            parsing: Parsing::default(),
        };
        Ok((
            conversation,
            self.text.and_then(|text| text.format),
            names,
            left_out,
        ))
    }

    /// Fields of the response object.
    fn echo(&self) -> Map<String, Value> {
        let format = self.text.as_ref().and_then(|text| text.format.as_ref());
        let format = format.map_or_else(|| json!({"type": "text"}), FormatFields::echo);
        let reasoning = self.reasoning.as_ref();
        let echo = json!({
            "instructions": self.instructions,
            "previous_response_id": self.previous_response_id,
            "tools": self.tools.as_ref().map_or(&[][..], |tools| &tools.given),
            "tool_choice": self.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning": {
                "effort": reasoning.and_then(|reasoning| reasoning.effort),
                "summary": reasoning.and_then(|reasoning| reasoning.summary),
            },
            "text": {"format": format},
        });
        echo.as_object().cloned().unwrap_or_default()
    }
}

impl FormatFields {
    fn spec(self) -> Result<Option<GrammarSpec>, ApiError> {
        match (self.r#type, self.schema) {
            ("text", _) => Ok(None),
            ("json_object", _) => Ok(Some(GrammarSpec::json_object())),
            (_, None) => Err(ApiError::missing("text.format.schema")),
            (_, Some(schema)) => Ok(Some(GrammarSpec::Schema {
                schema,
                strict: self.strict,
            })),
        }
    }

    fn echo(&self) -> Value {
        if self.r#type != "json_schema" {
            return json!({"type": self.r#type});
        }
        json!({"type": self.r#type, "name": self.name, "schema": self.schema, "strict": self.strict})
    }
}

/// `tool_choice` in the form of a chat request.
fn chat_choice(mut choice: Value, names: &ToolNames) -> Value {
    if choice["type"] == "custom" {
        choice["type"] = "function".into();
    }
    if let (Some(name), Some(namespace)) = (choice["name"].as_str(), choice["namespace"].as_str()) {
        choice["name"] = names.shown(Some(namespace), name).into();
    }
    choice
}

/// A tool as the client knows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Called {
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    /// Its input is a text, not an object of arguments.
    pub(crate) is_custom: bool,
}

/// The tools of a request by the names that the model sees.
#[derive(Clone, Debug, Default)]
pub(crate) struct ToolNames(HashMap<String, Called>);

impl ToolNames {
    /// The tool that the model calls by this name.
    pub(crate) fn called(&self, name: &str) -> Called {
        self.0.get(name).cloned().unwrap_or_else(|| Called {
            name: name.to_owned(),
            namespace: None,
            is_custom: false,
        })
    }

    /// The name that the model sees.
    fn shown(&self, namespace: Option<&str>, name: &str) -> String {
        let joined =
            namespace.map(|namespace| format!("{}__{name}", namespace.trim_end_matches('_')));
        joined.unwrap_or_else(|| name.to_owned())
    }
}

/// The tools of a request.
#[derive(Default)]
pub(crate) struct ResponseTools {
    /// As the client sent them.
    given: Vec<Value>,
    list: ToolList,
    names: ToolNames,
}

impl ResponseTools {
    /// Adds a tool; one of a type that has no form here is left out.
    fn add(&mut self, at: &str, tool: &Value, namespace: Option<&str>) -> Result<(), ApiError> {
        let kind = kind_of(at, tool)?;
        let mut function = match kind {
            "function" => {
                json!({"name": tool["name"], "description": tool["description"], "parameters": tool["parameters"]})
            }
            "custom" => custom(tool),
            "namespace" if namespace.is_none() => {
                let name = tool["name"]
                    .as_str()
                    .ok_or_else(|| wrong(&format!("{at}.name"), "a string", &tool["name"]))?;
                let members = tools::list(&format!("{at}.tools"), tool["tools"].clone())?;
                for (index, member) in members.iter().enumerate() {
                    self.add(&format!("{at}.tools[{index}]"), member, Some(name))?;
                }
                return Ok(());
            }
            kind => {
                self.list.left_out.push(kind.to_owned());
                return Ok(());
            }
        };
        let name = tool["name"]
            .as_str()
            .ok_or_else(|| wrong(&format!("{at}.name"), "a string", &tool["name"]))?;
        let shown = self.names.shown(namespace, name);
        function["name"] = shown.as_str().into();
        if !tool["strict"].is_null() {
            function["strict"] = tool["strict"].clone();
        }
        check_function(at, &function)?;
        if let Some(map) = function.as_object_mut() {
            map.retain(|_, value| !value.is_null());
        }
        let called = Called {
            name: name.to_owned(),
            namespace: namespace.map(str::to_owned),
            is_custom: kind == "custom",
        };
        self.names.0.insert(shown, called);
        self.list
            .functions
            .push(json!({"type": "function", "function": function}));
        Ok(())
    }
}

/// A custom tool as a function. The grammar of its input is described, not enforced.
fn custom(tool: &Value) -> Value {
    let format = &tool["format"];
    let mut description = tool["description"].as_str().unwrap_or_default().to_owned();
    if let Some(definition) = format["definition"].as_str() {
        let syntax = format["syntax"].as_str().unwrap_or("formal");
        description += &format!("\nThe input must match this {syntax} grammar:\n{definition}");
    }
    let parameters = json!({
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": false,
    });
    json!({"description": description, "parameters": parameters})
}

/// A list of tools.
struct ToolItems;

impl Kind for ToolItems {
    type Value = ResponseTools;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<ResponseTools, ApiError> {
        let mut tools = ResponseTools {
            given: tools::list(at, value)?,
            ..ResponseTools::default()
        };
        for (index, tool) in tools.given.clone().iter().enumerate() {
            tools.add(&format!("{at}[{index}]"), tool, None)?;
        }
        if tools.list.functions.len() > TOOLS_MAX {
            return Err(ApiError::invalid(
                at,
                format!("`{at}` has more than {TOOLS_MAX} functions"),
            ));
        }
        Ok(tools)
    }

    fn schema(&self, _: &Bounds) -> Value {
        let tool = json!({
            "title": "ToolItem",
            "type": "object",
            "required": ["type", "name"],
            "properties": {
                "type": {"const": "function"},
                "name": {"type": "string", "pattern": TOOL_NAME_PATTERN},
                "description": {"type": ["string", "null"]},
                "parameters": {"type": ["object", "null"], "description": "The arguments, as a JSON schema."},
            },
        });
        let other = json!({
            "title": "OtherToolItem",
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"type": "string", "not": {"const": "function"}}},
        });
        json!({"type": "array", "maxItems": TOOLS_MAX, "items": {"anyOf": [tool, other]}})
    }
}

/// Which tool is called; it is checked with the tools.
struct ItemToolChoice;

impl Kind for ItemToolChoice {
    type Value = Value;

    fn read(&self, _: &str, value: Value, _: &Bounds) -> Result<Value, ApiError> {
        Ok(value)
    }

    fn schema(&self, _: &Bounds) -> Value {
        let properties =
            json!({"type": {"enum": ["function", "custom"]}, "name": {"type": "string"}});
        let named =
            json!({"type": "object", "required": ["type", "name"], "properties": properties});
        json!({"title": "ItemToolChoice", "anyOf": [{"enum": ["none", "auto", "required"]}, named]})
    }
}

/// A list of strings.
struct Strings;

impl Kind for Strings {
    type Value = Vec<String>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Vec<String>, ApiError> {
        let strings = value.as_array().map(|items| {
            items
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect()
        });
        strings
            .flatten()
            .ok_or_else(|| wrong(at, "a list of strings", &value))
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "array", "items": {"type": "string"}})
    }
}

/// One item, checked.
pub(crate) enum Item {
    Message {
        role: Role,
        content: Vec<Piece>,
    },
    /// `is_custom`: the arguments are a text.
    Call {
        id: String,
        namespace: Option<String>,
        name: String,
        arguments: String,
        is_custom: bool,
    },
    Result {
        id: String,
        content: Vec<Piece>,
    },
    /// A thought, in the clear or sealed.
    Reasoning {
        text: String,
        sealed: Option<String>,
    },
    Reference(String),
    /// Something of another server's tools.
    Unknown(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    System,
    User,
    Assistant,
}

impl Item {
    fn add(self, turns: &mut Turns, names: &ToolNames, seal: &Seal) {
        match self {
            Self::Message { role, content } => {
                for piece in content {
                    match (piece, role) {
                        (Piece::Text(text), Role::System) => turns.system(&text),
                        (Piece::Text(text), Role::User) => turns.user(&text),
                        (Piece::Text(text), Role::Assistant) => turns.assistant(&text),
                        (Piece::Image(image), _) => turns.image(image),
                    }
                }
            }
            Self::Call {
                id,
                namespace,
                name,
                arguments,
                is_custom,
            } => {
                let arguments = match integers::parse_object(&arguments) {
                    _ if is_custom => json!({"input": arguments}),
                    Some(object) => object,
                    None => arguments.into(),
                };
                turns.call(&id, &names.shown(namespace.as_deref(), &name), &arguments);
            }
            Self::Result { id, content } => turns.result(&id, content),
            Self::Reasoning { text, sealed } => {
                let text = match sealed {
                    Some(sealed) if text.is_empty() => seal.open(&sealed).unwrap_or(text),
                    _ => text,
                };
                turns.reasoning(&text);
            }
            Self::Reference(_) | Self::Unknown(_) => {}
        }
    }
}

/// A text, or a list of items. Each item gets an id if it has none, by which it can be listed.
struct Items;

impl Kind for Items {
    type Value = Vec<(Value, Item)>;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Self::Value, ApiError> {
        let items = match value {
            Value::Array(items) => items,
            Value::String(text) => {
                let message = json!({"type": "message", "role": "user",
                    "content": [{"type": "input_text", "text": text}]});
                return Ok(vec![(
                    message,
                    Item::Message {
                        role: Role::User,
                        content: vec![Piece::Text(text)],
                    },
                )]);
            }
            value => return Err(wrong(at, "a string or a list of items", &value)),
        };
        check_count(at, items.len(), bounds)?;
        let items = items.into_iter().enumerate().map(|(index, mut value)| {
            let item = read_item(&format!("{at}[{index}]"), &value, bounds.reads_images)?;
            if let (Item::Message { .. }, Value::Object(map)) = (&item, &mut value) {
                map.entry("type").or_insert_with(|| "message".into());
            }
            Ok((value, item))
        });
        items.collect()
    }

    fn schema(&self, _: &Bounds) -> Value {
        let string = json!({"type": "string"});
        let part = json!({"type": {"enum": ["input_text", "output_text", "text"]}, "text": string});
        let part = json!({"title": "ItemPart", "type": "object", "required": ["type", "text"], "properties": part});
        let shown = content_schema(&part);
        let message = json!({
            "title": "MessageItem",
            "examples": [{"role": "user", "content": "Hello!"}],
            "type": "object",
            "required": ["role", "content"],
            "properties": {
                "type": {"enum": ["message", null]},
                "role": {"enum": ["user", "assistant", "system", "developer"]},
                "content": shown,
            },
        });
        let item = |title: &str, kind: &str, required: Value, mut properties: Value| {
            properties["type"] = json!({"const": kind});
            json!({"title": title, "type": "object", "required": required, "properties": properties})
        };
        let call = json!({"call_id": string, "name": string, "arguments": string});
        let call = item(
            "CallItem",
            "function_call",
            json!(["type", "call_id", "name", "arguments"]),
            call,
        );
        let result = json!({"call_id": string, "output": shown});
        let result = item(
            "ResultItem",
            "function_call_output",
            json!(["type", "call_id", "output"]),
            result,
        );
        let reasoning = json!({"encrypted_content": {"type": ["string", "null"]}});
        let reasoning = item("ReasoningItem", "reasoning", json!(["type"]), reasoning);
        let known = [
            "message",
            "function_call",
            "function_call_output",
            "reasoning",
        ];
        let other = json!({"type": {"type": "string", "not": {"enum": known}}});
        let other = json!({"title": "OtherItem", "type": "object", "required": ["type"], "properties": other});
        let item =
            json!({"title": "InputItem", "anyOf": [message, call, result, reasoning, other]});
        json!({"anyOf": [string, {"type": "array", "items": item}]})
    }
}

/// The content of a message or a result, of parts of text and images.
fn content_schema(text: &Value) -> Value {
    let image = json!({
        "type": {"const": "input_image"},
        "image_url": {"type": "string"},
        "detail": {"type": ["string", "null"]},
    });
    let image = json!({"type": "object", "required": ["type", "image_url"], "properties": image});
    let parts = json!({"type": "array", "items": {"anyOf": [text, image]}});
    json!({"anyOf": [{"type": "string"}, parts]})
}

fn kind_of<'a>(at: &str, value: &'a Value) -> Result<&'a str, ApiError> {
    match &value["type"] {
        Value::String(kind) => Ok(kind),
        _ if !value.is_object() => Err(wrong(at, "an object", value)),
        Value::Null => Err(ApiError::missing(format!("{at}.type"))),
        other => Err(wrong(&format!("{at}.type"), "a string", other)),
    }
}

/// Reads an item for a model that reads images, or text only.
fn read_item(at: &str, value: &Value, reads_images: bool) -> Result<Item, ApiError> {
    let is_message = value.is_object() && value["type"].is_null() && !value["role"].is_null();
    let kind = if is_message {
        "message"
    } else {
        kind_of(at, value)?
    };
    match kind {
        "message" => {
            let role = role_of(at, value)?;
            let images = match role {
                Role::User => Images::Read,
                _ => Images::Refused,
            };
            let content = pieces(&format!("{at}.content"), &value["content"], images)?;
            Ok(Item::Message { role, content })
        }
        "function_call" => call_of(at, value, "arguments", false),
        "custom_tool_call" => call_of(at, value, "input", true),
        "function_call_output" | "custom_tool_call_output" => {
            let images = Images::of_role("tool", reads_images);
            Ok(Item::Result {
                id: text_of(at, value, "call_id")?,
                content: pieces(&format!("{at}.output"), &value["output"], images)?,
            })
        }
        "reasoning" => reasoning_of(at, value),
        "item_reference" => text_of(at, value, "id").map(Item::Reference),
        kind => Ok(Item::Unknown(kind.to_owned())),
    }
}

/// A field of an item that has to be a text.
fn text_of(at: &str, item: &Value, field: &str) -> Result<String, ApiError> {
    match &item[field] {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Err(ApiError::missing(format!("{at}.{field}"))),
        other => Err(wrong(&format!("{at}.{field}"), "a string", other)),
    }
}

fn role_of(at: &str, item: &Value) -> Result<Role, ApiError> {
    match text_of(at, item, "role")?.as_str() {
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "system" | "developer" => Ok(Role::System),
        _ => Err(wrong(
            &format!("{at}.role"),
            "user, assistant, system or developer",
            &item["role"],
        )),
    }
}

/// A call of a function, or of a custom tool, whose arguments are free text.
fn call_of(at: &str, item: &Value, arguments: &str, is_custom: bool) -> Result<Item, ApiError> {
    Ok(Item::Call {
        arguments: text_of(at, item, arguments)?,
        id: text_of(at, item, "call_id")?,
        namespace: item["namespace"].as_str().map(str::to_owned),
        name: text_of(at, item, "name")?,
        is_custom,
    })
}

/// A thought: its own text, or else its summary.
fn reasoning_of(at: &str, item: &Value) -> Result<Item, ApiError> {
    let sealed = match &item["encrypted_content"] {
        Value::Null => None,
        Value::String(sealed) => Some(sealed.clone()),
        other => {
            return Err(wrong(&format!("{at}.encrypted_content"), "a string", other));
        }
    };
    let [content, summary] = ["content", "summary"].map(|field| {
        let parts = item[field].as_array().into_iter().flatten();
        parts
            .filter_map(|part| part["text"].as_str())
            .collect::<Vec<_>>()
            .join("\n")
    });
    Ok(Item::Reasoning {
        text: if content.is_empty() { summary } else { content },
        sealed,
    })
}

/// The pieces of a message or a result: at least one.
fn pieces(at: &str, content: &Value, images: Images) -> Result<Vec<Piece>, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(vec![Piece::Text(text.clone())]),
        Value::Array(parts) => parts,
        Value::Null => return Err(ApiError::missing(at)),
        other => return Err(wrong(at, "a string or a list of parts", other)),
    };
    let mut pieces = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let at = format!("{at}[{index}]");
        match (kind_of(&at, part)?, images) {
            ("input_image", Images::Read) => {
                pieces.push(Piece::Image(images::from_part(&at, part)?));
            }
            ("input_image", Images::Named) => {
                images::url_of(&at, part)?;
                Piece::add_text(&mut pieces, images::UNSEEN);
            }
            ("input_image", Images::Refused) => return Err(images::not_of_user(&at)),
            _ => Piece::add_text(&mut pieces, part_text(&at, part)?),
        }
    }
    if pieces.is_empty() {
        pieces.push(Piece::Text(String::new()));
    }
    Ok(pieces)
}

/// The text of a part.
fn part_text<'a>(at: &str, part: &'a Value) -> Result<&'a str, ApiError> {
    let field = match kind_of(at, part)? {
        "input_text" | "output_text" | "text" | "summary_text" => "text",
        "refusal" => "refusal",
        kind => {
            let message = format!("content parts of type {} are not supported", shorten(kind));
            return Err(ApiError::unsupported(at, message));
        }
    };
    part[field]
        .as_str()
        .ok_or_else(|| wrong(&format!("{at}.{field}"), "a string", &part[field]))
}
