//! Requests of Anthropic's Messages API, and their translation to a [`Turn`].
//!
//! Content blocks become turns of a chat; blocks that carry no text for the model (a redacted thought, a call of a tool
//! that runs at Anthropic) are left out. Thinking is off unless the request asks for it, as in Anthropic's API.

use crate::server::images::GivenImage;
use crate::server::parameters::conversation::{Conversation, Turn};
use crate::server::parameters::fields::fields;
use crate::server::parameters::kind::{Bounds, Kind, Most, wrong};
use crate::server::parameters::kinds::images::{self, Piece};
use crate::server::parameters::kinds::messages::{EFFORTS, check_count};
use crate::server::parameters::kinds::sampling::{OneChoice, StopStrings};
use crate::server::parameters::kinds::structured::JsonSchema;
use crate::server::parameters::kinds::{Choice, Count, Nested, Optional, Required};
use crate::server::parameters::sampling::SamplingRequest;
use crate::server::parameters::structured::Structure;
use crate::server::parameters::table::{Queueing, SamplingFields, Target, TemplateFields};
use crate::server::parameters::thinking::Thinking;
use crate::server::parameters::tools::{
    self, TOOL_NAME_PATTERN, TOOLS_MAX, ToolList, check_function,
};
use crate::server::parameters::turns::Turns;
use crate::server::wire::error::{ApiError, Names, shorten};
use crate::text::GrammarSpec;
use crate::text::answer::Parsing;
use serde_json::{Value, json};

/// The engine's field names and Anthropic's, where they differ.
const NAMES: Names = &[("prompt", "messages"), ("stop", "stop_sequences")];
/// The first system block of Claude Code names its build and session. It is for Anthropic's accounts, and would differ
/// at the beginning of every prompt, so that no prefix is ever found in the cache.
const BILLING: &str = "x-anthropic-billing-header:";

fields! {
    /// What a prompt is made of.
    MessagesPrompt with template: TemplateFields {
        /// The conversation so far.
        messages: BlockTurns = Required(BlockMessages),
        /// Instructions: a text, or text blocks.
        system: Option<Vec<String>> = Optional(System),
        /// Functions that the model may call. Tools of other types are left out and named in `x-ignored-tools`.
        tools: Option<ToolList> = Optional(BlockTools),
        /// Whether the model may, must or must not call a function, or which one.
        tool_choice: Option<Value> = Optional(BlockToolChoice),
        /// Whether the model thinks before it answers; off by default.
        thinking: Option<bool> = Optional(ThinkingSwitch),
        /// The form of the answer, and how long the model should think.
        output_config: Option<OutputConfig> = Optional(Nested::<OutputConfig>::new()),
        /// An older name of `output_config.format`.
        output_format: Option<OutputFormat> = Optional(Nested::<OutputFormat>::new()),
    }
    refuses {
        container: "tools run where the client runs",
        mcp_servers: "connect to them in the client, and offer their tools among `tools`",
        reasoning_effort: "use `output_config.effort`",
    }
    ignores {
        betas: "nothing depends on them",
        cache_control: "the prefix cache finds what prompts share",
        context_management: "the client decides what it sends",
        diagnostics: "nothing is recorded about requests",
        inference_geo: "answers are computed here",
        speed: "there is one speed",
        user_profile_id: "nothing is recorded about users",
        workspace_id: "nothing is recorded about users",
    }
}

fields! {
    /// `output_config`.
    OutputConfig {
        /// How long the model should think; a variable of the chat template.
        effort: Option<&'static str> = Optional(Choice(EFFORTS)),
        /// The form of the answer.
        format: Option<OutputFormat> = Optional(Nested::<OutputFormat>::new()),
    }
}

fields! {
    /// `output_config.format`.
    OutputFormat {
        /// What the answer is.
        #[expect(dead_code)]
        r#type: &'static str = Required(Choice(&["json_schema"])),
        /// The JSON schema of the answer.
        schema: Value = Required(JsonSchema),
    }
}

fields! {
    /// `POST /v1/messages`.
    MessagesRequest with target: Target, prompt: MessagesPrompt, sampling: SamplingFields, queueing: Queueing {
        /// Tokens to generate at most; as many as fit into the context if that is less.
        max_tokens: u32 = Required(Count { min: 1, max: Most::Any }),
        /// Strings that end the answer.
        stop_sequences: Option<Vec<String>> = Optional(StopStrings),
        /// One answer is generated here.
        #[expect(dead_code)]
        n: Option<()> = Optional(OneChoice) => n_cmpl = Optional(OneChoice),
        /// One answer is generated here.
        #[expect(dead_code)]
        best_of: Option<()> = Optional(OneChoice),
    }
    refuses {
        max_completion_tokens: "use `max_tokens`",
        n_predict: "use `max_tokens`",
    }
}

fields! {
    /// `POST /v1/messages/count_tokens`.
    CountTokensRequest with target: Target, prompt: MessagesPrompt {}
}

impl MessagesRequest {
    /// The turn to answer, and the names of tools that were left out.
    pub(crate) fn turn(self) -> Result<(Turn, Vec<String>), ApiError> {
        let Self {
            target,
            prompt,
            mut sampling,
            queueing,
            max_tokens,
            stop_sequences,
            ..
        } = self;
        sampling.stop = stop_sequences.or(sampling.stop);
        let (conversation, format, left_out) = prompt.conversation()?;
        let form = format.map(|OutputFormat { schema, .. }| Structure {
            spec: GrammarSpec::Schema {
                schema,
                strict: true,
            },
            field: "output_config.format",
        });
        let sampling = SamplingRequest {
            target,
            fields: sampling,
            queueing,
            form,
            alternatives: None,
            max_tokens: Some(max_tokens),
            echo: false,
            operation: "chat",
            names: NAMES,
        };
        let turn = Turn {
            conversation,
            sampling,
        };
        Ok((turn, left_out))
    }
}

impl MessagesPrompt {
    /// The conversation, the form of the answer, and the names of tools that were left out.
    pub(crate) fn conversation(
        self,
    ) -> Result<(Conversation, Option<OutputFormat>, Vec<String>), ApiError> {
        let mut turns = Turns::default();
        let system = self.system.unwrap_or_default();
        system
            .iter()
            .filter(|text| !text.starts_with(BILLING))
            .for_each(|text| turns.system(text));
        self.messages
            .0
            .into_iter()
            .for_each(|block| block.add(&mut turns));
        let ToolList {
            functions,
            left_out,
        } = self.tools.unwrap_or_default();
        let single = self
            .tool_choice
            .as_ref()
            .is_some_and(|choice| choice["disable_parallel_tool_use"] == true);
        let tools = tools::resolve(
            Some(functions),
            self.tool_choice.as_ref().map(chat_choice),
            single,
        )?;
        let (effort, format) = self
            .output_config
            .map_or((None, None), |config| (config.effort, config.format));
        // An effort also counts for answers without thoughts, so it does not turn thinking on in this API.
        let thinking = Thinking {
            on: Some(self.thinking.unwrap_or(false)),
            effort,
        };
        let continue_final = turns.ends_with_text();
        let conversation = Conversation {
            messages: turns.messages(),
            tools,
            kwargs: thinking.variables(self.template.chat_template_kwargs),
            add_generation_prompt: !continue_final,
            continue_final,
            parsing: Parsing::default(),
        };
        Ok((conversation, format.or(self.output_format), left_out))
    }
}

/// `tool_choice` in the form of a chat request.
fn chat_choice(choice: &Value) -> Value {
    match choice["type"].as_str() {
        Some("any") => "required".into(),
        Some("tool") => json!({"type": "function", "function": {"name": choice["name"]}}),
        _ => choice["type"].clone(),
    }
}

/// The blocks of a conversation, in order.
pub(crate) struct BlockTurns(Vec<Block>);

/// One block, checked.
enum Block {
    System(String),
    User(String),
    Image(GivenImage),
    Assistant(String),
    Thinking(String),
    Call {
        id: String,
        name: String,
        input: Value,
    },
    Result {
        id: String,
        content: Vec<Piece>,
    },
}

impl Block {
    fn add(self, turns: &mut Turns) {
        match self {
            Self::System(text) => turns.system(&text),
            Self::User(text) => turns.user(&text),
            Self::Image(image) => turns.image(image),
            Self::Assistant(text) => turns.assistant(&text),
            Self::Thinking(text) => turns.reasoning(&text),
            Self::Call { id, name, input } => turns.call(&id, &name, &input),
            Self::Result { id, content } => turns.result(&id, content),
        }
    }
}

/// A list of messages, each a text or a list of blocks.
struct BlockMessages;

impl Kind for BlockMessages {
    type Value = BlockTurns;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<BlockTurns, ApiError> {
        let messages = match value {
            Value::Array(messages) if !messages.is_empty() => messages,
            value => return Err(wrong(at, "a list of at least one message", &value)),
        };
        check_count(at, messages.len(), bounds)?;
        let mut blocks = Vec::new();
        for (index, message) in messages.into_iter().enumerate() {
            let at = format!("{at}[{index}]");
            read_message(&at, &message, bounds.reads_images, &mut blocks)?;
        }
        Ok(BlockTurns(blocks))
    }

    fn schema(&self, _: &Bounds) -> Value {
        let string = json!({"type": "string"});
        let block = |kind: &str, required: Value, properties: Value| {
            let mut all = json!({"type": {"const": kind}});
            all.as_object_mut()
                .into_iter()
                .for_each(|all| all.extend(properties.as_object().cloned().unwrap_or_default()));
            json!({"type": "object", "required": required, "properties": all})
        };
        let text = block("text", json!(["type", "text"]), json!({"text": string}));
        let thinking = json!({"thinking": string, "signature": {"type": ["string", "null"]}});
        let thinking = block("thinking", json!(["type", "thinking"]), thinking);
        let call = json!({"id": string, "name": string, "input": {"type": "object"}});
        let call = block("tool_use", json!(["type", "id", "name", "input"]), call);
        let source = json!({
            "type": "object",
            "required": ["type", "data"],
            "properties": {"type": {"const": "base64"}, "media_type": {"type": ["string", "null"]}, "data": string},
        });
        let image = block(
            "image",
            json!(["type", "source"]),
            json!({"source": source}),
        );
        let shown = json!({"type": "array", "items": {"anyOf": [text, image]}});
        let shown = json!({"anyOf": [string, shown, {"type": "null"}]});
        let result = json!({"tool_use_id": string, "content": shown, "is_error": {"type": ["boolean", "null"]}});
        let result = block("tool_result", json!(["type", "tool_use_id"]), result);
        let block =
            json!({"title": "ContentBlock", "anyOf": [text, thinking, call, result, image]});
        let content = json!({"anyOf": [string, {"type": "array", "items": block}]});
        let message = json!({
            "title": "BlockMessage",
            "examples": [{"role": "user", "content": "Hello!"}],
            "type": "object",
            "required": ["role", "content"],
            "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": content},
        });
        json!({"type": "array", "minItems": 1, "items": message})
    }
}

/// Reads a message for a model that reads images, or text only.
fn read_message(
    name: &str,
    message: &Value,
    reads_images: bool,
    blocks: &mut Vec<Block>,
) -> Result<(), ApiError> {
    let role = match message["role"].as_str() {
        Some(role @ ("user" | "assistant" | "system")) => role,
        _ if message.is_object() && message["role"].is_null() => {
            return Err(ApiError::missing(format!("{name}.role")));
        }
        _ if message.is_object() => {
            return Err(wrong(
                &format!("{name}.role"),
                "user, assistant or system",
                &message["role"],
            ));
        }
        _ => return Err(wrong(name, "an object", message)),
    };
    let of_role = |text: &str| match role {
        "user" => Block::User(text.to_owned()),
        "assistant" => Block::Assistant(text.to_owned()),
        _ => Block::System(text.to_owned()),
    };
    let at = format!("{name}.content");
    match &message["content"] {
        Value::Null => Err(ApiError::missing(at)),
        Value::String(text) => {
            blocks.push(of_role(text));
            Ok(())
        }
        Value::Array(items) => {
            let mut rest = Vec::new();
            for (index, item) in items.iter().enumerate() {
                for block in read_block(&format!("{at}[{index}]"), item, reads_images, of_role)? {
                    match block {
                        // Results follow their calls directly, as models know it. Clients may send text before them.
                        Block::Result { .. } => blocks.push(block),
                        Block::Image(image) if role != "user" => {
                            return Err(images::not_of_user(&image.name));
                        }
                        _ => rest.push(block),
                    }
                }
            }
            blocks.append(&mut rest);
            Ok(())
        }
        other => Err(wrong(&at, "a string or a list of blocks", other)),
    }
}

/// What a block has for the model.
fn read_block(
    name: &str,
    block: &Value,
    reads_images: bool,
    of_role: impl Fn(&str) -> Block,
) -> Result<Vec<Block>, ApiError> {
    let text_of = |field: &str| match &block[field] {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Err(ApiError::missing(format!("{name}.{field}"))),
        other => Err(wrong(&format!("{name}.{field}"), "a string", other)),
    };
    match kind_of(name, block)? {
        "text" => Ok(vec![of_role(&text_of("text")?)]),
        "image" => images::from_block(name, block).map(|image| vec![Block::Image(image)]),
        "thinking" => {
            if !matches!(block["signature"], Value::Null | Value::String(_)) {
                return Err(wrong(
                    &format!("{name}.signature"),
                    "a string",
                    &block["signature"],
                ));
            }
            Ok(vec![Block::Thinking(text_of("thinking")?)])
        }
        "tool_use" => {
            let input = match &block["input"] {
                Value::Null => return Err(ApiError::missing(format!("{name}.input"))),
                Value::Object(_) => block["input"].clone(),
                other => return Err(wrong(&format!("{name}.input"), "an object", other)),
            };
            Ok(vec![Block::Call {
                id: text_of("id")?,
                name: text_of("name")?,
                input,
            }])
        }
        "tool_result" => Ok(vec![Block::Result {
            content: result_content(name, block, reads_images)?,
            id: text_of("tool_use_id")?,
        }]),
        "document" | "search_result" => {
            let content = document_content(name, block, reads_images)?.into_iter();
            let blocks = content.map(|piece| match piece {
                Piece::Text(text) => of_role(&text),
                Piece::Image(image) => Block::Image(image),
            });
            Ok(blocks.collect())
        }
        "redacted_thinking" | "server_tool_use" => Ok(Vec::new()),
        // What a tool at Anthropic found, which is encrypted or a list of links.
        kind if kind.ends_with("_tool_result") => Ok(Vec::new()),
        kind => Err(unsupported(name, kind)),
    }
}

fn kind_of<'a>(name: &str, block: &'a Value) -> Result<&'a str, ApiError> {
    match &block["type"] {
        Value::String(kind) => Ok(kind),
        _ if !block.is_object() => Err(wrong(name, "a block", block)),
        Value::Null => Err(ApiError::missing(format!("{name}.type"))),
        other => Err(wrong(&format!("{name}.type"), "a string", other)),
    }
}

fn unsupported(name: &str, kind: &str) -> ApiError {
    ApiError::unsupported(
        name,
        format!("content blocks of type {} are not supported", shorten(kind)),
    )
}

/// The content of a tool's result.
fn result_content(name: &str, block: &Value, reads_images: bool) -> Result<Vec<Piece>, ApiError> {
    let is_error = match &block["is_error"] {
        Value::Null => false,
        Value::Bool(is_error) => *is_error,
        other => return Err(wrong(&format!("{name}.is_error"), "true or false", other)),
    };
    let (at, mut content) = (format!("{name}.content"), Vec::new());
    add_content(&at, &block["content"], reads_images, &mut content)?;
    if is_error {
        mark_error(&mut content);
    }
    Ok(content)
}

/// The content of a document, or of what a search found: at least a text.
fn document_content(name: &str, block: &Value, reads_images: bool) -> Result<Vec<Piece>, ApiError> {
    let mut content = Vec::new();
    add_document(name, block, reads_images, &mut content)?;
    if content.is_empty() {
        content.push(Piece::Text(String::new()));
    }
    Ok(content)
}

/// Adds the content of a tool's result or a document: its text and, for a model that reads them, its images.
fn add_content(
    name: &str,
    content: &Value,
    reads_images: bool,
    pieces: &mut Vec<Piece>,
) -> Result<(), ApiError> {
    let blocks = match content {
        Value::Null => return Ok(()),
        Value::String(text) => {
            Piece::add_text(pieces, text);
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(wrong(name, "a string or a list of blocks", other)),
    };
    for (index, block) in blocks.iter().enumerate() {
        let name = format!("{name}[{index}]");
        match kind_of(&name, block)? {
            "text" => match &block["text"] {
                Value::String(text) => Piece::add_text(pieces, text),
                Value::Null => return Err(ApiError::missing(format!("{name}.text"))),
                other => return Err(wrong(&format!("{name}.text"), "a string", other)),
            },
            "image" if reads_images => pieces.push(Piece::Image(images::from_block(&name, block)?)),
            "image" => {
                images::source_of(&name, block)?;
                Piece::add_text(pieces, images::UNSEEN);
            }
            "document" | "search_result" => add_document(&name, block, reads_images, pieces)?,
            "tool_reference" => {
                Piece::add_text(pieces, block["tool_name"].as_str().unwrap_or_default());
            }
            kind => return Err(unsupported(&name, kind)),
        }
    }
    Ok(())
}

/// Adds a document, or what a search found. Files in other formats than text are refused.
fn add_document(
    name: &str,
    block: &Value,
    reads_images: bool,
    pieces: &mut Vec<Piece>,
) -> Result<(), ApiError> {
    if block["type"] == "search_result" {
        let content = &block["content"];
        return add_content(&format!("{name}.content"), content, reads_images, pieces);
    }
    let source = &block["source"];
    match (source["type"].as_str(), &source["data"]) {
        (Some("text"), Value::String(text)) => {
            Piece::add_text(pieces, text);
            Ok(())
        }
        (Some("content"), _) => {
            let (at, content) = (format!("{name}.source.content"), &source["content"]);
            add_content(&at, content, reads_images, pieces)
        }
        _ => Err(ApiError::unsupported(
            format!("{name}.source"),
            "documents must be plain text",
        )),
    }
}

/// Marks the content of a result as an error.
fn mark_error(content: &mut Vec<Piece>) {
    const MARK: &str = "Error: ";
    match content.first_mut() {
        Some(Piece::Text(text)) => text.insert_str(0, MARK),
        _ => content.insert(0, Piece::Text(MARK.to_owned())),
    }
}

/// Instructions: a text, or a list of text blocks.
struct System;

impl Kind for System {
    type Value = Vec<String>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Vec<String>, ApiError> {
        let blocks = match value {
            Value::String(text) => return Ok(vec![text]),
            Value::Array(blocks) => blocks,
            other => return Err(wrong(at, "a string or a list of text blocks", &other)),
        };
        let texts = blocks
            .into_iter()
            .enumerate()
            .map(|(index, block)| match &block["text"] {
                Value::String(text) if block["type"] == "text" => Ok(text.clone()),
                _ => Err(wrong(&format!("{at}[{index}]"), "a text block", &block)),
            });
        texts.collect()
    }

    fn schema(&self, _: &Bounds) -> Value {
        let properties = json!({"type": {"const": "text"}, "text": {"type": "string"}});
        let block =
            json!({"type": "object", "required": ["type", "text"], "properties": properties});
        json!({"anyOf": [{"type": "string"}, {"type": "array", "items": block}]})
    }
}

/// A list of tools, of which functions are kept.
struct BlockTools;

impl Kind for BlockTools {
    type Value = ToolList;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<ToolList, ApiError> {
        let tools = tools::list(at, value)?;
        let mut list = ToolList::default();
        for (index, tool) in tools.into_iter().enumerate() {
            let at = format!("{at}[{index}]");
            match &tool["type"] {
                _ if !tool.is_object() => return Err(wrong(&at, "an object", &tool)),
                Value::Null => {}
                Value::String(kind) if kind == "custom" => {}
                Value::String(kind) => {
                    list.left_out
                        .push(tool["name"].as_str().unwrap_or(kind).to_owned());
                    continue;
                }
                other => return Err(wrong(&format!("{at}.type"), "a string", other)),
            }
            if !matches!(tool["input_schema"], Value::Null | Value::Object(_)) {
                return Err(wrong(
                    &format!("{at}.input_schema"),
                    "an object",
                    &tool["input_schema"],
                ));
            }
            // In the order that templates show and models know.
            let fields = [
                ("description", "description"),
                ("parameters", "input_schema"),
                ("strict", "strict"),
            ];
            let mut function = json!({"name": tool["name"]});
            for (ours, theirs) in fields
                .into_iter()
                .filter(|(_, theirs)| !tool[*theirs].is_null())
            {
                function[ours] = tool[theirs].clone();
            }
            check_function(&at, &function)?;
            list.functions
                .push(json!({"type": "function", "function": function}));
        }
        Ok(list)
    }

    fn schema(&self, _: &Bounds) -> Value {
        let tool = json!({
            "title": "BlockTool",
            "type": "object",
            "required": ["name"],
            "properties": {
                "type": {"enum": ["custom", null]},
                "name": {"type": "string", "pattern": TOOL_NAME_PATTERN},
                "description": {"type": ["string", "null"]},
                "input_schema": {"type": ["object", "null"], "description": "The arguments, as a JSON schema."},
            },
        });
        let other = json!({
            "title": "BlockOtherTool",
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"type": "string", "not": {"const": "custom"}}},
        });
        json!({"type": "array", "maxItems": TOOLS_MAX, "items": {"anyOf": [tool, other]}})
    }
}

/// Whether a function is called; its translation is checked with the tools.
struct BlockToolChoice;

impl Kind for BlockToolChoice {
    type Value = Value;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Value, ApiError> {
        let single = &value["disable_parallel_tool_use"];
        if !matches!(single, Value::Null | Value::Bool(_)) {
            return Err(wrong(
                &format!("{at}.disable_parallel_tool_use"),
                "true or false",
                single,
            ));
        }
        match value["type"].as_str() {
            Some("auto" | "any" | "none") => Ok(value),
            Some("tool") if value["name"].is_string() => Ok(value),
            Some("tool") => Err(wrong(
                &format!("{at}.name"),
                "the name of a tool",
                &value["name"],
            )),
            _ => Err(wrong(
                at,
                "an object of type auto, any, tool or none",
                &value,
            )),
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        let single = json!({"type": ["boolean", "null"]});
        let mode =
            json!({"type": {"enum": ["auto", "any", "none"]}, "disable_parallel_tool_use": single});
        let tool = json!({"type": {"const": "tool"}, "name": {"type": "string"}, "disable_parallel_tool_use": single});
        let mode = json!({"type": "object", "required": ["type"], "properties": mode});
        let tool = json!({"type": "object", "required": ["type", "name"], "properties": tool});
        json!({"title": "BlockToolChoice", "anyOf": [mode, tool]})
    }
}

/// Whether the model thinks. Its budget is the template's affair.
struct ThinkingSwitch;

impl Kind for ThinkingSwitch {
    type Value = bool;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<bool, ApiError> {
        match value["type"].as_str() {
            Some("disabled") => Ok(false),
            Some("enabled" | "adaptive" | "between_tools") => Ok(true),
            _ => Err(wrong(
                at,
                "an object of type enabled, adaptive, between_tools or disabled",
                &value,
            )),
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        let kind = json!({"enum": ["enabled", "adaptive", "between_tools", "disabled"]});
        json!({"type": "object", "required": ["type"], "properties": {"type": kind}})
    }
}
