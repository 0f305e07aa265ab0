//! Calls in tags, while they stream. Qwen3-Coder's: `<function=name>`, then `<parameter=key>` value `</parameter>` for
//! each argument. GLM's: a name, then `<arg_key>` key `</arg_key>` and `<arg_value>` value `</arg_value>`.
//!
//! Values are not escaped, and end where [`XmlValue`] says. Models forget tags: a name also ends with its line, a value
//! with the next argument or with the call, and arguments may be JSON.

use super::super::marker::begins;
use super::CallDelta;
use super::json_call::{JsonCall, Outcome};
use super::progress::{OpenCall, Progress};
use super::tags::{Due, Notation, is_in_name};
use super::types::{self, Allowed};
use super::xml_value::{Context, End, XmlValue};
use serde_json::Value;

/// The markers around GLM's calls, and its tags.
pub(crate) const GLM_MARKERS: [&str; 6] = [
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
];

/// A call that is being parsed.
#[derive(Clone, Debug)]
pub(crate) struct XmlCall {
    notation: Notation,
    stage: Stage,
    /// Text that was not read yet.
    held: String,
    /// The text has ended.
    is_over: bool,
    call: OpenCall,
    /// The keys so far. The first of several values of a key counts, because it may have been reported.
    given: Vec<String>,
    /// The arguments are JSON, and at least some of them are certain.
    is_json: bool,
}

#[derive(Clone, Debug)]
enum Stage {
    Name,
    /// After the name.
    Named,
    /// Between the name, the arguments and the end.
    Between,
    /// After a key.
    Key(String),
    Value(Box<XmlValue>),
    Json(Box<JsonCall>),
}

impl XmlCall {
    pub(crate) fn new(notation: Notation) -> Self {
        Self {
            notation,
            stage: Stage::Name,
            held: String::new(),
            is_over: false,
            call: OpenCall::default(),
            given: Vec::new(),
            is_json: false,
        }
    }

    /// The text that was not read: what follows a call, or all of it if it is none.
    pub(crate) fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// What is new since the last time.
    pub(crate) fn take(&mut self) -> Option<CallDelta> {
        self.call.take()
    }

    /// Takes more text.
    pub(crate) fn push(&mut self, text: &str) -> Progress {
        self.held.push_str(text);
        self.read()
    }

    /// Ends the text, and the call with it.
    pub(crate) fn finish(&mut self) -> Progress {
        self.is_over = true;
        self.read()
    }

    fn read(&mut self) -> Progress {
        loop {
            let progress = match std::mem::replace(&mut self.stage, Stage::Between) {
                Stage::Name => self.read_name(),
                Stage::Named => self.read_named(),
                Stage::Between => self.read_between(),
                Stage::Key(key) => self.read_key(key),
                Stage::Value(value) => self.read_value(value),
                Stage::Json(call) => self.read_json(call),
            };
            if let Some(progress) = progress {
                return progress;
            }
        }
    }

    /// More text is needed to leave a stage.
    fn wait(&mut self, stage: Stage) -> Option<Progress> {
        self.stage = stage;
        Some(Progress::Open)
    }

    fn read_name(&mut self) -> Option<Progress> {
        let before = self.notation.tags.name;
        if self.held.len() < before.len() {
            return self.wait(Stage::Name);
        }
        let text = self.held[before.len()..].trim_start();
        let (name, after) = text.split_at(text.find(|c| !is_in_name(c)).unwrap_or(text.len()));
        let after = after.trim_start_matches([' ', '\t', '\r']);
        let is_end = match after.chars().next() {
            None if !self.is_over => return self.wait(Stage::Name),
            Some('>') => !before.is_empty(),
            None | Some('\n' | '<' | '{') => true,
            Some(_) => false,
        };
        if !is_end || !self.notation.tools.has(name) {
            return Some(Progress::NoCall);
        }
        self.call.name = Some(name.to_owned());
        self.held = after.strip_prefix('>').unwrap_or(after).to_owned();
        self.stage = Stage::Named;
        None
    }

    /// The arguments may be JSON.
    fn read_named(&mut self) -> Option<Progress> {
        let text = self.held.trim_start();
        if text.is_empty() && !self.is_over {
            return self.wait(Stage::Named);
        }
        if text.starts_with('{') {
            let name = self.call.name.clone().unwrap_or_default();
            self.stage = Stage::Json(Box::new(JsonCall::named(&name)));
        }
        None
    }

    /// Looks for the next argument, or the end. Other text between them means nothing.
    fn read_between(&mut self) -> Option<Progress> {
        let Some(at) = self.held.find('<') else {
            if self.is_over || !self.held.trim().is_empty() {
                self.held.clear();
            }
            return self.end_or_wait();
        };
        self.held.drain(..at);
        match self.tag() {
            Some(Tag::Key) => match self.notation.key(&self.held) {
                Some((key, rest)) => {
                    let (key, rest) = (key.to_owned(), rest.to_owned());
                    self.held = rest;
                    self.stage = Stage::Key(key);
                    None
                }
                None => self.end_or_wait(),
            },
            Some(Tag::End(length)) => {
                self.held.drain(..length);
                self.end()
            }
            Some(Tag::Other) => {
                self.held.remove(0);
                None
            }
            None => self.end_or_wait(),
        }
    }

    /// The tag with which the held text begins; `None` if that is open.
    fn tag(&self) -> Option<Tag> {
        let (text, [_, close]) = (self.held.as_str(), *self.notation.markers);
        if begins(text, self.notation.tags.key[0])? {
            return Some(Tag::Key);
        }
        if let Some(last) = self.notation.tags.last
            && begins(text, last)?
        {
            return Some(Tag::End(last.len()));
        }
        let is_end = begins(text, close)? || self.notation.begins_call(text)?;
        Some(if is_end { Tag::End(0) } else { Tag::Other })
    }

    fn end_or_wait(&mut self) -> Option<Progress> {
        if self.is_over {
            self.held.clear();
            self.end()
        } else {
            self.wait(Stage::Between)
        }
    }

    /// The call has ended.
    fn end(&mut self) -> Option<Progress> {
        self.call.arguments.push_str(match self.given.len() {
            _ if self.is_json => "",
            0 => "{}",
            _ => "}",
        });
        Some(Progress::Whole)
    }

    /// The tag before a value, which models may forget.
    fn read_key(&mut self, key: String) -> Option<Progress> {
        let before = self.notation.tags.value[0];
        if !before.is_empty() {
            let text = self.held.trim_start();
            match begins(text, before) {
                Some(true) => self.held = text[before.len()..].to_owned(),
                None if !self.is_over => return self.wait(Stage::Key(key)),
                _ => {}
            }
        }
        let parameters = self.parameters();
        let schema = types::properties(parameters).and_then(|all| all.get(&key));
        let allowed = Allowed::by(schema.unwrap_or(&Value::Null), parameters);
        self.stage = Stage::Value(Box::new(XmlValue::new(key, allowed)));
        None
    }

    fn parameters(&self) -> &Value {
        let name = self.call.name.as_deref().unwrap_or_default();
        self.notation.tools.parameters(name)
    }

    fn read_value(&mut self, mut value: Box<XmlValue>) -> Option<Progress> {
        let text = std::mem::take(&mut self.held);
        let context = Context {
            notation: &self.notation,
            due: Due {
                declared: types::properties(self.parameters()),
                given: &self.given,
                key: value.key().to_owned(),
            },
            is_over: self.is_over,
        };
        let end = value.read(&text, &context);
        let key = value.key().to_owned();
        let is_new = !self.is_json && !self.given.contains(&key);
        if is_new {
            let before = if self.given.is_empty() { '{' } else { ',' };
            self.call.arguments.push_str(&value.take(before));
        }
        match end {
            End::Open => self.wait(Stage::Value(value)),
            End::At(rest) => {
                self.held = rest;
                if is_new {
                    self.given.push(key);
                }
                None
            }
        }
    }

    fn read_json(&mut self, mut call: Box<JsonCall>) -> Option<Progress> {
        let text = std::mem::take(&mut self.held);
        let outcome = call.push(&text);
        if self.is_over && outcome == Outcome::Open {
            call.finish();
        }
        if let Some(delta) = call.take() {
            self.is_json = true;
            self.call.arguments.push_str(&delta.arguments);
        }
        if outcome == Outcome::Open && !self.is_over {
            return self.wait(Stage::Json(call));
        }
        self.held = text[outcome.bytes(&text)..].to_owned();
        None
    }
}

/// A tag between arguments.
enum Tag {
    Key,
    /// The end of a call, with the bytes of it that belong to the call.
    End(usize),
    Other,
}
