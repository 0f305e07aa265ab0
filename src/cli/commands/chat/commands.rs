//! What a person says to `folio chat` itself: lines that begin with `/`.

use super::conversation;
use folio::server::{field_names, nearest};
use serde_json::Value;

/// Each command with its help.
pub(super) const COMMANDS: [(&str, &str); 12] = [
    ("/help", "show this list"),
    ("/bye", "end; Ctrl-D does the same"),
    ("/reset", "start a new conversation"),
    ("/regen", "answer the last message again"),
    (
        "/read",
        "/read FILE begins the next message with the text of a file",
    ),
    (
        "/image",
        "/image FILE begins the next message with an image, for a model that reads images",
    ),
    (
        "/set",
        "/set FIELD VALUE sets a field of each request, such as temperature 0.7; without VALUE, its default",
    ),
    (
        "/system",
        "/system TEXT sets the system message; without TEXT, removes it",
    ),
    (
        "/save",
        "/save NAME keeps the conversation; NAME may be a path that ends with .json",
    ),
    (
        "/load",
        "/load NAME goes on with a conversation; without NAME, lists them",
    ),
    (
        "/model",
        "/model NAME goes on with another model; without NAME, tells the model and its device",
    ),
    (
        "/verbose",
        "tell the tokens and the speed of each answer, or stop telling",
    ),
];

/// A command with its text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    Help,
    Bye,
    Reset,
    Regen,
    Read(String),
    Image(String),
    /// Nothing: tell all. A field without a value: its default.
    Set(Option<(String, Option<Value>)>),
    System(Option<String>),
    Save(String),
    Load(Option<String>),
    Model(Option<String>),
    Verbose,
}

/// The command in a line that begins with `/`.
pub(super) fn parse(line: &str) -> Result<Command, String> {
    let (name, text) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let text = Some(text.trim())
        .filter(|text| !text.is_empty())
        .map(str::to_owned);
    Ok(match name {
        "/help" | "/?" => Command::Help,
        "/bye" | "/exit" | "/quit" => Command::Bye,
        "/reset" | "/clear" => Command::Reset,
        "/regen" => Command::Regen,
        "/read" => Command::Read(text.ok_or("/read needs a file")?),
        "/image" => Command::Image(text.ok_or("/image needs a file")?),
        "/set" => Command::Set(text.map(|text| setting(&text))),
        "/system" => Command::System(text),
        "/save" => Command::Save(text.ok_or("/save needs a name")?),
        "/load" => Command::Load(text),
        "/model" => Command::Model(text),
        "/verbose" => Command::Verbose,
        _ => {
            let near = nearest(name, COMMANDS.map(|(name, _)| name));
            let tip = near.map_or_else(
                || "/help lists them".to_owned(),
                |near| format!("did you mean {near}?"),
            );
            return Err(format!(
                "there is no command {name}: {tip} (a space before the / sends a text)"
            ));
        }
    })
}

/// What a word may be: a command, or what belongs to the command before it.
pub(super) fn candidates(before: &str, word: &str) -> Vec<String> {
    match before.trim_end() {
        "" if before.is_empty() && word.starts_with('/') => {
            COMMANDS.map(|(name, _)| name.to_owned()).into()
        }
        "/set" => field_names().map(str::to_owned).collect(),
        "/load" => conversation::saved().unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// A field and its value: JSON, or else a text.
fn setting(text: &str) -> (String, Option<Value>) {
    let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let value = value.trim();
    (
        name.to_owned(),
        (!value.is_empty()).then(|| serde_json::from_str(value).unwrap_or_else(|_| value.into())),
    )
}

/// The list of commands, as text.
pub(super) fn help() -> String {
    let lines = COMMANDS.map(|(name, help)| format!("{name:10} {help}"));
    let keys = "\"\"\"        begins and ends a text of several lines; a line that ends with \\ also goes on\n\
                Ctrl-C     stops an answer";
    format!("{}\n{keys}", lines.join("\n"))
}

#[cfg(test)]
mod tests;
