//! Prints a streamed response while it arrives: the answer to the command's output, reasoning to a terminal's stderr.

use super::prose;
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::io::{self, IsTerminal as _, Write};

/// Prints the first choice of a response and records it.
pub(crate) struct Printer<'a> {
    output: &'a mut dyn Write,
    /// Where reasoning is shown.
    thoughts: Option<Box<dyn Write>>,
    content: String,
    reasoning: String,
    tool_calls: Vec<Value>,
}

impl<'a> Printer<'a> {
    pub(crate) fn new(output: &'a mut dyn Write) -> Self {
        let thoughts = io::stderr()
            .is_terminal()
            .then(|| Box::new(prose::thoughts()) as Box<dyn Write>);
        Self {
            output,
            thoughts,
            content: String::new(),
            reasoning: String::new(),
            tool_calls: Vec::new(),
        }
    }

    /// Prints the new output of one event.
    pub(crate) fn print(&mut self, event: &Value) -> Result<()> {
        for choice in event["choices"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|choice| choice["index"] == 0)
        {
            let delta = &choice["delta"];
            self.print_reasoning(delta["reasoning_content"].as_str().unwrap_or_default());
            self.print_content(
                delta["content"]
                    .as_str()
                    .or(choice["text"].as_str())
                    .unwrap_or_default(),
            )?;
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                self.add_call(call);
            }
        }
        Ok(())
    }

    fn print_reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.reasoning.push_str(text);
        if let Some(thoughts) = &mut self.thoughts {
            // Reasoning is optional output: if stderr is closed, the answer is still printed.
            let _ = thoughts.write_all(text.as_bytes());
        }
    }

    fn print_content(&mut self, text: &str) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if self.content.is_empty() {
            self.end_reasoning();
        }
        self.content.push_str(text);
        self.output.write_all(text.as_bytes())?;
        Ok(self.output.flush()?)
    }

    /// Ends the last line of the reasoning, which may wait for the end of a word.
    fn end_reasoning(&mut self) {
        if let Some(thoughts) = self.thoughts.as_mut()
            && !self.reasoning.is_empty()
        {
            let _ = thoughts.write_all(b"\n");
        }
    }

    /// The first part of a call has its name; later parts add to its arguments.
    fn add_call(&mut self, part: &Value) {
        let arguments = part["function"]["arguments"].as_str().unwrap_or_default();
        let known = self
            .tool_calls
            .iter_mut()
            .find(|call| call["index"] == part["index"]);
        match known {
            Some(call) => {
                let before = call["function"]["arguments"].as_str().unwrap_or_default();
                call["function"]["arguments"] = format!("{before}{arguments}").into();
            }
            None => self.tool_calls.push(part.clone()),
        }
    }

    /// Ends the output: prints tool calls as lines of JSON. Returns the message for the conversation's history.
    pub(crate) fn finish(mut self) -> Result<Value> {
        if self.content.is_empty() {
            self.end_reasoning();
        }
        let mut message = Map::from_iter([("role".to_owned(), json!("assistant"))]);
        message.insert("content".to_owned(), self.content.clone().into());
        if !self.content.is_empty() || self.tool_calls.is_empty() {
            writeln!(self.output)?;
        }
        for call in &self.tool_calls {
            writeln!(self.output, "{}", json!({"tool_call": call["function"]}))?;
        }
        self.output.flush()?;
        if !self.tool_calls.is_empty() {
            message.insert("tool_calls".to_owned(), self.tool_calls.into());
        }
        Ok(message.into())
    }
}

#[cfg(test)]
mod tests;
